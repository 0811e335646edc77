"""What a model is, as far as a command has to know before it starts anything: by its config alone.

The processes that load a model know it better (`split_model/families/`), but only once they run.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

READS: Final = frozenset({"bert", "distilbert", "vit"})
TRANSLATES: Final = frozenset({"t5"})
"""Families that read texts or images and write none, and that read one text and write another."""

READS_IMAGES: Final = "reads images"

MAX_CONFIG_BYTES: Final = 2**20


def undivided(model: str) -> str | None:
    """What a model does for which no cloud can have its middle layers; None where it writes on from a text, or where
    its config cannot be read: whoever loads it says why.

    Args:
        model: a folder, or an id on the hub, whose config is fetched.
    """
    folder = Path(model)
    try:
        config = _read(folder / "config.json" if folder.is_dir() else _fetched(model))
        if config.get("model_type") in TRANSLATES and "T5EncoderModel" not in (config.get("architectures") or ()):
            return "reads one text and writes another"
        if config.get("model_type") in READS | TRANSLATES:
            return READS_IMAGES if config.get("model_type") == "vit" else "reads whole texts"
    except (OSError, ValueError, RecursionError, TypeError):
        return None
    return None


def _read(file: Path) -> dict[str, Any]:
    with file.open("rb") as opened:
        found = json.loads(opened.read(MAX_CONFIG_BYTES))
    return found if isinstance(found, dict) else {}


def _fetched(model: str) -> Path:
    """Of a model on the hub. Raises OSError or ValueError as huggingface_hub does."""
    import huggingface_hub  # Only here: it takes as long to import as all other parts of the command.

    return Path(huggingface_hub.hf_hub_download(model, "config.json"))
