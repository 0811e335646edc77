"""What the evaluation must show, judged from what was measured. Pure; how: see ``bench.hat.judging``."""

from __future__ import annotations

from collections.abc import Sequence

from bench.hat.cells import RATES, WIDE_RATES
from bench.hat.judging import Bar, Check, Goal, judged
from bench.hat.looks import BASELINES, look
from bench.hat.records import BOUND, SENT, Place
from bench.hat.shown import around, number, percent_below
from bench.hat.summary import DECODE_TOKENS_S, TBT, TOKENS_S, TTFT, Measured

SENDS_TEXT = "cloud"
"""The one baseline that protects no text: held against HAT apart."""

TTFT_BELOW, TBT_BELOW = 54.0, 77.0
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

LEAVES = (
    ("SD", "none", "sd", TTFT),
    ("SD", "pc", "sd+pc", TTFT),
    ("PD", "sd", "sd+pd", TTFT),
    ("PD", "sd+pc", "sd+pc+pd", TTFT),
)
"""What it leaves as it is."""


def added(strategy: str, without: str) -> str:
    """A strategy on top of others, in words."""
    return f"{strategy} added to {look(without).label}"


def judge(measured: Measured) -> list[Goal]:
    """Every goal, for every setting and data set where it applies."""
    goals: list[Goal] = []
    for setting, dataset in measured.pairs():
        if measured.middle_rate(setting, dataset) is not None:
            goals += [*_below(measured, setting, dataset), *_best(measured, setting, dataset)]
        for experiment, each in (("unloaded", _unloaded), ("ablation", _strategies), ("rtt", _round_trips)):
            if measured.select(experiment=experiment, setting=setting, dataset=dataset):
                goals += each(measured, setting, dataset)
    return goals


def never_measured(measured: Measured) -> list[str]:
    """Which experiments have no record at all."""
    needed = ("rates", "unloaded", "single", "ablation", "stages", "rtt", "traces")
    return [each for each in needed if not measured.select(experiment=each)]


def _against(
    measured: Measured, base: str, setting: str, dataset: str, at: Sequence[float], name: str, floor: float, label: str
) -> list[Check]:
    """HAT against another method at each of these rates; ``floor``: per cent it has to be below it at least."""
    found = []
    for rate in at:
        ours, other = (Place("rates", setting, dataset, method, rate) for method in ("hat", base))
        found.append(
            Check(
                label.format(rate=rate),
                (ours, other),
                measured.ratio(ours, other, name),
                lambda median: 100 * (1 - median) >= floor if floor else median < 1,
                lambda ratio: f"{percent_below(ratio)} %",
                Bar(name, name, 1 - floor / 100),
            )
        )
    return found


def _rates(measured: Measured, setting: str, dataset: str) -> list[float]:
    """The rates that were measured, and those planned, unless none of these was measured at all."""
    rates = measured.values("rate", experiment="rates", setting=setting, dataset=dataset)
    planned = (RATES if setting == "demo" else WIDE_RATES).get(dataset, ())
    return sorted({*rates, *planned}) if set(planned) & set(rates) else rates


def _at(which: str, rates: Sequence[float]) -> str:
    """``every`` or ``the middle`` of these rates; of one there is neither."""
    return f"at {which} rate" if len(rates) > 1 else "at the one rate measured"


def _below(measured: Measured, setting: str, dataset: str) -> list[Goal]:
    middle, rates = measured.middle_rate(setting, dataset), _rates(measured, setting, dataset)
    assert middle is not None
    first = (
        ("ushape-full", f"at least {TTFT_BELOW:g} % below", TTFT_BELOW),
        ("ushape", "below", 0.0),
    )
    label = "{rate:g} requests/s"
    goals = [
        judged(
            measured, setting, dataset, f"TTFT below {look(base).label}, {_at('the middle', rates)}", wanted,
            _against(measured, base, setting, dataset, [middle], TTFT, floor, label),
            _unpacked(measured, base, setting, dataset, middle),
        )
        for base, wanted, floor in first
    ]  # fmt: skip
    return goals + [
        judged(
            measured, setting, dataset, f"TBT below {look(base).label}, {_at('every', rates)}",
            f"at least {TBT_BELOW:g} % below",
            _against(measured, base, setting, dataset, rates, TBT, TBT_BELOW, label),
        )
        for base in ("ushape-full", "ushape")
    ]  # fmt: skip


