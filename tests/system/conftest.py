"""One installation for all tests that only use it; tests that break one start their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from installation import Installation


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """Gateway, cloud and device with the demo model, real processes."""
    with Installation(tmp_path_factory.mktemp("installation"), forked=True) as running:
        yield running
