"""One client beside another that asks for all there is, with real processes."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from bench.greedy import KEYS, Seen, first_token_s, greedy
from installation import Installation

pytestmark = pytest.mark.system

TRIES = 3
WITHIN_S = 15.0
"""For the first of five tokens: far from a wait for one of the other's answers, and room for a busy machine."""


async def test_a_greedy_client_keeps_nobody_out(tmp_path: Path) -> None:
    """128 long answers and 80 more requests of one key: another's short request is answered, each time it asks."""
    seen = Seen()
    with Installation(tmp_path, forked=True, gateway_settings=KEYS) as installation:
        base = installation.base
        async with httpx.AsyncClient(base_url=base, trust_env=False, timeout=60) as client, greedy(base, seen):
            times = [await first_token_s(client, seen) for _ in range(TRIES)]
    assert seen.b == {200: TRIES}
    assert all(first is not None and first < WITHIN_S for first in times)
    assert seen.a[200] == 1 and seen.a[429] > 0, "it was not greedy enough to be in anybody's way"
