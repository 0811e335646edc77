"""In which order the pairs of a group measure their links, so that no member is in two of them at once. Pure."""

from __future__ import annotations


def turns(size: int) -> list[list[tuple[int, int]]]:
    """Every pair of members once, in turns of pairs that have no member in common; as few turns as can be.

    One member stays where it is while the others go round a table, and who sit opposite each other are pairs.
    """
    seats = list(range(size + size % 2))
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        pairs = zip(seats[:half], reversed(seats[half:]), strict=True)
        # The seat of one too many is nobody's.
        found.append([(min(pair), max(pair)) for pair in pairs if max(pair) < size])
        seats.insert(1, seats.pop())
    return found