def _unpacked(measured: Measured, base: str, setting: str, dataset: str, rate: float) -> list[str]:
    """How far below it is with rows sent as they are: packing them is none of the paper's choices."""
    plain, other = (Place("rates", setting, dataset, method, rate) for method in ("hat-plain", base))
    ratio = measured.ratio(plain, other, TTFT)
    return [f"with its rows not packed: {percent_below(ratio)} % below"] if ratio else []


def _best(measured: Measured, setting: str, dataset: str) -> list[Goal]:
    """TBT against all baselines, and against the cloud that is sent text, where it was measured, too."""
    rates = _rates(measured, setting, dataset)
    groups = [(f"TBT best of all baselines that keep text on the device, {_at('every', rates)}", list(BASELINES))]
    if measured.select(experiment="rates", setting=setting, dataset=dataset, method=SENDS_TEXT):
        also = look(SENDS_TEXT).label
        groups.append((f"TBT best of all baselines and of {also}, {_at('every', rates)}", [*BASELINES, SENDS_TEXT]))
    goals = []
    for name, bases in groups:
        checks = [
            check
            for base in bases
            for check in _against(
                measured, base, setting, dataset, rates, TBT, 0.0, look(base).label + ", {rate:g} requests/s"
            )
        ]
        goals.append(judged(measured, setting, dataset, name, "below each", checks, worst=True))
    return goals


def _unloaded(measured: Measured, setting: str, dataset: str) -> list[Goal]:
    """Against the upload of rows as they are, which whoever does not pack them needs, and of what is really sent."""
    (ours, plain), goals = (Place("unloaded", setting, dataset, each) for each in ("hat", "hat-plain")), []
    for bound, of in ((BOUND, "the prompt's rows as they are"), (SENT, "what it sends")):
        check = Check(
            "one device",
            (ours,),
            measured.ratio(ours, ours, TTFT, under=bound),
            lambda median: median <= UNLOADED_OVER_BOUND,
            lambda ratio: f"{around(ratio, digits=2)} times",
            Bar(TTFT, bound, UNLOADED_OVER_BOUND),
        )
        name = f"TTFT of one unloaded device over the upload of {of}"
        wanted = f"at most {number(UNLOADED_OVER_BOUND, 2)} times"
        unpacked = measured.ratio(plain, plain, TTFT, under=bound)
        notes = [f"with its rows not packed: {around(unpacked, digits=2)} times"] if unpacked else []
        goals.append(judged(measured, setting, dataset, name, wanted, [check], notes))
    return goals


def _strategies(measured: Measured, setting: str, dataset: str) -> list[Goal]:
    checks = []
    for rate in measured.values("rate", experiment="ablation", setting=setting, dataset=dataset):
        for strategy, without, given, name in HELPS:
            ours, other = (Place("ablation", setting, dataset, method, rate) for method in (given, without))
            delay = "TTFT" if name == TTFT else "TBT"
            checks.append(
                Check(
                    f"{added(strategy, without)}, {delay}",
                    (ours, other),
                    measured.ratio(ours, other, name),
                    lambda median: median < 1,
                    lambda ratio: f"{percent_below(ratio)} %",
                )
            )
    name = "SD, PC and PD each help what Table 5 says"
    return [judged(measured, setting, dataset, name, "each below without it", checks)]


def _round_trips(measured: Measured, setting: str, dataset: str) -> list[Goal]:
    """Of speed while decoding; that of whole answers, which wait for their first token too, is told beside it."""
    near = Place("rtt", setting, dataset, "hat")
    checks, whole = [], []
    for rtt_ms, share in ROUND_TRIPS.items():
        far = Place("rtt", setting, dataset, "hat", rtt_ms=rtt_ms)
        checks.append(
            Check(
                f"{rtt_ms:g} ms",
                (far, near),
                measured.ratio(far, near, DECODE_TOKENS_S),
                lambda median, share=share: median >= share,  # type: ignore[misc]
                lambda ratio: f"{around(ratio, digits=2)} times",
            )
        )
        if ratio := measured.ratio(far, near, TOKENS_S):
            whole.append(f"{rtt_ms:g} ms: {around(ratio, digits=2)} times")
    wanted = ", ".join(f"at least {share:g} times at {rtt_ms:g} ms" for rtt_ms, share in ROUND_TRIPS.items())
    name = "tokens a second while decoding over a round trip, against our own at 0 ms"
    notes = [f"of whole answers, first token and all: {'; '.join(whole)}"] if whole else []
    return [judged(measured, setting, dataset, name, wanted, checks, notes)]
