"""Where this user's files go that can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path:
    """The folder of that name in Trilby's own; it may not be there yet."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    # A path that is not absolute is to be ignored, says the XDG base directory specification.
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "trilby" / name
