"""What a load has shown, for people and for programs. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from service.bench.asked import NOT_SENT
from service.bench.figures import Figures, Spread

SHOWN: Final = (
    ("time to first token, ms", "ttft"),
    ("time between tokens, ms", "tbt"),
    ("mean for a further token, ms", "itl"),
    ("whole answer, ms", "e2e"),
)
PERCENTILES: Final = ("p50", "p90", "p99")
TITLE: Final = max(len(title) for title, _ in SHOWN)

LATE: Final = (
    "At {rates} a second this load was late: at {rate:g} one request in a hundred was sent {late:.0f} ms or more after "
    "its time. The figures are then not the server's: run the load on a machine with more to spare, or at lower rates."
)
UNSENT: Final = "More requests were open than this process may have sockets; what was due beyond them was not sent."
UNCOUNTED: Final = "The server does not say how many tokens it has made (include_usage): events are counted instead."
ONE_PIECE: Final = (
    "At {rate:g} a second {some} of {all} answers came in one piece: how long their further tokens took is not "
    "known, and they keep no limit on it. Does the server stream, and all that is between?"
)
GIVEN_UP: Final = (
    "At {rate:g} a second {some} of {all} requests were given up: the times are those of the others, and the "
    "longest are missing."
)


def table(found: Sequence[Figures], limits: Mapping[str, float]) -> str:
    """A column for each rate, a row for each figure."""
    rows = [("requests a second", [f"{each.rate:g}" for each in found])]
    rows += [("sent", [str(each.sent) for each in found]), ("answered", [str(each.answered) for each in found])]
    if any(each.failed for each in found):
        rows.append(("failed", [str(sum(each.failed.values())) for each in found]))
    if any(each.given_up for each in found):
        rows.append(("given up", [str(each.given_up) for each in found]))
    for title, name in SHOWN:
        for label in PERCENTILES:
            rows.append((f"{title:<{TITLE}}  {label}", [_ms(getattr(each, name), label) for each in found]))
            title = ""
    rows.append(("answers a second", [f"{each.answered_s:.2f}" for each in found]))
    rows.append(("tokens a second", [f"{each.tokens_s:.1f}" for each in found]))
    if limits:
        rows.append(("good answers a second", [f"{each.good_s:.2f}" for each in found]))
        rows.append(("  of all that were due", [f"{each.good / each.due:.0%}" for each in found]))
    rows.append((f"{'sent late, ms':<{TITLE}}  p99", [_ms(each.late, "p99") for each in found]))
    left = max(len(name) for name, _ in rows)
    right = max(len(cell) for _, cells in rows for cell in cells)
    lines = [f"{name:<{left}}  " + "  ".join(f"{cell:>{right}}" for cell in cells) for name, cells in rows]
    return "\n".join([*lines, *([f"Good answers keep {words(limits)}."] if limits else [])])


def remarks(found: Sequence[Figures]) -> list[str]:
    """What has to be known beside the figures."""
    lines = []
    for each in found:
        for error, count in each.failed.items():
            reason = f": {each.reasons[error]}" if error in each.reasons else ""
            lines.append(f"At {each.rate:g} a second {count} failed with {error}{reason}")
    late = [each for each in found if each.too_late and each.late is not None and NOT_SENT not in each.failed]
    if late:
        worst = max(late, key=lambda each: each.late.p99 if each.late is not None else 0.0)
        assert worst.late is not None
        rates = ", ".join(f"{each.rate:g}" for each in late)
        lines.append(LATE.format(rates=rates, rate=worst.rate, late=worst.late.p99))
    if any(NOT_SENT in each.failed for each in found):
        lines.append(UNSENT)
    if any(each.answered and not each.counted for each in found):
        lines.append(UNCOUNTED)
    for each in found:
        if each.given_up:
            lines.append(GIVEN_UP.format(rate=each.rate, some=each.given_up, all=each.sent))
        if each.in_one_piece:
            lines.append(ONE_PIECE.format(rate=each.rate, some=each.in_one_piece, all=each.answered))
    return lines


def facts(found: Sequence[Figures]) -> list[dict[str, Any]]:
    """The figures for programs, a rate each."""
    return [asdict(each) for each in found]


def words(limits: Mapping[str, float]) -> str:
    """Limits in a few words."""
    return ", ".join(f"{name} ≤ {limit:g} ms" for name, limit in limits.items())


def _ms(spread: Spread | None, field: str) -> str:
    return "–" if spread is None else f"{getattr(spread, field):.1f}"
