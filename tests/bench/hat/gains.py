"""What in the gain over U-shape comes from which choice, as shares of the whole. Pure.

A gain is told as a chain from U-shape with full download to HAT: each term is what one choice takes away from a delay
on top of the choices before it, measured within one repeat. Order matters, since chunks hide what the download of
unneeded rows costs, and once it is left out there is nothing to hide. So there are two chains: the paper's order, where
the download is left out last, and the one where it is left out first. The wide model is measured with fewer choices
alone, so its chain has fewer terms.

Where some repeats have every term of a chain, the chain is of these alone: then within each repeat its terms add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

from bench.hat.records import Place
from bench.hat.summary import TBT, TTFT, Measured, Spread, spread

OURS = "our drafting and scheduling"
PACKED = "rows packed"
DOWNLOAD = "download of the last row only"
Chain = tuple[tuple[str, tuple[str, str], tuple[str, str]], ...]
"""Choice, what was measured without it, and with it, each an experiment and a method."""

PAPER_ORDER, DOWNLOAD_FIRST = "the paper's order", "the download first"
FIRST: Chain = ((DOWNLOAD, ("rates", "ushape-full"), ("rates", "ushape")),)
LAST: Chain = (
    (OURS, ("rates", "hat-paper"), ("rates", "hat-plain")),
    (PACKED, ("rates", "hat-plain"), ("rates", "hat")),
)
DEMO: Mapping[str, Chain] = {
    PAPER_ORDER: (
        ("prompt chunks (PC)", ("ablation", "none"), ("ablation", "pc")),
        ("drafting (SD)", ("ablation", "pc"), ("ablation", "sd+pc")),
        ("drafting on while waiting (PD)", ("ablation", "sd+pc"), ("ablation", "sd+pc+pd")),
        (DOWNLOAD, ("ablation", "sd+pc+pd"), ("rates", "hat-paper")),
        *LAST,
    ),
    DOWNLOAD_FIRST: (
        *FIRST,
        ("prompt chunks (PC)", ("rates", "ushape"), ("chunks", "chunk-auto")),
        ("drafting, and on while waiting (SD, PD)", ("chunks", "chunk-auto"), ("rates", "hat-paper")),
        *LAST,
    ),
}
WIDE: Mapping[str, Chain] = {
    DOWNLOAD_FIRST: (
        *FIRST,
        ("chunks, drafting, and on while waiting (PC, SD, PD)", ("rates", "ushape"), ("rates", "hat-paper")),
        *LAST,
    ),
}

REST = "rest"
"""What the choices of a chain leave: its ends were measured twice, as ``none`` and as U-shape with full download."""

LEAST_GAIN = 0.1
"""Of the delay: a smaller gain is not shared out, since shares of next to nothing are of any size."""

DELAYS: Mapping[str, str] = {"TTFT": TTFT, "TBT": TBT}


@dataclass(frozen=True)
class Term:
    """One choice: seconds it takes away, per cent of what was there before it, and its share of the whole gain.

    The share is ``None`` where there is no gain to share: see ``Gain.shared``. ``doubted``: the machine itself was
    short in a run it rests on, or of another speed in one of them. ``mean_s``: of the repeats, seconds too; means add
    up where medians do not.
    """

    choice: str
    seconds: Spread
    mean_s: float
    own_percent: Spread | None
    share_percent: Spread | None
    doubted: bool = False


@dataclass(frozen=True)
class Gain:
    """From U-shape with full download (``before``) to HAT (``after``), in seconds, at ``rate`` requests/s.

    ``whole`` is the seconds between them, ``below`` per cent of before, ``before_s`` and ``after_s`` means. ``terms``
    has the rest at its end where every choice was measured, unless the chain starts at ``before`` itself. ``missing``
    names the choices that were not measured, ``choices`` has all in order. ``shared``: the gain is at least
    ``LEAST_GAIN`` of the delay in every repeat.
    """

    chain: str
    delay: str
    rate: float
    before: Spread
    after: Spread
    whole: Spread
    below: Spread
    before_s: float
    after_s: float
    terms: tuple[Term, ...]
    missing: tuple[str, ...]
    shared: bool
    choices: tuple[str, ...]


def chains(setting: str) -> Mapping[str, Chain]:
    """A setting's chains by name."""
    return WIDE if setting == "wide" else DEMO


