"""The tables of what drafts are worth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.acceptance import Case, Measured
from bench.draft_runs import DEEPEST
from bench.page import machine, table

FUSED_BAR, WEIGHT_BAR = 1.25, 1.5
SMALL_BAR = 1.10
LOSS_BAR = 1.05
HYBRID_BAR, COPYING_BAR = 1.05, 1.25
SAMPLED_BAR = 0.8
COPYING = ("summaries", "rephrase")
"""Skills whose answers repeat much of the prompt."""

LOSSES = ("hat", "kl", "lk")
HEADINGS = {"hat": "HAT's rule", "chain": "chains of 6"}


def report(results: Sequence[Measured], tokens: int, notes: Sequence[str]) -> str:
    """The section of docs/benchmarks.md."""
    generated = sum(counts.tokens for each in results for kinds in each.counts.values() for counts in kinds.values())
    greedy, keyed = sum(each.greedy for each in results), sum(each.keyed for each in results)
    wrong = [sum(len(each.wrong[sampled]) for each in results) for sampled in (False, True)]
    parts = [
        f"Measured on {machine()}; one thread, float32, answers of at most {tokens} tokens up to their end, "
        f"{generated} tokens generated in all. Greedy answers that are "
        f"not transformers': **{wrong[0]}** of {greedy}. Sampled ones that are not those of their seed without "
        f"drafting: **{wrong[1]}** of {keyed}.",
        "Goals, on the demo model, greedy unless the goal says otherwise:",
        table(["goal", "bar", *(f"τ, {each}" for each in HEADINGS.values())], [list(row) for row in goals(results[0])]),
    ]
    for each in results:
        parts += [_all_of(each), _kinds(each)]
    if notes:
        parts.append("Left out: " + "; ".join(notes) + ".")
    return "\n\n".join(part for part in parts if part)


def _all_of(measured: Measured) -> str:
    """One row for each drafter."""
    rows = []
    for name in ("none", *measured.parameters):
        chain = measured.total(Case(name, "chain")) or measured.total(Case(name, "hat"))
        assert chain is not None
        rows.append(
            [
                name,
                _count(measured.parameters.get(name, 0)),
                f"{measured.step_ratio[name]:.2f}" if name in measured.step_ratio else "–",
                *(_tau(measured, Case(name, "hat", sampled)) for sampled in (False, True)),
                *(_tau(measured, Case(name, "hat", True, rule)) for rule in ("rejection", "block")),
                *(_tau(measured, Case(name, "chain", sampled)) for sampled in (False, True)),
                " ".join(f"{share:.2f}" for share in chain.by_depth) or "–",
            ]
        )
    head = (
        "drafter | parameters | a step, of a plain row | τ, HAT's rule, greedy | T = 1 | T = 1, rejection | T = 1, "
        f"block | τ, chains of 6, greedy | T = 1 | accepted at depth 1 … {DEEPEST}, greedy"
    )
    target = measured.target
    return (
        f"**{target.name}**: {len(target.texts)} texts, {target.split} layers in the input submodel, a plain row "
        f"{measured.plain_ms:.2f} ms.\n\n" + table(head, rows)
    )


def _kinds(measured: Measured) -> str:
    """τ by kind of text."""
    kinds = _kinds_of(measured)
    if len(kinds) < 2:
        return ""
    rows = [[name, *(_tau(measured, Case(name, "hat"), kind) for kind in kinds)] for name in measured.parameters]
    others = sorted({text.kind for text in measured.target.foreign})
    behind = f" Not in any other figure: {', '.join(others)}." if others else ""
    return f"τ by kind of text, greedy, HAT's rule.{behind}\n\n" + table(["drafter", *kinds], rows)


def goals(measured: Measured) -> Iterator[tuple[str, ...]]:
    """Each goal that was measured: what, the bar, and for both lengths the ratio and whether it is met."""
    parameters = measured.parameters

    def ratio(
        bar: float, a: str, b: str, kinds: Sequence[str] = (), sampled: tuple[bool, bool] = (False, False)
    ) -> Any:
        for length in HEADINGS:
            over = measured.total(Case(a, length, sampled[0]), kinds)
            under = measured.total(Case(b, length, sampled[1]), kinds)
            if over is None or under is None:
                yield "–"
            else:
                value = over.tau / under.tau
                yield f"**{value:.3f}** ({over.tau:.2f} : {under.tau:.2f}), {'met' if value >= bar else 'missed'}"

    if {"adapter", "fused"} <= parameters.keys():
        yield "fused to adapter", f"{FUSED_BAR:g}", *ratio(FUSED_BAR, "fused", "adapter")
        weight = parameters["fused"] / parameters["adapter"]
        said = f"**{weight:.3f}**, {'met' if weight <= WEIGHT_BAR else 'missed'}"
        yield "parameters of fused to adapter", f"at most {WEIGHT_BAR:g}", said, said
    for name in _independent(measured):
        share = parameters[name] / parameters["fused"]
        yield f"fused to {name} ({share:.2f} of its parameters)", f"{SMALL_BAR:g}", *ratio(SMALL_BAR, "fused", name)
    for better, hat in _losses(parameters):
        yield f"loss: {better} to {hat}", f"{LOSS_BAR:g}", *ratio(LOSS_BAR, better, hat)
    if {"hybrid", "fused"} <= parameters.keys():
        yield "hybrid to fused", f"{HYBRID_BAR:g}", *ratio(HYBRID_BAR, "hybrid", "fused")
        name = f"hybrid to fused, {' and '.join(COPYING)}"
        yield name, f"{COPYING_BAR:g}", *ratio(COPYING_BAR, "hybrid", "fused", COPYING)
    for name in ("adapter", "fused", "hybrid"):
        if name in parameters:
            found = ratio(SAMPLED_BAR, name, name, sampled=(True, False))
            yield f"{name}, T = 1 to greedy", f"{SAMPLED_BAR:g}", *found


def _independent(measured: Measured) -> list[str]:
    """The small models, if there is a fused drafter to compare with."""
    return [name for name in measured.parameters if name.startswith("small-") and "fused" in measured.parameters]


def _losses(names: Mapping[str, int]) -> list[tuple[str, str]]:
    """Drafters of one kind trained with another loss and with HAT's; what has no loss in its name is HAT's adapter, or
    a better one's fused."""
    pairs = []
    for kind, own in (("adapter", "hat"), ("fused", "")):
        hat = kind if own == "hat" else f"{kind}-hat"
        others = [f"{kind}-{loss}" for loss in LOSSES[1:]] + ([kind] if own != "hat" else [])
        pairs += [(other, hat) for other in others if {other, hat} <= names.keys()]
    return pairs


def _kinds_of(measured: Measured) -> list[str]:
    return list(dict.fromkeys(text.kind for text in (*measured.target.texts, *measured.target.foreign)))


def _tau(measured: Measured, case: Case, kind: str = "") -> str:
    counts = measured.total(case, (kind,) if kind else ())
    return "–" if counts is None else f"{counts.tau:.2f}"


def _count(parameters: int) -> str:
    return f"{parameters / 1e3:.0f} k" if parameters else "0"
