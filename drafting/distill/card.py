"""What is told of a trained drafter: JSON inside its file, and a page for people beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from drafting.distill.measure import CAP, Acceptance
from drafting.distill.training import Plan, Progress


@dataclass(frozen=True)
class Made:
    """How a drafter came to be, and what it measured on held-out text."""

    model: str
    kind: str
    form: str
    split: int
    parameters: int
    plan: Plan
    progress: Progress
    data: str
    documents: int
    data_tokens: int
    heldout: str
    acceptance: Acceptance


def card(made: Made) -> dict[str, Any]:
    """For the metadata of the file."""
    plan, progress, found = made.plan, made.progress, made.acceptance
    return {
        "model": made.model,
        "parameters": made.parameters,
        "data": {"text": made.data, "documents": made.documents, "tokens": made.data_tokens},
        "training": {
            "loss": _loss(made),
            "unroll": _depths(made),
            "tokens": progress.tokens,
            "steps": progress.step,
            "minutes": round(progress.seconds / 60, 1),
            "seed": plan.seed,
            "rate": plan.rate,
        },
        "heldout": {
            "text": made.heldout,
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
| Text | {made.data}: {made.documents:,} documents, {made.data_tokens:,} tokens |
| Loss | {_loss(made)}, over {_depths(made)} step(s) of a draft |
| Training | {progress.tokens:,} tokens in {progress.step:,} steps, {progress.seconds / 60:.1f} minutes, seed \
{made.plan.seed} |
| Held-out text | {made.heldout}: {found.tokens:,} tokens of the model's own greedy answers |
| **tau** | **{found.tau:.2f}** tokens a verification with chains of {CAP}, no threshold |

| depth | {" | ".join(str(depth + 1) for depth in range(len(depths)))} |
| --- | {" | ".join("---" for _ in depths)} |
| accepted, greedy | {" | ".join(f"{each:.1%}" for each in depths)} |
| overlap at T = 1 | {" | ".join(f"{each:.1%}" for each in found.overlap_by_depth)} |

![training]({curve}) ![acceptance]({acceptance})
"""


def _loss(made: Made) -> str:
    return "cross-entropy" if made.kind == "medusa" else made.plan.loss


def _depths(made: Made) -> int:
    return made.plan.unroll if made.kind == "fused" else 1
