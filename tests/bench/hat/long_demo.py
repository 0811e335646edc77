"""The demo model for prompts of up to 2048 tokens: the same weights, its positions stretched by YaRN.

The demo model was trained on texts of a few hundred tokens. Behind longer prompts, as the paper's sets have them, it
ends its answers early or babbles; with its rotations stretched it goes on telling stories, and no weight is trained for
it. Its drafters and the small model are the shipped ones, stretched in the same way, until ``long_drafters`` trains
others.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from checkpoints import DEMO

from drafting.drafter_file import read_drafter, write_drafter
from split_model.checkpoint import Checkpoint

YARN: Final[dict[str, Any]] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}
KINDS: Final = ("adapter", "fused", "medusa")
SMALL: Final = "small"


def long_demo(folder: Path) -> Path:
    """The folder with model, drafters and small model, made unless it is there. Raises OSError."""
    if (folder / "drafters" / SMALL / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as building:
        whole = Path(building) / "model"
        _stretch(DEMO, whole)
        digest = Checkpoint.open(whole).digest()
        (whole / "drafters").mkdir()
        for kind in KINDS:
            name = f"{kind}.safetensors"
            file = read_drafter(DEMO / "drafters" / name)
            tensors = {each: file.tensor(each, torch.bfloat16) for each in file.shapes}
            write_drafter(whole / "drafters" / name, kind, digest, file.split, file.card, tensors)
        _stretch(DEMO / "drafters" / SMALL, whole / "drafters" / SMALL)
        if folder.exists():
            shutil.rmtree(folder)
        whole.rename(folder)
    return folder


def _stretch(model: Path, copy: Path) -> None:
    copy.mkdir(parents=True)
    for name in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        if (model / name).is_file():
            shutil.copy(model / name, copy / name)
    for template in model.glob("chat_template*"):
        shutil.copy(template, copy / template.name)
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    key = "rope_parameters" if "rope_parameters" in config else "rope_scaling"  # Newer and older transformers.
    config[key] = {**config.get(key, {}), **YARN}
    (copy / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
