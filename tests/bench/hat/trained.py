"""How many parameters the drafters of the demo model for long prompts have, from their files' headers. No torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_name("drafters")

FILES: Final[Mapping[str, Path]] = {
    "hat": FOLDER / "fused.safetensors",
    "hat-paper": FOLDER / "adapter.safetensors",
    "u-medusa": FOLDER / "medusa.safetensors",
    "u-small": FOLDER / "small" / "model.safetensors",
}
"""What was trained for a method; others have nothing."""


def parameters(method: str) -> int | None:
    """Of what was trained for a method on the demo model; None where nothing was. Raises OSError, ValueError."""
    file = FILES.get(method)
    return None if file is None else count(file)


def count(file: Path) -> int:
    """Elements of all tensors of a safetensors file: eight bytes say how long the JSON is that says their shapes.

    Raises OSError, ValueError.
    """
    with file.open("rb") as opened:
        header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
    return sum(prod(each["shape"]) for name, each in header.items() if name != "__metadata__")
