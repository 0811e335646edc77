"""Property tests run the same examples every time, and a busy machine does not fail them."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("split_model", deadline=None, derandomize=True)
settings.load_profile("split_model")
