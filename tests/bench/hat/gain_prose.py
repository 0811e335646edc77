"""Sentences about what in the gain comes from which choice, made from the figures they are about. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from statistics import fmean

from bench.hat.gains import DOWNLOAD, LEAST_GAIN, OURS, PACKED, REST, Gain, Term
from bench.hat.shown import around, number
from bench.hat.summary import Spread

APART = 5.0
"""Shares of a gain, in per cent, that are farther apart than this in every repeat are told apart."""

RESTS_ON_SHORT = " (The machine itself was short, or of another speed, in a run that this rests on.)"


def of_gain(gain: Gain) -> str:
    """One chain in one delay as prose: the whole, then the choices from the largest to the smallest."""
    whole = gain.below.median
    change = f"{number(abs(whole), 1)} % {'below' if whole >= 0 else 'above'}"
    parts = [
        f"{gain.delay}, {gain.chain}: HAT takes {around(gain.after, 1e3)} ms where U-shape with all rows down takes "
        f"{around(gain.before, 1e3)}, {change}."
    ]
    if not gain.shared:
        parts.append(
            f"HAT was not {100 * LEAST_GAIN:g} % below U-shape in every repeat, so there is no gain to share out."
        )
    else:
        shares = [(term.choice, term.share_percent) for term in gain.terms if term.share_percent is not None]
        ranked = sorted(shares, key=lambda each: -each[1].median)
        said = [f"{_choice(choice)} {_share(share)}" for choice, share in ranked]
        if said:
            parts.append(f"Of that gain, by share: {'; '.join(said)}.")
    if gain.missing:
        parts.append(f"Not measured: {', '.join(gain.missing)}.")
    return " ".join(parts)


def in_short(found: Sequence[Gain]) -> list[str]:
    """For each delay and order the median shares that each choice has of the gain, largest first; with ``*`` where a
    run was in doubt.

    found: of all models and prompts together, in their order, which is that of the figures.
    """
    said = []
    delays, orders = (dict.fromkeys(getattr(each, name) for each in found) for name in ("delay", "chain"))
    for delay, chain in product(delays, orders):
        here = [each for each in found if (each.delay, each.chain) == (delay, chain) and each.shared]
        shares: dict[str, list[tuple[float, bool]]] = {}
        for each in here:
            for term in each.terms:
                if term.share_percent is not None and term.choice != REST:
                    shares.setdefault(term.choice, []).append((term.share_percent.median, term.doubted))
        ranked = sorted(shares.items(), key=lambda each: -fmean(median for median, _ in each[1]))
        listed = [
            f"{choice} {', '.join(number(median, 0) + '*' * doubted for median, doubted in of)} %"
            for choice, of in ranked
        ]
        if listed:
            below = ", ".join(number(each.below.median, 0) for each in here)
            said.append(f"{delay}, {below} % below U-shape with all rows down, {chain}: {'; '.join(listed)}.")
    return said


def of_download(paper_order: Gain | None, download_first: Gain | None) -> str:
    """What leaving unneeded rows out is worth alone, and what it is worth where chunks hide it; '' if not measured."""
    alone, hidden = (_term(gain, DOWNLOAD) for gain in (download_first, paper_order))
    if alone is None or hidden is None or alone.share_percent is None or hidden.share_percent is None:
        return ""
    first, last = alone.share_percent, hidden.share_percent
    sentence = (
        f"Leaving out the download of rows nobody needs is {_share(alone.share_percent)} of the gain in TTFT when it "
        f"comes first, and {_share(hidden.share_percent)} when chunks and drafting are there before it."
    )
    if first.low > last.high + APART:
        sentence += " So much of what chunks gain against that U-shape is a download that need not be."
    elif last.low > first.high + APART:
        sentence += " So chunks do not hide that download: it costs more where they are."
    elif max(first.high, last.high) < min(first.low, last.low) + 2 * APART:
        sentence += " So chunks and that download hardly touch each other."
    return sentence + (RESTS_ON_SHORT if alone.doubted or hidden.doubted else "")


def of_ours(gains: Sequence[Gain], apart: Mapping[str, float]) -> list[str]:
    """What we add to the paper, by delay, of the chain that has it in most repeats.

    apart: by delay, per cent by which the same differed from itself; less than that, or one repeat, tells nothing.
    """
    found = []
    for delay, choice in product(dict.fromkeys(gain.delay for gain in gains), (OURS, PACKED)):
        terms = [term for gain in gains if gain.delay == delay and (term := _term(gain, choice)) is not None]
        known = [(each.own_percent, each.doubted) for each in terms if each.own_percent is not None]
        if not known:
            continue
        own, doubted = max(known, key=lambda each: each[0].count)
        bar, added = apart.get(delay, 0.0), f"{choice}, which the paper has not,"
        if own.count > 1 and own.low > bar:
            said = f"With {added} {delay} is {around(own, digits=1)} % lower."
        elif own.count > 1 and own.high < -bar:
            said = f"With {added} {delay} is {around(own.line(-1.0), digits=1)} % higher."
        else:
            said = f"Whether {delay} is lower with {added} is not sure: {around(own, digits=1)} % below."
        found.append(said + (RESTS_ON_SHORT if doubted else ""))
    return found


def _term(gain: Gain | None, choice: str) -> Term | None:
    return None if gain is None else next((term for term in gain.terms if term.choice == choice), None)


def _choice(choice: str) -> str:
    return "what the choices leave over" if choice == REST else choice


def _share(share: Spread) -> str:
    return f"{around(share, digits=1)} %"
