"""The drafters this device has, by the names that requests use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import structlog
import torch

from device_agent.chain.model_ends import DeviceParts
from drafting.adapter import AdapterDrafter
from drafting.drafter import Drafter
from drafting.drafter_file import can_be_trained
from drafting.errors import BadDrafter
from drafting.hybrid import HybridDrafter
from drafting.lookup import LookupDrafter
from drafting.medusa import MedusaDrafter
from drafting.small_model import SmallModelDrafter
from service.modes import NO_DRAFT
from split_model.checkpoint import Checkpoint
from split_model.errors import BadCheckpoint
from split_model.names import model_name
from wire.errors import Code, SessionFailed

KINDS: Final = (NO_DRAFT, "adapter", "fused", "lookup", "hybrid", "medusa")
"""What ``--draft`` knows beside models."""

TRAINED: Final = ("fused", "adapter")
"""What a hybrid may have beside lookup, the better one first."""

MAX_SHOWN: Final = 100
"""Characters of a name that are shown back."""

log = structlog.get_logger()


class Drafters:
    """What requests may draft with.

    Args:
        by_name: the first is the default; None drafts nothing.
        parameters: what all of them add to the parameters that the device holds anyway.
    """

    def __init__(self, by_name: Mapping[str, Drafter | None], parameters: int) -> None:
        self.default = next(iter(by_name))
        self.names = list(by_name)
        self.parameters = parameters
        self._by_name = dict(by_name)

    def get(self, name: str) -> Drafter | None:
        """The drafter a request names, the default where it names none (an empty text); None: do not draft.

        Raises:
            SessionFailed: there is none of this name.
        """
        try:
            return self._by_name[name or self.default]
        except KeyError:
            raise SessionFailed(
                Code.INVALID_REQUEST,
                f"there is no drafter '{name[:MAX_SHOWN]}' here; 'draft' is one of: {', '.join(self.names)}",
                param="draft",
            ) from None


def load_drafters(
    wanted: Sequence[str],
    folder: Path,
    checkpoint: Checkpoint,
    split: int,
    dtype: torch.dtype,
    parts: DeviceParts,
) -> Drafters:
    """Load what ``--draft`` names, the default first; where it names nothing, the best there is.

    Plain decoding can always be asked for, and so can what a hybrid is made of.

    Args:
        folder: where the drafters' files are; it need not exist.
        split: layers of the input submodel.

    Raises:
        BadDrafter: what was named is not there or does not fit the model; the message says what to do.
    """
    shelf = _Shelf(folder, checkpoint, split, dtype, parts)
    by_name: dict[str, Drafter | None] = {}
    for word in wanted or (_best(shelf),):
        name = word if word in KINDS else _name_of(word)
        if name in by_name:
            raise BadDrafter(f"--draft gives two drafters the name {name!r}: leave one of them out")
        by_name[name] = None if word == NO_DRAFT else shelf.get(word)
    if "hybrid" in by_name:
        for part in (shelf.beside_lookup, "lookup"):
            by_name.setdefault(part, shelf.get(part))
    by_name.setdefault(NO_DRAFT, None)
    return Drafters(by_name, shelf.parameters)


def _best(shelf: _Shelf) -> str:
    """A hybrid where a trained drafter fits the model, else lookup; where something is missing, a line in the log."""
    reasons = []
    for kind in shelf.trained:
        try:
            shelf.get(kind)
        except BadDrafter as error:
            reasons.append(str(error))
        else:
            if reasons:
                log.warning("a drafter does not fit", why="; ".join(reasons), drafting=f"hybrid of {kind} and lookup")
            shelf.beside_lookup = kind
            return "hybrid"
    why = "; ".join(reasons) or f"no drafter was trained for this model: {shelf.folder} has none"
    more = {}
    if shelf.split and can_be_trained(shelf.checkpoint.spec):
        more["better"] = f"trilby distill --model {shelf.checkpoint.path} --split {shelf.split} --text FILE"
    log.warning("drafting with lookup alone", why=why, **more)
    return "lookup"


def _name_of(model: str) -> str:
    """What requests call a small model. Raises BadDrafter for what is neither a folder nor a hub id with an owner: a
    kind that was mistyped."""
    if "/" not in model and not Path(model).is_dir():
        raise BadDrafter(f"--draft {model!r} is none of {', '.join(KINDS)}, and no folder or hub id of a small model")
    name = model_name(model)
    if name in KINDS:
        raise BadDrafter(f"--draft {model!r}: a model cannot be called {name!r}, which means a drafter; rename it")
    return name


class _Shelf:
    """Drafters as they are loaded, each once.

    Attributes:
        beside_lookup: the kind that a hybrid takes, the best there is a file of.
    """

    def __init__(
        self, folder: Path, checkpoint: Checkpoint, split: int, dtype: torch.dtype, parts: DeviceParts
    ) -> None:
        self.folder = folder
        self.beside_lookup = next(iter(self.trained), TRAINED[0])
        self.checkpoint = checkpoint
        self.split = split
        self._dtype = dtype
        self._parts = parts
        self._lookup = LookupDrafter()
        self._loaded: dict[str, Drafter] = {}

    @property
    def trained(self) -> list[str]:
        """The kinds for a hybrid that there are files of, the better one first."""
        return [kind for kind in TRAINED if self._path(kind).exists()]

    @property
    def parameters(self) -> int:
        """What is loaded adds to the device's parameters; a hybrid has none of its own."""
        return sum(drafter.parameters for kind, drafter in self._loaded.items() if kind != "hybrid")

    def get(self, word: str) -> Drafter:
        """The drafter of a kind, or a small model. Raises BadDrafter."""
        if word not in self._loaded:
            self._loaded[word] = self._load(word)
        return self._loaded[word]

    @cached_property
    def _digest(self) -> str:
        try:
            return self.checkpoint.digest()
        except BadCheckpoint as error:
            raise BadDrafter(f"the drafters in {self.folder} cannot be compared with the model: {error}") from error

    def _load(self, word: str) -> Drafter:
        spec, head = self.checkpoint.spec, self._parts.head
        if word in TRAINED:
            path = self._path(word)
            return AdapterDrafter.load(path, spec, self._digest, self.split, self._dtype, head, kind=word)
        if word == "medusa":
            return MedusaDrafter.load(self._path(word), spec, self._digest, self.split, self._dtype, head)
        if word == "lookup":
            return self._lookup
        if word == "hybrid":
            return HybridDrafter(self.get(self.beside_lookup), self._lookup)
        return SmallModelDrafter.load(word, self.checkpoint.path, spec, self._dtype, head.device)

    def _path(self, kind: str) -> Path:
        return self.folder / f"{kind}.safetensors"
