"""Voltage's choice between two orders of one attention, by counting and by measuring. Pure.

Theorem 2 counts multiplications (the paper's Gamma) for one head of size F_H, hidden size F, P rows of a member's own
and N rows in all. Three things are put right: the first lines of Eq. 9 and of the inequality after Eq. 14 are the wrong
way round, Eq. 7 lacks a transposition, and keys and values that g heads share cost a head only a g-th. For causal
attention N is what a member's rows see: up to its own last one.
"""

from __future__ import annotations

from dataclasses import dataclass

from device_agent.planning.costs import MemberCosts
from device_agent.planning.shape import ModelShape
from device_agent.planning.shares import spans


def gamma_projected(shape: ModelShape, rows: float, seen: float) -> float:
    """Gamma of Eq. 3 for one head, as Theorem 1 has it: P F F_H + 2 P N F_H + 2 N F F_H / g."""
    hidden, head = shape.hidden, shape.head_dim
    return rows * hidden * head + 2 * rows * seen * head + 2 * seen * hidden * head / shape.heads_per_group


def gamma_reordered(shape: ModelShape, rows: float, seen: float) -> float:
    """Gamma of Eq. 8 for one head: 3 P F F_H + 2 P N F. Nothing in it is done by all members again."""
    return 3 * rows * shape.hidden * shape.head_dim + 2 * rows * seen * shape.hidden


def reordering_counts_less(shape: ModelShape, rows: float, seen: float) -> bool:
    """Theorem 2's condition with shared keys and values: 1/(g P) - 1/N > (F - F_H) / (F F_H)."""
    if rows <= 0:
        return False
    hidden, head = shape.hidden, shape.head_dim
    return 1 / (shape.heads_per_group * rows) - 1 / seen > (hidden - head) / (hidden * head)


@dataclass(frozen=True)
class Order:
    """How one member computes its attention, and why.

    Attributes:
        rows: its own.
        seen: all that they attend to.
        gamma_projected, gamma_reordered: multiplications of one head.
        projected_s, reordered_s: seconds of all heads as measured; None where Eq. 8 was not.
        allowed: whether Eq. 8 is right here at all: it yields no keys to turn, to norm or to keep.
    """

    rows: int
    seen: int
    gamma_projected: float
    gamma_reordered: float
    projected_s: float
    reordered_s: float | None
    allowed: bool

    @property
    def reordered(self) -> bool:
        """Whether Eq. 8 is taken: where it is allowed and was measured to be faster. Gamma knows nothing of speeds."""
        return self.allowed and self.reordered_s is not None and self.reordered_s < self.projected_s


def orders(shape: ModelShape, costs: MemberCosts, parts: tuple[int, ...], one_shot: bool) -> list[Order]:
    """Each member's order for so many rows of its own.

    one_shot: whether nothing is generated behind these rows; only then may a member go without keys and values.
    """
    total = sum(parts)
    allowed = one_shot and not shape.rotary and not shape.key_norm
    found = []
    for member, (rows, span) in enumerate(zip(parts, spans(parts), strict=True)):
        seen = span.stop if shape.causal else total
        positions = span.start + (rows + 1) / 2 if shape.causal else total
        measured = costs.of(member, "reordered", rows, seen) if costs.measured(member, "reordered") else None
        # What Eq. 8 saves is the projection of all rows; the query's and the attention's own time are in it.
        projected = (
            costs.of(member, "query", rows, shape.kv_heads)
            + costs.of(member, "key_value", seen, shape.kv_heads)
            + costs.of(member, "attend", rows, positions, shape.kv_heads)
        )
        counted = gamma_projected(shape, rows, seen), gamma_reordered(shape, rows, seen)
        found.append(Order(rows, seen, *counted, projected, measured, allowed and rows > 0))
    return found
