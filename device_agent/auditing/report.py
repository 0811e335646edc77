"""An audit as tables, a plot and data. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from device_agent.auditing.figures import AuditFigures, SplitFigures
from service.line_plot import line_plot

OUTPUT = "answers, by the head"

LEGEND = {"vocabulary matching": "matching", "the commonest token": "commonest token", OUTPUT: "answers, head"}
"""What a plot calls what has a longer name in tables."""


def tables(found: AuditFigures) -> str:
    """What was tried, and the tables, as Markdown."""
    padded = ", frames padded" if found.padded else ""
    about = (
        f"{found.model}: {found.layers} layers, hidden size {found.hidden_size}, {found.vocabulary:,} tokens, "
        f"{found.dtype}, --tail {found.tail}{padded}. {found.texts} passages of {found.text} were sent; attackers "
        f"learned from {found.known_tokens:,} other tokens of it at most. Vocabulary matching tried "
        f"{found.candidates:,} tokens at a position at most."
    )
    return "\n\n".join([about, attack_table(found), onlooker_table(found)]) + "\n"


def attack_table(found: AuditFigures) -> str:
    """The share of tokens that each attack recovered, by split."""
    names = [each.name for each in found.splits[0].attacks]
    rows = [[str(each.split), *_shares(each), str(each.output)] for each in found.splits]
    table = _table(["split", *names, OUTPUT], rows)
    late = any(not attack.complete for each in found.splits for attack in each.attacks)
    return table + ("\n\n*: of what was read before the time was over." if late else "")


def onlooker_table(found: AuditFigures) -> str:
    """What drafts, lengths and times said, by split."""
    head = ["split", "rows sent", "of rejected drafts", "of those read", "prompts measured exactly", "off by"]
    head += ["rounds measured exactly", "answers off by", "bytes up: prompts", "answers", "bytes down"]
    table = _table(head, [_seen(each) for each in found.splits])
    late = any(each.drafts.tried < each.drafts.rejected for each in found.splits)
    return table + ("\n\n*: so many there was time for, and no more." if late else "")


def plot(found: AuditFigures) -> str:
    """The share of tokens recovered over the splits, as SVG."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for each in found.splits:
        for attack in each.attacks:
            if (share := attack.tokens.value) is not None:
                lines.setdefault(_legend(attack.name), []).append((float(each.split), share))
        if (share := each.output.value) is not None:
            lines.setdefault(_legend(OUTPUT), []).append((float(each.split), share))
    return line_plot(f"{found.model}: tokens recovered", "layers on the device", "share", lines, up_to=1.0)


def data(found: AuditFigures) -> str:
    """All figures as JSON, shares as what was right and what was tried."""
    return json.dumps(asdict(found), indent=1) + "\n"


def _legend(name: str) -> str:
    return LEGEND.get(name, name.removesuffix(" pairs"))


def _shares(each: SplitFigures) -> list[str]:
    return [f"{attack.tokens}{'' if attack.complete else '*'}" for attack in each.attacks]


def _seen(each: SplitFigures) -> list[str]:
    drafts, seen = each.drafts, each.onlooker
    return [
        str(each.split),
        f"{drafts.sent:,}",
        f"{drafts.rejected:,}",
        f"{drafts.read:,}" + (f" of {drafts.tried:,}*" if drafts.tried < drafts.rejected else ""),
        str(seen.prompts),
        f"{100 * seen.prompt_error:.1f} %",
        str(seen.rounds),
        f"{100 * seen.answer_error:.1f} %",
        f"{seen.prompt_bytes:,}",
        f"{seen.up_bytes - seen.prompt_bytes:,}",
        f"{seen.down_bytes:,}",
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *rows))
