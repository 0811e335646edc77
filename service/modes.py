"""What each mode means for a device and for a cloud server. Pure.

``hat`` and ``local`` are Trilby's own. Those without a cloud beside ``local`` are for groups of devices. The others are
what ``hat`` is compared with, on the same engine, so that only the method differs: the baselines of the HAT paper (its
section 4.1), and two that it has not.
"""

from __future__ import annotations

from collections.abc import Mapping
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

_RUNS_WHOLE: Final = {**_TAKES_WHOLE, "step_rows": UNCUT_ROWS, "step_slack": 0.0}
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
        cloud: settings of its cloud servers that differ from the usual ones; who gives them himself has it his way.
        has_cloud: whether there is a cloud server at all.
        group: whether a group of devices computes what the device itself does not.
        prunes: whether attention heads may be left out of prompts that take too long, as ``--t-max`` says.
    """

    about: str
    device: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    cloud: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    has_cloud: bool = True
    group: bool = False
    prunes: bool = False


def _group(about: str, *, prunes: bool = False) -> Mode:
    """A mode of groups. Prompts come to them whole, since it is their rows that many share."""
    return Mode(about, {"whole_prompts": True, "download": "last"}, has_cloud=False, group=True, prunes=prunes)


MODES: Final[Mapping[str, Mode]] = {
    "hat": Mode("middle layers in the cloud, drafting on the device"),
    "ushape": Mode(
        "no drafting, prompts sent and computed whole",
        {"draft": (NO_DRAFT,), **_SENT_WHOLE},
        _RUNS_WHOLE,
    ),
    "u-sarathi": Mode(
        "as ushape, but the cloud cuts prompts",
        {"draft": (NO_DRAFT,), **_SENT_WHOLE},
        {**_TAKES_WHOLE, "step_rows": PAPER_STEP_ROWS, "step_slack": 0.0},
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
        {"split": 0, **_TAKES_WHOLE},
    ),
    "local": Mode(
        "all layers on the device, drafting with --draft, or where --memory is too little for all",
        {"whole_prompts": False, "download": "last"},
        has_cloud=False,
        prunes=True,
    ),
    "voltage": _group("a group of devices shares the rows of each layer"),
    "galaxy": _group("a group shares heads, columns and rows", prunes=True),
    "tensor": _group("a group shares heads and columns", prunes=True),
    "sequence": _group("a group shares rows, and exchanges keys and values"),
    "pipeline": _group("a group has some layers each", prunes=True),
    "edgeformer": _group(
        "as pipeline, and devices lend one another heads and columns where that is faster", prunes=True
    ),
    "lime": _group("as pipeline, and what has no room in all memory together is read from disks meanwhile"),
}


def cloud_of(mode: str, *, whole_prompts: bool) -> Mapping[str, Any]:
    """The settings of a cloud server that serves devices of ``mode``, where they differ from the usual ones.

    Args:
        whole_prompts: whether the devices send prompts whole though the mode does not say so; they are not cut then.

    Raises:
        ValueError: the mode has no cloud server.
    """
    if not MODES[mode].has_cloud:
        raise ValueError(f"--mode {mode} has no cloud server: start `trilby device --mode {mode}` alone")
    return _RUNS_WHOLE if whole_prompts and not MODES[mode].cloud else MODES[mode].cloud
