"""The settings that ``trilby serve`` and ``trilby device`` have in common: mode, how prompts go, and drafting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, Final, Protocol

from service.modes import MODES, device_flags, drafts_alone, flag, flags
from service.modes import NO_DRAFT as NO_DRAFT
from service.settings import setting

SPLIT: Final = 2
"""Layers at the front where nobody says."""

HAT_PAPER: Final[Mapping[str, Any]] = {
    "draft": ("adapter",),
    "draft_length": "fixed",
    "draft_threshold": 0.6,
    "prepare": "last",
    "stream_rows": "off",
    "pack_rows": "off",
}
"""What the HAT paper drafts with (its sections 3.4, 3.5 and 4.1): a draft is sent once it is complete, its rows as they
are."""

_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "mode": {
        "default": "hat",
        "help": "; ".join(f"{name}: {mode.about}" for name, mode in MODES.items()),
        "choices": tuple(MODES),
    },
    "chunk": {"default": 0, "help": "prompt tokens in one chunk; 0: as the cloud advises", "minimum": 0},
    "whole_prompts": {
        "default": False,
        "help": "a prompt goes in one forward, or in as few as the cloud's --max-rows allows; nothing overlaps",
    },
    "download": {
        "default": "last",
        "help": "rows of a prompt that come back: last: the one the head needs; all: as a plain U-shape has it",
        "choices": ("last", "all"),
    },
    "pack_rows": {
        "default": "auto",
        "help": "rows in fewer bytes (bfloat16: a third), bit for bit the same: auto: where the link is slow enough; "
        "off",
        "choices": ("auto", "off"),
    },
    "draft": {
        "default": (),
        "help": "none, adapter, fused, lookup, hybrid, medusa, or a small model (folder or Hugging Face id); several "
        "times: requests may name the later ones; not given: the best there is",
    },
    "drafters": {"default": "", "help": "folder with the drafters' files; empty: drafters/ in the model's folder"},
    "verify": {
        "default": "keyed",
        "help": "of sampled answers: keyed: the same text as without drafting; rejection, block: the same "
        "distribution, more drafted tokens accepted",
        "choices": ("keyed", "rejection", "block"),
    },
    "draft_length": {
        "default": "auto",
        "help": "when to stop a draft: auto: when the next token costs more than it earns; fixed: by --draft-threshold",
        "choices": ("auto", "fixed"),
    },
    "draft_threshold": {
        "default": 0.6,
        "help": "chance of the last token below which a draft of fixed length ends",
        "minimum": 0,
        "maximum": 1,
    },
    "draft_cap": {
        "default": 0,
        "help": "most tokens in a draft; 0: 8 for fixed, 24 for auto",
        "minimum": 0,
        "maximum": 64,
    },
    "prepare": {
        "default": "all",
        "help": "what is drafted while a verdict travels: none: nothing; last: as if all of the draft were accepted; "
        "all: for each likely verdict",
        "choices": ("none", "last", "all"),
    },
    "stream_rows": {
        "default": "auto",
        "help": "send the rows of a draft one by one as they are drafted: on, off, or auto: where it saves time",
        "choices": ("auto", "on", "off"),
    },
    "hat_paper": {
        "default": False,
        "help": "the HAT paper's settings: --draft adapter --draft-length fixed --draft-threshold 0.6 --prepare last "
        "--stream-rows off --pack-rows off",
    },
}


class SharedSettings(Protocol):
    """Settings of a process that is a device, or starts one."""

    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def mode(self) -> str: ...

    @property
    def split(self) -> int: ...

    @property
    def chunk(self) -> int: ...

    @property
    def whole_prompts(self) -> bool: ...

    @property
    def draft(self) -> tuple[str, ...]: ...

    @property
    def hat_paper(self) -> bool: ...


def draft_setting(name: str) -> Any:
    """The field ``name`` of a settings dataclass."""
    return setting(**_SETTINGS[name])


def split_setting() -> Any:
    """The field ``split`` of a settings dataclass; ``settle`` says what it is where nobody does."""
    return setting(
        None,
        f"layers the device keeps at the front; not given: {SPLIT}, in mode cloud 0; with 0 the cloud could read the "
        "tokens off the rows it gets",
        minimum=0,
    )


def settle(config: SharedSettings) -> None:
    """Apply the mode and ``--hat-paper``, and check what does not go together; for ``__post_init__`` of a frozen
    dataclass.

    Raises:
        ValueError: two settings contradict each other; the message says which.
    """
    if any(not each for each in config.draft):
        raise ValueError("--draft needs a name, one each time it is given")
    if config.hat_paper:
        if config.mode not in ("hat", "local"):
            raise ValueError(f"--hat-paper is not for --mode {config.mode}: leave one of them out")
        _fix(config, "--hat-paper", HAT_PAPER)
    _fix(config, f"--mode {config.mode}", MODES[config.mode].device)
    if config.whole_prompts and config.chunk:
        raise ValueError("prompts go whole here (--whole-prompts, or the mode): leave --chunk out")
    if config.mode == "u-small" and len(config.draft) != 1:
        raise ValueError("--mode u-small needs one --draft: the folder or Hugging Face id of a small model")
    if config.split is None:
        object.__setattr__(config, "split", SPLIT)


def _fix(config: SharedSettings, who: str, fixed: Mapping[str, Any]) -> None:
    """Give settings the values that ``who`` says, where they have them not already. Raises ValueError."""
    defaults = {each.name: each.default for each in fields(config)}
    for name, value in fixed.items():
        if getattr(config, name) not in (defaults[name], value):
            raise ValueError(f"{who} already says {' '.join(flags(name, value))}; leave {flag(name)} or it out")
        object.__setattr__(config, name, value)


def wanted(config: SharedSettings) -> tuple[str, ...]:
    """The drafters to load, the first being the default; empty: the best there is."""
    return config.draft or (() if drafts_alone(config.mode) else (NO_DRAFT,))


def arguments(config: SharedSettings) -> list[str]:
    """The same settings as a command line."""
    return device_flags(config.mode, **{name: getattr(config, name) for name in _SETTINGS if name != "mode"})
