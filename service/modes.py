"""What each mode means for a device and for a cloud server. Pure.

``hat`` and ``local`` are Trilby's own. The others are what it is compared with, on the same engine, so that only the
method differs: the baselines of the HAT paper (its section 4.1), and two that it has not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

NO_DRAFT: Final = "none"
"""Plain decoding, which every device can do."""

PAPER_STEP_ROWS: Final = 128
"""U-Sarathi's rows of a step for short prompts (SpecBench); for long ones (CNN/DM) the paper takes 256."""

WHOLE_ROWS: Final = 4096
"""A prompt of this length goes in one forward, where a frame holds that many rows of the model."""

UNCUT_ROWS: Final = 4 * WHOLE_ROWS
"""Rows of a step where prompts are not cut: several whole ones that come together, and all who decode beside them."""

_TAKES_WHOLE: Final = {"max_rows": WHOLE_ROWS, "window_rows": 2 * WHOLE_ROWS}
"""A cloud that takes whole prompts, and the next of a session before the first is answered."""

_RUNS_WHOLE: Final = {**_TAKES_WHOLE, "step_rows": UNCUT_ROWS, "step_slack": 0}
"""A cloud that also runs them in one step each, however long those who decode wait for it."""

_SENT_WHOLE: Final = {"whole_prompts": True, "pack_rows": "off"}
"""Prompts in one forward, and rows as they are."""

_PLAIN_DRAFTS: Final = {"draft_length": "fixed", "prepare": "none", "stream_rows": "off"}
"""One draft a round, sent once it is complete, and nothing while it is verified."""

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Mode:
    """One mode.

    Attributes:
        about: for people, in a few words.
        device: settings of a device that the mode fixes.
        cloud: settings of its cloud servers that differ from their defaults.
        has_cloud: whether there is a cloud server at all.
    """

    about: str
    device: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    cloud: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    has_cloud: bool = True


MODES: Final[Mapping[str, Mode]] = {
    "hat": Mode("middle layers in the cloud, drafting here"),
    "ushape": Mode(
        "no drafting, prompts sent and computed whole",
        {"draft": (NO_DRAFT,), **_SENT_WHOLE},
        _RUNS_WHOLE,
    ),
    "u-sarathi": Mode(
        "as ushape, but the cloud cuts prompts",
        {"draft": (NO_DRAFT,), **_SENT_WHOLE},
        {**_TAKES_WHOLE, "step_rows": PAPER_STEP_ROWS, "step_slack": 0},
    ),
    "u-medusa": Mode(
        "as ushape, with Medusa's heads",
        # Of fixed length: every round sends the whole tree, whatever it costs.
        {"draft": ("medusa",), **_PLAIN_DRAFTS, **_SENT_WHOLE},
        _RUNS_WHOLE,
    ),
    "u-small": Mode(
        "as ushape, with the small model of --draft",
        {**_PLAIN_DRAFTS, **_SENT_WHOLE},
        _RUNS_WHOLE,
    ),
    "cloud": Mode(
        "all layers in the cloud, which sees the text",
        {"draft": (NO_DRAFT,), "split": 0, "tail": 0, "download": "last", **_SENT_WHOLE},
        {"split": 0, "tail": 0, **_TAKES_WHOLE},
    ),
    "local": Mode(
        "all layers here, drafting only with --draft",
        {"whole_prompts": False, "download": "last"},
        has_cloud=False,
    ),
}


def drafts_alone(mode: str) -> bool:
    """Whether the mode names no drafter and still drafts with the best there is."""
    return mode == "hat"


def device_flags(mode: str, **settings: Any) -> list[str]:
    """The flags of a device, or of ``trilby serve``, for ``mode`` and other settings, by their names with underscores.

    What the mode fixes need not be given. ``draft`` is a sequence of names.
    """
    words = ["--mode", _known(mode)]
    for name, value in settings.items():
        words += flags(name, value)
    return words


def cloud_flags(mode: str, *, whole_prompts: bool = False, step_rows: int = 0) -> list[str]:
    """The flags of a cloud server by which it serves devices of ``mode``, beside ``--model``, ``--split`` and so on.

    Args:
        whole_prompts: whether the devices send prompts whole though the mode does not say so; they are not cut then.
        step_rows: most rows in one step; 0: as the mode has it.

    Raises:
        ValueError: there is no such mode, or it has no cloud server.
    """
    meaning = MODES[_known(mode)]
    if not meaning.has_cloud:
        raise ValueError(f"--mode {mode} has no cloud server")
    settings = {**(_RUNS_WHOLE if whole_prompts and not meaning.cloud else meaning.cloud)}
    if step_rows:
        settings["step_rows"] = step_rows
    return [word for name, value in settings.items() for word in flags(name, value)]


def flags(name: str, value: Any) -> list[str]:
    """One setting as words of a command line."""
    if isinstance(value, bool):
        return [flag(name) if value else flag(f"no_{name}")]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [word for each in value for word in (flag(name), each)]
    return [flag(name), str(value)]


def flag(name: str) -> str:
    """The flag of a setting."""
    return "--" + name.replace("_", "-")


def _known(mode: str) -> str:
    if mode not in MODES:
        raise ValueError(f"--mode is one of {', '.join(MODES)}, not {mode}")
    return mode
