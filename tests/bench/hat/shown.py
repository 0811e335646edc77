"""How figures are shown: a median with its spread, or a dash where there is none."""

from __future__ import annotations

from collections.abc import Collection

from bench.hat.summary import Spread

MISSING = "–"


def number(value: float, digits: int | None = None) -> str:
    """Three digits that count, or so many behind the point; never with an exponent."""
    if digits is None:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    text = f"{value:.{digits}f}"
    return text.lstrip("-") if not float(text) else text


def between(values: Collection[float], digits: int | None = None) -> str:
    """The lowest and the highest, or one where they are shown the same."""
    if not values:
        return MISSING
    return "–".join(dict.fromkeys(number(each, digits) for each in (min(values), max(values))))


def around(found: Spread | None, factor: float = 1.0, digits: int | None = None) -> str:
    """``median (low … high)``, all times ``factor``; without spread where there is one repeat."""
    if found is None:
        return MISSING
    scaled = found.line(factor)
    if digits is None:
        digits = max(0, min(len(number(each).partition(".")[2]) for each in (scaled.median, scaled.high)))
    middle = number(scaled.median, digits)
    if found.count == 1:
        return middle
    return f"{middle} ({number(scaled.low, digits)} … {number(scaled.high, digits)})"


def milliseconds(seconds: Spread | None) -> str:
    """Seconds as milliseconds."""
    return around(seconds, 1e3)


def percent_below(ratio: Spread | None) -> str:
    """A ratio as per cent below 1; a minus stands before what is above it."""
    return around(None if ratio is None else ratio.below, digits=1)