def gain(measured: Measured, setting: str, dataset: str, chain: str, delay: str) -> Gain | None:
    """The gain in ``delay`` (``TTFT`` or ``TBT``) along a chain, or ``None`` where HAT or U-shape was not measured.

    Everything is at the middle rate; an ablation at another rate counts as not measured.
    """
    rate = measured.middle_rate(setting, dataset)
    if rate is None or chain not in chains(setting):
        return None
    name, choices = DELAYS[delay], chains(setting)[chain]

    def place(at: tuple[str, str]) -> Place:
        return Place(at[0], setting, dataset, at[1], rate)

    full, hat = place(("rates", "ushape-full")), place(("rates", "hat"))
    wholes = _falls(measured, full, hat, name)
    falls = [_falls(measured, place(without), place(given), name) for _, without, given in choices]
    told = wholes.keys() & set.intersection(*(set(fall) for fall in falls)) or wholes.keys()
    wholes = {repeat: wholes[repeat] for repeat in sorted(told)}
    before, after = ({repeat: measured.numbers(each, name)[repeat] for repeat in wholes} for each in (full, hat))
    if not wholes:
        return None
    shared = all(whole_s >= LEAST_GAIN * before[repeat] for repeat, whole_s in wholes.items())
    terms: list[Term] = []
    missing: list[str] = []
    left = dict(wholes)
    for (choice, without, given), every in zip(choices, falls, strict=True):
        fall = {repeat: seconds for repeat, seconds in every.items() if repeat in wholes}
        if not fall:
            missing.append(choice)
            continue
        left = {repeat: left[repeat] - seconds for repeat, seconds in fall.items() if repeat in left}
        base = measured.numbers(place(without), name)
        own = spread(100 * seconds / base[repeat] for repeat, seconds in fall.items() if base[repeat] > 0)
        doubted = bool(measured.doubts([place(without), place(given)]))
        terms.append(Term(choice, _spread(fall), fmean(fall.values()), own, _share(fall, wholes, shared), doubted))
    if not missing and left and place(choices[0][1]) != full:
        doubted = any(term.doubted for term in terms)
        terms.append(Term(REST, _spread(left), fmean(left.values()), None, _share(left, wholes, shared), doubted))
    below = _spread({repeat: 100 * whole_s / before[repeat] for repeat, whole_s in wholes.items()})
    ends = (_spread(before), _spread(after), _spread(wholes), below, fmean(before.values()), fmean(after.values()))
    return Gain(chain, delay, rate, *ends, tuple(terms), tuple(missing), shared, tuple(each for each, _, _ in choices))


def gains(measured: Measured, setting: str, dataset: str) -> list[Gain]:
    """Every chain in every delay, of those of which at least half the choices were measured."""
    found = (gain(measured, setting, dataset, chain, delay) for chain in chains(setting) for delay in DELAYS)
    return [each for each in found if each is not None and len(each.missing) <= len(each.terms)]


def rests_on(measured: Measured, setting: str, dataset: str) -> list[Place]:
    """The places that the chains are made of, as far as measured."""
    rate = measured.middle_rate(setting, dataset)
    ends = {end for chain in chains(setting).values() for _, *both in chain for end in both} | {("rates", "hat")}
    places = (Place(experiment, setting, dataset, method, rate or 0.0) for experiment, method in sorted(ends))
    return [place for place in places if measured.repeats(place)]


def _falls(measured: Measured, without: Place, given: Place, name: str) -> dict[int, float]:
    """How much lower a number is with a choice than without it, by repeat."""
    return {repeat: -more for repeat, more in measured.changes(without, given, name).items()}


def _spread(values: Mapping[int, float]) -> Spread:
    """Of at least one."""
    found = spread(values.values())
    assert found is not None
    return found


def _share(parts: Mapping[int, float], wholes: Mapping[int, float], shared: bool) -> Spread | None:
    """Per cent of the whole, within each repeat; ``None`` where there is no gain to share."""
    return spread(100 * part / wholes[repeat] for repeat, part in parts.items()) if shared else None
