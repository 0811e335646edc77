"""What the evaluation must show, judged from what was measured. Pure; how: see ``bench.hat.judging``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.hat.cells import RATES, WIDE_RATES
from bench.hat.judging import Check, Goal, judged
from bench.hat.looks import BASELINES, SENDS_TEXT, look
from bench.hat.records import BOUND, SENT, Place
from bench.hat.shown import around, percent_below
from bench.hat.summary import DECODE_TOKENS_S, TBT, TOKENS_S, TTFT, Measured

At = tuple[str, str]
"""Setting and data set."""

BARS = {(TTFT, "ushape-full"): 0.46, (TBT, "ushape-full"): 0.23, (TBT, "ushape"): 0.23}
"""What HAT's delay may be at most of another method's: 54 % below in TTFT and 77 % in TBT are the most that the paper
has against any baseline. Against every other one it has to be below."""

UNLOADED_OVER_BOUND = 1.10
ROUND_TRIPS = {20.0: 0.8, 50.0: 0.6}
HELPS = (
    ("PC", "none", "pc", TTFT),
    ("PC", "sd", "sd+pc", TTFT),
    ("PC", "none", "pc", TBT),
    ("PC", "sd", "sd+pc", TBT),
    ("SD", "none", "sd", TBT),
    ("SD", "pc", "sd+pc", TBT),
    ("PD", "sd", "sd+pd", TBT),
    ("PD", "sd+pc", "sd+pc+pd", TBT),
)
"""What Table 5 says helps: strategy, without it, with it, what falls."""


def judge(measured: Measured) -> list[Goal]:
    """Every goal, for every setting and data set where it applies."""
    kinds: dict[str, Callable[[Measured, At], list[Goal]]] = {
        "rates": _delays, "unloaded": _unloaded, "ablation": _strategies, "rtt": _round_trips
    }  # fmt: skip
    return [
        goal
        for setting, dataset in measured.pairs()
        for experiment, each in kinds.items()
        if measured.select(experiment=experiment, setting=setting, dataset=dataset)
        for goal in each(measured, (setting, dataset))
    ]


def against(measured: Measured, base: str, at: At, rate: float, delay: str) -> Check:
    """HAT against another method at a rate."""
    ours, other = (Place("rates", *at, method, rate) for method in ("hat", base))
    bar = BARS.get((delay, base), 1.0)
    return Check(f"{rate:g} requests/s", (ours, other), measured.ratio(ours, other, delay), bar, delay, delay)


def wanted(bar: float) -> str:
    """A bar of a ratio of delays, in words."""
    return f"at least {100 * (1 - bar):g} % below" if bar < 1 else "below"


def _rates(measured: Measured, at: At) -> list[float]:
    """The rates that were measured, and those planned, unless none of these was measured at all."""
    setting, dataset = at
    rates = measured.values("rate", experiment="rates", setting=setting, dataset=dataset, method="hat")
    planned = (RATES if setting == "demo" else WIDE_RATES).get(dataset, ())
    return sorted({*rates, *planned}) if set(planned) & set(rates) else rates


def _delays(measured: Measured, at: At) -> list[Goal]:
    middle, rates = measured.middle_rate(*at), _rates(measured, at)
    if middle is None:
        return []
    every, here = ("at every rate", "at the middle rate") if len(rates) > 1 else ("at the one rate measured",) * 2
    goals = []
    for base in ("ushape-full", "ushape"):
        check = against(measured, base, at, middle, TTFT)
        plain = measured.ratio(replace(check.places[0], method="hat-plain"), check.places[1], TTFT)
        notes = [f"with its rows not packed: {percent_below(plain)} % below"] if plain else []
        name = f"TTFT below {look(base).label}, {here}"
        goals.append(judged(measured, at, name, wanted(check.bar), [check], notes))
    for base in ("ushape-full", "ushape"):
        checks = [against(measured, base, at, rate, TBT) for rate in rates]
        goals.append(judged(measured, at, f"TBT below {look(base).label}, {every}", wanted(BARS[TBT, base]), checks))
    groups: dict[str, tuple[str, ...]] = {"that keep text on the device": BASELINES}
    if measured.select(experiment="rates", setting=at[0], dataset=at[1], method=SENDS_TEXT):
        groups[f"and of {look(SENDS_TEXT).label}"] = (*BASELINES, SENDS_TEXT)
    for which, bases in groups.items():
        checks = [
            replace(check, bar=1.0, label=f"{look(base).label}, {check.label}")
            for base in bases
            for check in (against(measured, base, at, rate, TBT) for rate in rates)
        ]
        name = f"TBT best of all baselines {which}, {every}"
        goals.append(judged(measured, at, name, "below each", checks, worst=True))
    return goals


def _unloaded(measured: Measured, at: At) -> list[Goal]:
    """Against the upload of rows as they are, which whoever does not pack them needs, and of what is really sent."""
    (ours, plain), goals = (Place("unloaded", *at, each) for each in ("hat", "hat-plain")), []
    for bound, of in ((BOUND, "the prompt's rows as they are"), (SENT, "what it sends")):
        ratio = measured.ratio(ours, ours, TTFT, under=bound)
        check = Check("one device", (ours,), ratio, UNLOADED_OVER_BOUND, TTFT, bound, times=True)
        unpacked = measured.ratio(plain, plain, TTFT, under=bound)
        notes = [f"with its rows not packed: {around(unpacked, digits=2)} times"] if unpacked else []
        name = f"TTFT of one unloaded device over the upload of {of}"
        goals.append(judged(measured, at, name, f"at most {UNLOADED_OVER_BOUND:.2f} times", [check], notes))
    return goals


def _strategies(measured: Measured, at: At) -> list[Goal]:
    checks = []
    for rate in measured.values("rate", experiment="ablation", setting=at[0], dataset=at[1]):
        for strategy, without, given, delay in HELPS:
            ours, other = (Place("ablation", *at, method, rate) for method in (given, without))
            label = f"{strategy} added to {look(without).label}, {'TTFT' if delay == TTFT else 'TBT'}"
            checks.append(Check(label, (ours, other), measured.ratio(ours, other, delay), 1.0, delay, delay))
    return [judged(measured, at, "SD, PC and PD each help what Table 5 says", "each below without it", checks)]


def _round_trips(measured: Measured, at: At) -> list[Goal]:
    """Of speed while decoding; that of whole answers, which wait for their first token too, is told beside it."""
    near = Place("rtt", *at, "hat")
    checks, whole = [], []
    for rtt_ms, share in ROUND_TRIPS.items():
        far, label = replace(near, rtt_ms=rtt_ms), f"{rtt_ms:g} ms"
        ratio = measured.ratio(far, near, DECODE_TOKENS_S)
        checks.append(Check(label, (far, near), ratio, share, DECODE_TOKENS_S, speeds=True, times=True))
        if ratio := measured.ratio(far, near, TOKENS_S):
            whole.append(f"{label}: {around(ratio, digits=2)} times")
    bars = ", ".join(f"at least {share:g} times at {rtt_ms:g} ms" for rtt_ms, share in ROUND_TRIPS.items())
    name = "tokens a second while decoding over a round trip, against our own at 0 ms"
    return [judged(measured, at, name, bars, checks, [f"of whole answers: {'; '.join(whole)}"] * bool(whole))]
