"""What a check has found, and how it is told: to people, and to the process that has asked for it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal

import msgspec

Status = Literal["ok", "warn", "fail"]

MAX_SHOWN: Final = 400
"""Characters of one sentence: some of them others choose."""

LEAST_HIDDEN: Final = 4
"""Characters of a secret that is looked for in what is shown; shorter ones would be found in any word."""


@dataclass(frozen=True)
class Finding:
    """One line of what is told.

    Attributes:
        check: what was looked at, in a word or two.
        status: ``ok``; ``warn``: it works, and not as well as it could, or may be meant so; ``fail``: it does not work.
        seen: what was seen, without a full stop.
        todo: one sentence on what to do; empty where all is well.
        about: the link that was looked at; empty: this machine.
        figures: numbers for programs, each with its unit in its name.
    """

    check: str
    status: Status
    seen: str
    todo: str = ""
    about: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """The same for programs."""
        return asdict(self)


Say = Callable[[Finding], object]
"""Told each finding as soon as there is one."""

_DECODER: Final = msgspec.json.Decoder(Finding)


def line_of(finding: Finding) -> str:
    """A finding as one line for another process."""
    return msgspec.json.encode(finding).decode()


def finding_in(line: str) -> Finding | None:
    """The finding that ``line_of`` has made a line of; None where it is something else."""
    try:
        return _DECODER.decode(line)
    except (msgspec.MsgspecError, UnicodeError):
        return None


def cleaned(finding: Finding, secrets: Collection[str]) -> Finding:
    """The same as it may be shown: nothing steers a terminal or fills it, and none of the secrets is in it, whoever has
    said it."""

    def shown(text: str) -> str:
        for secret in sorted(secrets, key=len, reverse=True):
            if len(secret) >= LEAST_HIDDEN:
                text = text.replace(secret, "…")
        cut = text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"
        return "".join(each if each.isprintable() else "\ufffd" for each in cut)

    seen, todo = shown(finding.seen), shown(finding.todo)
    return replace(finding, check=shown(finding.check), seen=seen, todo=todo, about=shown(finding.about))


def told(finding: Finding) -> str:
    """A finding for people: a line, and where something is to be done another."""
    about = f"{finding.about} " if finding.about else ""
    line = f"{finding.status:<4}  {about}{finding.check}: {finding.seen}"
    return f"{line}\n      → {finding.todo}" if finding.todo else line


def sentence(text: str) -> str:
    """A text as a sentence: with a capital first and a full stop behind; nothing stays nothing."""
    text = text.strip()
    if not text:
        return ""
    return text[0].upper() + text[1:] + ("" if text[-1] in ".?!" else ".")
