"""What the paper on HAT says in figures: its tables, and the numbers of its plots that its text gives.

The paper's U-shape is ``ushape-full`` here: its times suggest a download of all deep rows of the prompt. Plots whose
points the text does not give are not read off: what stands here was printed as a number.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BASE = "ushape-full"
"""The paper's U-shape, by our name."""

SAME: Mapping[str, str] = {"hat-paper": "hat"}
"""Methods of ours that the paper has under another name: ours as the paper describes it, and ours, are both its HAT."""

_ORDER = ("hat", "u-sarathi", "u-medusa", BASE)
_Key = tuple[str, str, str]
"""Experiment, data set, delay."""


@dataclass(frozen=True)
class Speculation:
    """A row of Table 4: parameters that were trained, tokens a round, and decoding against U-shape."""

    parameters: int
    accept: float
    speedup: float


TABLE_4: Mapping[str, Mapping[str, Speculation]] = {
    "specbench": {
        BASE: Speculation(0, 1.00, 1.00),
        "u-medusa": Speculation(591_000_000, 1.89, 1.41),
        "hat": Speculation(67_000_000, 2.06, 1.65),
    },
    "cnndm": {
        BASE: Speculation(0, 1.00, 1.00),
        "u-medusa": Speculation(760_000_000, 1.75, 1.45),
        "hat": Speculation(105_000_000, 1.98, 1.60),
    },
}
_STRATEGIES = ("none", "pc", "sd", "sd+pd", "sd+pc", "sd+pc+pd")
_SPECBENCH = (655.6, 52.3), (384.0, 39.4), (655.3, 38.3), (657.9, 33.8), (384.3, 30.6), (384.2, 26.4)
_CNN_DM = (1989.0, 128.1), (1038.7, 74.2), (1993.5, 84.3), (1992.1, 74.9), (1039.1, 49.3), (1039.9, 43.5)
TABLE_5: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "specbench": dict(zip(_STRATEGIES, _SPECBENCH, strict=True)),
    "cnndm": dict(zip(_STRATEGIES, _CNN_DM, strict=True)),
}
"""TTFT and TBT in milliseconds."""

MILLISECONDS: Mapping[_Key, tuple[float, tuple[float, ...]]] = {
    ("rates", "specbench", "ttft"): (6, (384.2, 609.2, 644.6, 646.2)),
    ("rates", "cnndm", "ttft"): (4, (1027.4, 1750.6, 2214.8, 2140.8)),
    ("stages", "specbench", "ttft"): (1, (431.4, 1080.0, 727.1, 694.0)),
    ("stages", "specbench", "tbt"): (1, (39.2, 67.5, 65.3, 88.6)),
}
"""Figures 6, 7 and 11: where on the x axis (requests/s, stages), and what HAT, Sarathi, Medusa and U-shape take."""

HAT_BELOW: Mapping[_Key, tuple[float, tuple[float, float, float]]] = {
    ("rates", "specbench", "tbt"): (4, (31.9, 22.5, 41.3)),
    ("rates", "cnndm", "tbt"): (4, (40.8, 77.2, 74.7)),
    ("stages", "cnndm", "ttft"): (4, (36.9, 40.7, 40.1)),
    ("stages", "cnndm", "tbt"): (4, (32.3, 33.9, 47.1)),
}
"""Figures 6, 7 and 12 where only this is said: how many per cent HAT is below Sarathi, Medusa and U-shape."""

FIGURE_8: Mapping[str, Mapping[str, tuple[float, float]]] = {
    "specbench": dict(zip(_ORDER, ((6.8, 1.3), (6.5, 1.2), (10.0, 8.1), (8.4, 7.1)), strict=True)),
    "cnndm": dict(zip(_ORDER, ((12.4, 1.1), (11.9, 3.4), (23.3, 27.5), (18.9, 24.6)), strict=True)),
}
"""What a step takes one of four GPUs, and its standard deviation, ms."""

FIGURES_9_10: Mapping[str, tuple[float, float, Mapping[str, tuple[float, float]]]] = {
    "specbench": (
        350,
        0.5,
        dict(zip(_ORDER, ((100.0, 489.3), (76.8, 565.0), (78.8, 659.8), (86.6, 786.1)), strict=True)),
    ),
    "cnndm": (
        300,
        0.9,
        dict(zip(_ORDER, ((100.0, 1352.7), (64.7, 1561.5), (68.9, 3109.6), (76.3, 3357.8)), strict=True)),
    ),
}
"""A prefill SLA in ms, a share of requests, and for each method: per cent of requests within that SLA, and the decode
SLA in ms that this share of them meets."""


@dataclass(frozen=True)
class Below:
    """How many per cent a method is below U-shape, as the paper's numbers have it, and where on the x axis."""

    percent: float
    at: float


def below_base(experiment: str, dataset: str, method: str, delay: str) -> Below | None:
    """What follows from the text for a method against U-shape in ``delay`` (``ttft`` or ``tbt``), or ``None``.

    What HAT is below U-shape and what it is below Sarathi say what Sarathi is below U-shape.
    """
    method, key = SAME.get(method, method), (experiment, dataset, delay)
    if method not in _ORDER:
        return None
    place = _ORDER.index(method)
    if key in MILLISECONDS:
        at, ms = MILLISECONDS[key]
        return Below(100 * (1 - ms[place] / ms[-1]), at)
    if key not in HAT_BELOW:
        return None
    at, below = HAT_BELOW[key]
    hat = 1 - below[-1] / 100
    return Below(100 * (1 - (hat if method == "hat" else hat / (1 - below[place - 1] / 100))), at)
