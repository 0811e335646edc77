"""The models that drafters are measured with, and the drafters there are for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from bench.draft_texts import STORIES, Text, foreign, held_out, stories
from checkpoints import DATA, DEMO

from device_agent.chain.model_ends import DeviceParts
from drafting.adapter import AdapterDrafter
from drafting.drafter import Drafter
from drafting.drafter_file import read_drafter
from drafting.errors import BadDrafter
from drafting.hybrid import HybridDrafter
from drafting.lookup import LookupDrafter
from drafting.medusa import MedusaDrafter
from drafting.small_model import SmallModelDrafter
from split_model.checkpoint import Checkpoint

TRAINED = ("adapter", "fused", "medusa")
SMALL = {"tinystories-656k": ("draft-180k",)}
"""Small models that are at hand for others."""

FOREIGN, STORY_COUNT = 5, 25
"""Prompts of each set that the demo model was not made for, and beginnings of stories."""


@dataclass(frozen=True)
class Target:
    """A model, cut behind ``split`` layers, its texts, and some it was not made for."""

    name: str
    path: Path
    split: int
    texts: list[Text]
    foreign: list[Text]


def targets(tokens: int, every: int) -> tuple[list[Target], list[str]]:
    """What there is to measure, with one in ``every`` of its texts, and why the rest is left out."""
    found = [Target("demo", DEMO, 2, held_out(tokens, every), foreign(tokens, -(-FOREIGN // every)))]
    missing = []
    for name, split in (("tinystories-656k", 1), ("stories-260k", 2)):
        path = DATA / "models" / name
        if path.is_dir() and STORIES.is_file():
            found.append(Target(name, path, split, stories(path, tokens, -(-STORY_COUNT // every)), []))
        else:
            missing.append(f"{name} is not at hand")
    return found, missing


def drafters_of(
    target: Target, folder: Path | None = None, extra: Mapping[str, Path] | None = None, small: Sequence[Path] = ()
) -> tuple[dict[str, Drafter], list[str]]:
    """The drafters of a model by name, and why others are left out.

    Args:
        folder: of files of drafters; None: the model's own.
        extra: further files of drafters by the names they get; those of other models are passed over.
        small: folders of small models; those that read other tokens are passed over.
    """
    checkpoint = Checkpoint.open(target.path)
    spec, digest = checkpoint.spec, checkpoint.digest()
    head = DeviceParts.load(checkpoint, target.split, 0, torch.float32).head
    found: dict[str, Drafter] = {}
    missing: list[str] = []

    def trained(name: str, path: Path) -> None:
        try:
            kind = read_drafter(path).kind
            if kind == "medusa":
                found[name] = MedusaDrafter.load(path, spec, digest, target.split, torch.float32, head)
            else:
                found[name] = AdapterDrafter.load(path, spec, digest, target.split, torch.float32, head, kind=kind)
        except BadDrafter:
            missing.append(f"{name}, for which {target.name} has no file that fits")

    for kind in TRAINED:
        trained(kind, (folder or target.path / "drafters") / f"{kind}.safetensors")
    for name, path in (extra or {}).items():
        trained(name, path)
    found["lookup"] = LookupDrafter()
    for kind in ("fused", "adapter"):
        if kind in found:
            found["hybrid"] = HybridDrafter(found[kind], LookupDrafter())
            break
    for path in (*small, *(DATA / "models" / name for name in SMALL.get(target.name, ()))):
        try:
            found[path.name] = SmallModelDrafter.load(str(path), target.path, spec, torch.float32)
        except BadDrafter:
            missing.append(f"{path.name}, which cannot draft for {target.name}")
    return found, missing
