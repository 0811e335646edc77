"""The settings of drafting, which ``trilby serve`` and ``trilby device`` have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

from service.settings import setting

NO_DRAFT: Final = "none"
"""Plain decoding, which every device can do."""

HAT_PAPER: Final[Mapping[str, Any]] = {
    "draft": ("adapter",),
    "draft_length": "fixed",
    "draft_threshold": 0.6,
    "prepare": "last",
    "stream_rows": "off",
}
"""What the HAT paper drafts with (its sections 3.4, 3.5 and 4.1): a draft is sent once it is complete."""

_SETTINGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "mode": {
        "default": "hat",
        "help": "hat: middle layers in the cloud, drafting here; ushape: no drafting; local: all layers here, drafting "
        "only with --draft",
        "choices": ("hat", "ushape", "local"),
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
        "--stream-rows off",
    },
}


class DraftSettings(Protocol):
    """Settings of a process that drafts, or starts one that does."""

    @property
    def mode(self) -> str: ...

    @property
    def draft(self) -> tuple[str, ...]: ...

    @property
    def hat_paper(self) -> bool: ...


def draft_setting(name: str) -> Any:
    """The field ``name`` of a settings dataclass."""
    return setting(**_SETTINGS[name])


def settle(config: DraftSettings) -> None:
    """Apply ``--hat-paper``, and check what does not go together; for ``__post_init__`` of a frozen dataclass.

    Raises:
        ValueError: two settings contradict each other; the message says which.
    """
    if config.hat_paper:
        for name, value in HAT_PAPER.items():
            given = getattr(config, name)
            if given not in (_SETTINGS[name]["default"], value):
                raise ValueError(f"--hat-paper already says {_flags(name, value)}; leave {_flag(name)} or it out")
            object.__setattr__(config, name, value)
    if config.mode == "ushape" and config.draft not in ((), (NO_DRAFT,)):
        raise ValueError("--mode ushape does not draft: use --mode hat, or leave --draft and --hat-paper out")
    if any(not each for each in config.draft):
        raise ValueError("--draft needs a name, one each time it is given")


def wanted(config: DraftSettings) -> tuple[str, ...]:
    """The drafters to load, the first being the default; empty: the best there is."""
    return config.draft or (() if config.mode == "hat" else (NO_DRAFT,))


def arguments(config: DraftSettings) -> list[str]:
    """The same settings as a command line."""
    words: list[str] = []
    for name in _SETTINGS:
        words += _words(name, getattr(config, name))
    return words


def _words(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [_flag(name)] if value else []
    if isinstance(value, tuple):
        return [word for each in value for word in (_flag(name), each)]
    return [_flag(name), str(value)]


def _flags(name: str, value: Any) -> str:
    return " ".join(_words(name, value))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
