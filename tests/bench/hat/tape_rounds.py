"""The rounds that an answer takes by a recording: what a device that replays it must come to. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

from bench.hat.tape import Tape


def rounds(tape: Tape, start: int, tokens: int, threshold: float, cap: int) -> list[tuple[int, int]]:
    """Of an answer of so many tokens by HAT's rule (Eq. 5), the first of which came without a draft: drafted and
    accepted tokens of each round."""
    found = []
    known = 1
    while known < tokens:
        draft, right = chain(tape, start + known - 1, min(cap, tokens - known - 1), threshold)
        found.append((len(draft), right))
        known += right + 1
    return found


def chain(tape: Tape, place: int, cap: int, threshold: float) -> tuple[list[float], int]:
    """A draft by HAT's rule: its weights, and how many of its first tokens the text has."""
    weights: list[float] = []
    right, depth = 0, 0
    while len(weights) < cap and (not weights or weights[-1] >= threshold):
        place, depth = tape.goes_on(place, depth)
        draft = tape.draft(place)
        if depth == len(draft.weights):
            break
        right += len(weights) == right and depth < draft.right
        weights.append(draft.weights[depth])
        depth += 1
    return weights, right


def tree(tape: Tape, place: int, nodes: int, cap: int) -> tuple[int, int]:
    """Medusa's best tree of so many nodes, at most ``cap`` deep: how many it has, and how many of a path are right."""
    levels = list(tape.heads(place))[:cap]
    first = levels[0][0] if levels else ()
    waiting: list[tuple[float, tuple[int, ...]]] = [(-weight, (at,)) for at, weight in enumerate(first)]
    heapify(waiting)
    right = taken = 0
    while waiting and taken < nodes:
        negative, path = heappop(waiting)
        taken += 1
        if all(at == levels[depth][1] for depth, at in enumerate(path)):
            right = len(path)
        if len(path) < len(levels):
            for at, weight in enumerate(levels[len(path)][0]):
                heappush(waiting, (negative * weight, (*path, at)))
    return taken, right


def tau(found: Sequence[tuple[int, int]]) -> float:
    """Tokens a round, its own included, of rounds as drafted and accepted tokens."""
    return 1 + sum(accepted for _, accepted in found) / len(found)
