"""What is told of a trained drafter: JSON inside its file, and a page for people beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drafting.distill.loops import Loops
from drafting.distill.measure import CAP, Acceptance
from drafting.distill.served import ANSWER, Served
from drafting.distill.training import Progress, TrainingPlan


@dataclass(frozen=True)
class ServedRow:
    """What a drafter brought by one rule at one temperature, served to the held-out prompts."""

    drafter: str  # as `--draft` calls it
    rule: str
    temperature: float
    found: Served


@dataclass(frozen=True)
class Made:
    """How a drafter came to be, and what it measured on held-out text."""

    model: str
    kind: str
    form: str
    split: int
    parameters: int
    plan: TrainingPlan
    progress: Progress
    data: str
    documents: int
    data_tokens: int
    loops: Loops
    heldout: str
    heldout_loops: Loops
    acceptance: Acceptance
    served: tuple[ServedRow, ...]


def card(made: Made) -> dict[str, Any]:
    """For the metadata of the file."""
    plan, progress, found = made.plan, made.progress, made.acceptance
    return {
        "model": made.model,
        "parameters": made.parameters,
        "data": {
            "text": made.data,
            "documents": made.documents,
            "tokens": made.data_tokens,
            "loops": round(made.loops.share, 3),
        },
        "training": {
            "loss": _loss(made),
            "unroll": _depths(made),
            "tokens": progress.tokens,
            "steps": progress.step,
            "minutes": round(progress.seconds / 60, 1),
            "seed": plan.seed,
            "rate": plan.rate,
        },
        "served": [
            {
                "draft": each.drafter,
                "rule": each.rule,
                "temperature": each.temperature,
                "tau": round(each.found.tau, 3),
                "error": round(each.found.error, 3),
                "proposed": each.found.proposed,
                "accepted": each.found.accepted,
                "prompts": len(each.found.answers),
                "tokens": each.found.tokens,
            }
            for each in made.served
        ],
        "heldout": {
            "text": made.heldout,
            "loops": round(made.heldout_loops.share, 3),
            "tokens": found.tokens,
            "tau": round(found.tau, 3),
            "chain": CAP,
            "acceptance_by_depth": [round(each, 3) for each in found.by_depth],
            "overlap_by_depth": [round(each, 3) for each in found.overlap_by_depth],
        },
    }


def page(made: Made, curve: str, acceptance: str) -> str:
    """Markdown. `curve`, `acceptance`: names of the two plots beside it."""
    found, progress = made.acceptance, made.progress
    depths = found.by_depth
    return f"""# Drafter `{made.kind}` for {made.model}

Proposes tokens that the model then verifies; whatever it proposes, the text stays the model's own.

| | |
| --- | --- |
| Form | {made.form}, on the rows after layer {made.split} |
| Parameters | {made.parameters:,} |
| Text | {made.data}: {made.documents:,} documents, {made.data_tokens:,} tokens{_without(made.loops)} |
| Loss | {_loss(made)}, over {_depths(made)} step(s) of a draft |
| Training | {progress.tokens:,} tokens in {progress.step:,} steps, {progress.seconds / 60:.1f} minutes, seed \
{made.plan.seed} |

## As it serves

Tokens a verification (tau, its own included; 1 without drafts) in the first {ANSWER} tokens of answers to prompts that
it was not trained on ({made.heldout}), counted where a device counts them. It depends on the text, on the temperature
and on when a draft ends.

{served_table(made.served)}

`auto`, the rule where nobody asks for another, goes on drafting while it pays: at a dearer round it drafts more and tau
is higher, and where all runs on one machine and the round of a small model costs next to nothing, it does not draft at
all. `hybrid` is the drafter beside lookup, what a device takes where nobody says.

## Had every draft gone on

Over {found.tokens:,} tokens of the model's greedy answers to these prompts{_without(made.heldout_loops)}: the share of
drafted tokens accepted at each depth, of those whose predecessors were. With chains of {CAP} and no threshold that is \
{found.tau:.2f} tokens
a verification. No device drafts so; it is what one training can be compared with another by.

| depth | {" | ".join(str(depth + 1) for depth in range(len(depths)))} |
| --- | {" | ".join("---" for _ in depths)} |
| accepted, greedy | {" | ".join(f"{each:.1%}" for each in depths)} |
| overlap at T = 1 | {" | ".join(f"{each:.1%}" for each in found.overlap_by_depth)} |

![training]({curve}) ![acceptance]({acceptance})
"""


def served_table(rows: Sequence[ServedRow]) -> str:
    """Markdown: a line for each drafter and rule, with tau and its standard error at each temperature."""
    heats = sorted({each.temperature for each in rows})
    lines: dict[tuple[str, str], list[str]] = {}
    for each in sorted(rows, key=lambda row: row.temperature):
        found = each.found
        lines.setdefault((each.drafter, each.rule), []).append(f"**{found.tau:.2f}** ± {found.error:.2f}")
    head = ["| `--draft` | a draft ends | " + " | ".join(f"T = {heat:g}" for heat in heats) + " |"]
    head.append("| --- | --- | " + " | ".join("---" for _ in heats) + " |")
    return "\n".join(head + [f"| {name} | {rule} | {' | '.join(cells)} |" for (name, rule), cells in lines.items()])


def _without(loops: Loops) -> str:
    return f", without the {loops.share:.1%} that only said the same again" if loops.cut else ""


def _loss(made: Made) -> str:
    return "cross-entropy" if made.kind == "medusa" else made.plan.loss


def _depths(made: Made) -> int:
    return made.plan.unroll if made.kind == "fused" else 1
