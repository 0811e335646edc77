"""One installation for all tests that only use it; tests that break one start their own."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from installation import Installation


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Gateway, cloud and device with the demo model, real processes."""
    with Installation(tmp_path_factory.mktemp("installation"), forked=True) as running:
        yield running


@pytest.fixture(scope="session")
def http(installation: Installation) -> Iterator[httpx.Client]:
    """A client of it that goes through no proxy."""
    with httpx.Client(base_url=installation.base, timeout=120, trust_env=False) as client:
        yield client
