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


@dataclass(frozen=True)
class Said:
    """One number of the paper.

    ``at`` is where on the plot's x axis it stands: requests/s, prompt or pipeline length, chunk size, milliseconds of
    an SLA or the per cent of requests that meet one; 0 where there is none. ``than`` is the method it compares with, ''
    where it stands for itself.
    """

    where: str
    dataset: str
    method: str
    quantity: str
    value: float
    at: float = 0.0
    than: str = ""


@dataclass(frozen=True)
class Speculation:
    """A row of Table 4: parameters that were trained, tokens a round, and decoding against U-shape."""

    parameters: int
    accept: float
    speedup: float


@dataclass(frozen=True)
class Delays:
    """A row of Table 5, in milliseconds."""

    ttft_ms: float
    tbt_ms: float


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
TABLE_5: Mapping[str, Mapping[str, Delays]] = {
    "specbench": {
        "none": Delays(655.6, 52.3),
        "pc": Delays(384.0, 39.4),
        "sd": Delays(655.3, 38.3),
        "sd+pd": Delays(657.9, 33.8),
        "sd+pc": Delays(384.3, 30.6),
        "sd+pc+pd": Delays(384.2, 26.4),
    },
    "cnndm": {
        "none": Delays(1989.0, 128.1),
        "pc": Delays(1038.7, 74.2),
        "sd": Delays(1993.5, 84.3),
        "sd+pd": Delays(1992.1, 74.9),
        "sd+pc": Delays(1039.1, 49.3),
        "sd+pc+pd": Delays(1039.9, 43.5),
    },
}


def _all(where: str, dataset: str, quantity: str, at: float, **values: float) -> tuple[Said, ...]:
    names = {"hat": "hat", "sarathi": "u-sarathi", "medusa": "u-medusa", "ushape": BASE}
    return tuple(Said(where, dataset, names[name], quantity, value, at) for name, value in values.items())


def _reduced(
    where: str, dataset: str, quantity: str, at: float, sarathi: float, medusa: float, ushape: float
) -> tuple[Said, ...]:
    """How many per cent HAT is below each of the others."""
    others = {"u-sarathi": sarathi, "u-medusa": medusa, BASE: ushape}
    return tuple(Said(where, dataset, "hat", quantity, value, at, other) for other, value in others.items())


FIGURE_6: tuple[Said, ...] = (
    *_all("Fig. 6(a)", "specbench", "ttft_ms", 6, hat=384.2, sarathi=609.2, medusa=644.6, ushape=646.2),
    *_reduced("Fig. 6(b)", "specbench", "tbt_percent_below", 4, 31.9, 22.5, 41.3),
)
FIGURE_7: tuple[Said, ...] = (
    *_all("Fig. 7(a)", "cnndm", "ttft_ms", 4, hat=1027.4, sarathi=1750.6, medusa=2214.8, ushape=2140.8),
    *_reduced("Fig. 7(b)", "cnndm", "tbt_percent_below", 4, 40.8, 77.2, 74.7),
)
FIGURE_8: tuple[Said, ...] = (
    *_all("Fig. 8(a)", "specbench", "step_ms", 0, hat=6.8, sarathi=6.5, medusa=10.0, ushape=8.4),
    *_all("Fig. 8(a)", "specbench", "step_std_ms", 0, hat=1.3, sarathi=1.2, medusa=8.1, ushape=7.1),
    *_all("Fig. 8(b)", "cnndm", "step_ms", 0, hat=12.4, sarathi=11.9, medusa=23.3, ushape=18.9),
    *_all("Fig. 8(b)", "cnndm", "step_std_ms", 0, hat=1.1, sarathi=3.4, medusa=27.5, ushape=24.6),
)
FIGURE_9: tuple[Said, ...] = (
    *_all("Fig. 9(a)", "specbench", "compliance_percent", 350, hat=100.0, sarathi=76.8, medusa=78.8, ushape=86.6),
    *_all("Fig. 9(b)", "specbench", "decode_sla_ms", 50, hat=489.3, sarathi=565.0, medusa=659.8, ushape=786.1),
)
FIGURE_10: tuple[Said, ...] = (
    *_all("Fig. 10(a)", "cnndm", "compliance_percent", 300, hat=100.0, sarathi=64.7, medusa=68.9, ushape=76.3),
    *_all("Fig. 10(b)", "cnndm", "decode_sla_ms", 90, hat=1352.7, sarathi=1561.5, medusa=3109.6, ushape=3357.8),
)
FIGURE_11: tuple[Said, ...] = (
    *_all("Fig. 11(a)", "specbench", "ttft_ms", 1, hat=431.4, sarathi=1080.0, medusa=727.1, ushape=694.0),
    *_all("Fig. 11(b)", "specbench", "tbt_ms", 1, hat=39.2, sarathi=67.5, medusa=65.3, ushape=88.6),
)
FIGURE_12: tuple[Said, ...] = (
    *_reduced("Fig. 12(a)", "cnndm", "ttft_percent_below", 4, 36.9, 40.7, 40.1),
    *_reduced("Fig. 12(b)", "cnndm", "tbt_percent_below", 4, 32.3, 33.9, 47.1),
)


@dataclass(frozen=True)
class Below:
    """How many per cent a method is below U-shape, as the paper's numbers have it, and where on the x axis."""

    percent: float
    at: float


def value(figure: tuple[Said, ...], dataset: str, method: str, quantity: str) -> Said | None:
    """The number the text gives for a method itself, or ``None``."""
    method = SAME.get(method, method)
    fitting = (each for each in figure if (each.dataset, each.method, each.quantity) == (dataset, method, quantity))
    return next((each for each in fitting if not each.than), None)


def below_base(figure: tuple[Said, ...], dataset: str, method: str, delay: str) -> Below | None:
    """What follows from the text for a method against U-shape in ``delay`` (``ttft`` or ``tbt``), or ``None``.

    From milliseconds where they are given, else from how far HAT is below each of the others: what HAT is below U-shape
    and what it is below Sarathi say what Sarathi is below U-shape.
    """
    method = SAME.get(method, method)
    ours, base = (value(figure, dataset, name, f"{delay}_ms") for name in (method, BASE))
    if ours is not None and base is not None:
        return Below(100 * (1 - ours.value / base.value), ours.at)
    reduced = {
        each.than: each
        for each in figure
        if (each.dataset, each.quantity, each.method) == (dataset, f"{delay}_percent_below", "hat")
    }
    if BASE not in reduced or (method not in reduced and method != "hat"):
        return None
    hat = 1 - reduced[BASE].value / 100
    share = hat if method == "hat" else hat / (1 - reduced[method].value / 100)
    return Below(100 * (1 - share), reduced[BASE].at)
