"""What in the gain over U-shape comes from which choice, as shares of the whole. Pure.

A gain is told as a chain from U-shape with full download to HAT: each term is what one choice takes away from a delay
on top of the choices before it, measured within one repeat. Order matters, since chunks hide what the download of
unneeded rows costs, and once it is left out there is nothing to hide. So there are two chains: the paper's order, where
the download is left out last, and the one where it is left out first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bench.hat.records import Place
from bench.hat.summary import TBT, TTFT, Measured, Spread, spread

OURS = "our drafting and scheduling"
PACKED = "rows packed"
DOWNLOAD = "download of the last row only"
CHAINS: Mapping[str, tuple[tuple[str, tuple[str, str], tuple[str, str]], ...]] = {
    "the paper's order": (
        ("prompt chunks (PC)", ("ablation", "none"), ("ablation", "pc")),
        ("drafting (SD)", ("ablation", "pc"), ("ablation", "sd+pc")),
        ("drafting on while waiting (PD)", ("ablation", "sd+pc"), ("ablation", "sd+pc+pd")),
        (DOWNLOAD, ("ablation", "sd+pc+pd"), ("rates", "hat-paper")),
        (OURS, ("rates", "hat-paper"), ("rates", "hat-plain")),
        (PACKED, ("rates", "hat-plain"), ("rates", "hat")),
    ),
    "the download first": (
        (DOWNLOAD, ("rates", "ushape-full"), ("rates", "ushape")),
        ("prompt chunks (PC)", ("rates", "ushape"), ("chunks", "chunk-auto")),
        ("drafting, and on while waiting (SD, PD)", ("chunks", "chunk-auto"), ("rates", "hat-paper")),
        (OURS, ("rates", "hat-paper"), ("rates", "hat-plain")),
        (PACKED, ("rates", "hat-plain"), ("rates", "hat")),
    ),
}
"""By name: choice, what was measured without it, and with it, each an experiment and a method."""

REST = "rest"
"""What the choices of a chain leave: its ends were measured twice, as ``none`` and as U-shape with full download."""

LEAST_GAIN = 0.1
"""Of the delay: a smaller gain is not shared out, since shares of next to nothing are of any size."""

DELAYS: Mapping[str, str] = {"TTFT": TTFT, "TBT": TBT}


@dataclass(frozen=True)
class Term:
    """One choice: seconds it takes away, per cent of what was there before it, and its share of the whole gain.

    The share is ``None`` where there is no gain to share: see ``Gain.shared``. ``doubted``: the machine itself was
    short in a run it rests on.
    """

    choice: str
    seconds: Spread
    own_percent: Spread | None
    share_percent: Spread | None
    doubted: bool = False


@dataclass(frozen=True)
class Gain:
    """From U-shape with full download (``before``) to HAT (``after``), in seconds, at ``rate`` requests/s.

    ``whole`` is the seconds between them, ``below`` per cent of before. ``terms`` has the rest at its end where every
    choice was measured, unless the chain starts at ``before`` itself. ``missing`` names the choices that were not
    measured. ``shared``: the gain is at least ``LEAST_GAIN`` of the delay in every repeat.
    """

    chain: str
    delay: str
    rate: float
    before: Spread
    after: Spread
    whole: Spread
    below: Spread
    terms: tuple[Term, ...]
    missing: tuple[str, ...]
    shared: bool


def gain(measured: Measured, setting: str, dataset: str, chain: str, delay: str) -> Gain | None:
    """The gain in ``delay`` (``TTFT`` or ``TBT``) along a chain, or ``None`` where HAT or U-shape was not measured.

    Everything is at the middle rate; an ablation at another rate counts as not measured.
    """
    rate = measured.middle_rate(setting, dataset)
    if rate is None:
        return None
    name = DELAYS[delay]

    def place(at: tuple[str, str]) -> Place:
        return Place(at[0], setting, dataset, at[1], rate)

    full, hat = place(("rates", "ushape-full")), place(("rates", "hat"))
    before, after = measured.spread(full, name), measured.spread(hat, name)
    wholes, over = _falls(measured, full, hat, name), measured.ratio(hat, full, name)
    whole = spread(wholes.values())
    if before is None or after is None or whole is None or over is None:
        return None
    befores = measured.numbers(full, name)
    shared = all(whole_s >= LEAST_GAIN * befores[repeat] for repeat, whole_s in wholes.items())
    terms: list[Term] = []
    missing: list[str] = []
    falls: list[dict[int, float]] = []
    for choice, without, given in CHAINS[chain]:
        fall = _falls(measured, place(without), place(given), name)
        falls.append(fall)
        seconds = spread(fall.values())
        if seconds is None:
            missing.append(choice)
            continue
        ratio = measured.ratio(place(given), place(without), name)
        own, share = ratio.below if ratio else None, _share(fall, wholes) if shared else None
        terms.append(Term(choice, seconds, own, share, bool(measured.bottlenecks([place(without), place(given)]))))
    if not missing and place(CHAINS[chain][0][1]) != full:
        rest = {
            repeat: whole_s - sum(fall[repeat] for fall in falls)
            for repeat, whole_s in wholes.items()
            if all(repeat in fall for fall in falls)
        }
        if left := spread(rest.values()):
            doubted = any(term.doubted for term in terms)
            terms.append(Term(REST, left, None, _share(rest, wholes) if shared else None, doubted))
    return Gain(chain, delay, rate, before, after, whole, over.below, tuple(terms), tuple(missing), shared)


def gains(measured: Measured, setting: str, dataset: str) -> list[Gain]:
    """Every chain in every delay, of those of which at least half the choices were measured."""
    found = (gain(measured, setting, dataset, chain, delay) for chain in CHAINS for delay in DELAYS)
    return [each for each in found if each is not None and 2 * len(each.missing) <= len(CHAINS[each.chain])]


def rests_on(measured: Measured, setting: str, dataset: str) -> list[Place]:
    """The places that the chains are made of, as far as measured."""
    rate = measured.middle_rate(setting, dataset)
    ends = {end for chain in CHAINS.values() for _, *both in chain for end in both} | {("rates", "hat")}
    places = (Place(experiment, setting, dataset, method, rate or 0.0) for experiment, method in sorted(ends))
    return [place for place in places if measured.repeats(place)]


def _falls(measured: Measured, without: Place, given: Place, name: str) -> dict[int, float]:
    """How much lower a number is with a choice than without it, by repeat."""
    return {repeat: -more for repeat, more in measured.changes(without, given, name).items()}


def _share(parts: Mapping[int, float], wholes: Mapping[int, float]) -> Spread | None:
    """Per cent of the whole, within each repeat that has both."""
    return spread(100 * parts[repeat] / wholes[repeat] for repeat in sorted(parts.keys() & wholes.keys()))
