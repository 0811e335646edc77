"""What the evaluation must show, judged from what was measured. Pure; how: see ``bench.hat.judging``."""

from __future__ import annotations

from collections.abc import Sequence

from bench.hat.judging import Check, Goal, judged
from bench.hat.looks import BASELINES, look
from bench.hat.records import Place
from bench.hat.shown import around, number, percent_below
from bench.hat.summary import TBT, TTFT, Measured

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


def judge(measured: Measured) -> list[Goal]:
    """Every goal, for every setting and data set where it applies."""
    goals: list[Goal] = []
    for setting, dataset in measured.pairs():
        if measured.middle_rate(setting, dataset) is not None:
            goals += _delays(measured, setting, dataset)
        for experiment, one in (("unloaded", _unloaded), ("ablation", _strategies), ("rtt", _round_trips)):
            if measured.select(experiment=experiment, setting=setting, dataset=dataset):
                goals.append(one(measured, setting, dataset))
    return goals


def never_measured(measured: Measured) -> list[str]:
    """Which experiments have no record at all."""
    needed = ("rates", "unloaded", "single", "ablation", "stages", "rtt", "traces")
    return [each for each in needed if not measured.select(experiment=each)]


def _delays(measured: Measured, setting: str, dataset: str) -> list[Goal]:
    rates = measured.values("rate", experiment="rates", setting=setting, dataset=dataset)
    middle = measured.middle_rate(setting, dataset)
    assert middle is not None

    def against(
        base: str, at: Sequence[float], name: str, floor: float, label: str = "{rate:g} requests/s"
    ) -> list[Check]:
        found = []
        for rate in at:
            ours, other = (Place("rates", setting, dataset, method, rate) for method in ("hat", base))
            ratio = measured.ratio(ours, other, name)
            found.append(
                Check(
                    label.format(rate=rate, base=look(base).label),
                    (ours, other),
                    ratio,
                    lambda median: 100 * (1 - median) >= floor if floor else median < 1,
                    lambda ratio: f"{percent_below(ratio)} %",
                )
            )
        return found

    present = {each.method for each in measured.select(experiment="rates", setting=setting, dataset=dataset)}
    rivals = [each for each in BASELINES if each in present]
    best = [check for base in rivals for check in against(base, rates, TBT, 0.0, "{base}, {rate:g} requests/s")]
    place = (setting, dataset)
    middle_name = f"at the middle rate, {middle:g} requests/s"
    goals = [
        judged(
            measured,
            *place,
            f"TTFT below {look(base).label}, {middle_name}",
            wanted,
            against(base, [middle], TTFT, floor),
        )
        for base, wanted, floor in (
            ("ushape-full", f"at least {TTFT_BELOW:g} % below", TTFT_BELOW),
            ("ushape", "below", 0.0),
        )
    ]
    goals += [
        judged(
            measured,
            *place,
            f"TBT below {look(base).label}, at every rate",
            f"at least {TBT_BELOW:g} % below",
            against(base, rates, TBT, TBT_BELOW),
        )
        for base in ("ushape-full", "ushape")
    ]
    missing = [look(each).label for each in BASELINES if each not in present]
    notes = [f"not among those measured: {', '.join(missing)}"] if missing else []
    return [
        *goals,
        judged(measured, *place, "TBT best of all baselines, at every rate", "below each", best, notes, worst=True),
    ]


def _unloaded(measured: Measured, setting: str, dataset: str) -> Goal:
    ours = Place("unloaded", setting, dataset, "hat")
    check = Check(
        "one device",
        (ours,),
        measured.ratio(ours, ours, TTFT, under="upload_bound_s"),
        lambda median: median <= UNLOADED_OVER_BOUND,
        lambda ratio: f"{around(ratio, digits=2)} times",
    )
    wanted = f"at most {number(UNLOADED_OVER_BOUND, 2)} times"
    return judged(measured, setting, dataset, "TTFT of one unloaded device over the upload's bound", wanted, [check])


def _strategies(measured: Measured, setting: str, dataset: str) -> Goal:
    checks = []
    for rate in measured.values("rate", experiment="ablation", setting=setting, dataset=dataset):
        for strategy, without, given, name in HELPS:
            ours, other = (Place("ablation", setting, dataset, method, rate) for method in (given, without))
            delay = "TTFT" if name == TTFT else "TBT"
            checks.append(
                Check(
                    f"{strategy} to {without}, {delay}",
                    (ours, other),
                    measured.ratio(ours, other, name),
                    lambda median: median < 1,
                    lambda ratio: f"{percent_below(ratio)} %",
                )
            )
    return judged(
        measured, setting, dataset, "SD, PC and PD each help what Table 5 says", "each below without it", checks
    )


def _round_trips(measured: Measured, setting: str, dataset: str) -> Goal:
    near = Place("rtt", setting, dataset, "hat")
    checks = []
    for rtt_ms, share in ROUND_TRIPS.items():
        far = Place("rtt", setting, dataset, "hat", rtt_ms=rtt_ms)
        checks.append(
            Check(
                f"{rtt_ms:g} ms",
                (far, near),
                measured.ratio(far, near, "latency.tokens_s"),
                lambda median, share=share: median >= share,  # type: ignore[misc]
                lambda ratio: f"{around(ratio, digits=2)} times",
            )
        )
    wanted = ", ".join(f"at least {share:g} times at {rtt_ms:g} ms" for rtt_ms, share in ROUND_TRIPS.items())
    return judged(
        measured, setting, dataset, "tokens a second over a round trip, against our own at 0 ms", wanted, checks
    )
