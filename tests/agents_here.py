"""What the fixture ``served`` of the gateway's tests gives."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import httpx

Served = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]
