"""What the comparisons with transformers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from groups import Started


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Started]:
    """Processes that join one group of a file after the other."""
    found = Started(tmp_path_factory.mktemp("members"))
    yield found
    found.end()
