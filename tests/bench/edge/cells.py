"""What is measured at once, a *cell*: one method with one shape on some devices over one bandwidth. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from bench.edge.shapes import SHAPES, Shape, longer

LOCAL, ACCELERATE, CALIBRATION = "local", "accelerate", "calibration"

ALONE = frozenset({LOCAL, ACCELERATE})
"""One device and no group."""

GB = 10**9
FREE_MBIT = 0.0
"""Links as fast as the machine has them."""

STANDARD_RUNS = 3
"""Of what others are compared with."""

REPEATS = 3
"""Headline cells are measured so often, one round of them behind the other."""

LOCAL_LAYERS, MOST_LAYERS = 4, 1 << 10

MOST_BYTES = 1 << 40


@dataclass(frozen=True)
class Environment:
    """Devices, first to last.

    Attributes:
        cores: the quota of each.
        budgets: bytes that a plan may use of each.
        links: the environment whose one device says what its links stand for; "": this one.
        faster: than that one's devices is the same device here, by its quota; links are as much faster.
        stretched: prompts are so many times as long as the paper's, so that the device with the shortest quota works
            for some periods between two barriers; products and bytes both grow with them.
    """

    title: str
    cores: tuple[float, ...]
    budgets: tuple[int, ...]
    links: str = ""
    faster: float = 1.0
    stretched: float = 1.0


_S, _M, _L = 0.403, 0.825, 1.47
"""GHz of the paper's three settings of a Raspberry Pi."""

_A, _B = 0.3675 / _M, 0.29 / _M
"""Cores that stand for a GHz in either environment: as many in all of its devices together."""

EQUAL = {2: 0.8, 3: 0.4, 4: 0.4, 5: 0.28, 6: 0.26}
"""Cores of each of so many equal devices: those that share one of two cores take at most 0.85 of it."""


def _equal(count: int) -> Environment:
    """Links are the paper's of six devices."""
    links = ("equal-6", EQUAL[count] / EQUAL[6]) if count != 6 else ("", 1.0)
    return Environment(f"{count} equal devices", (EQUAL[count],) * count, (MOST_BYTES,) * count, *links)


ENVIRONMENTS: dict[str, Environment] = {
    "two": Environment("two of tests", (0.5,) * 2, (MOST_BYTES,) * 2),
    **{f"equal-{count}": _equal(count) for count in EQUAL},
    "three": Environment("three equal devices", (EQUAL[3],) * 3, (MOST_BYTES,) * 3),
    "20-13-7": Environment("20 : 13 : 7", tuple(EQUAL[3] / 13 * at for at in (20, 13, 7)), (MOST_BYTES,) * 3, "three"),
    "A": Environment("A, four RPi-M", (_M * _A,) * 4, (3 * GB // 2,) * 4),
    "B": Environment(
        "B, 1 : 1 : 0.56 : 0.27",
        tuple(ghz * _B for ghz in (_L, _L, _M, _S)),
        (2 * GB, 2 * GB, 3 * GB // 2, GB),
        "A",
        _B / _A,
        stretched=2.25,
    ),
}


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        environment: which devices there are; all of them are busy.
        devices: how many of them are used, the first ones.
        method: see ``methods.METHODS``.
        mbit: the paper's bandwidth that the links stand for; 0: free.
        layers: of the model that is run; 0: as many as sweeps have.
        rows: of the prompt; 0: the shape's.
        new: tokens generated behind it.
        out: the share of attention heads that is left out, the same in each layer.
        runs: measured ones, not part of its name.
        repeat: which measurement of the same it is, of `REPEATS`; the first is 0.
    """

    environment: str
    shape: str
    method: str
    devices: int
    mbit: float = 500.0
    layers: int = 0
    rows: int = 0
    new: int = 0
    out: float = 0.0
    dtype: str = "float32"
    runs: int = 1
    repeat: int = 0

    @property
    def name(self) -> str:
        """Of its record's file."""
        words = [self.environment, self.shape, self.method, f"{self.devices}", f"{self.mbit:g}"]
        more = {"l": self.layers, "r": self._rows, "n": self.new, "o": self.out, "x": self.repeat and self.repeat + 1}
        words += [f"{key}{value:g}" for key, value in more.items() if value]
        return "_".join([*words, *([self.dtype] if self.dtype != "float32" else [])])

    @property
    def model(self) -> Shape:
        """Its shape, with its prompt."""
        return longer(self.shape, self._rows)

    @property
    def _rows(self) -> int:
        """Of the prompt, where they are not the shape's."""
        stretched = ENVIRONMENTS[self.environment].stretched
        return self.rows or (round(stretched * SHAPES[self.shape].rows) if stretched != 1 else 0)

    @property
    def depth(self) -> int:
        """Layers that are run; of one device few, all alike."""
        return self.layers or min(self.model.swept, LOCAL_LAYERS if self.method in ALONE else MOST_LAYERS)

    @property
    def names(self) -> tuple[str, ...]:
        """Of the devices that are used."""
        return tuple(f"device-{number}" for number in range(1, self.devices + 1))

    def local(self) -> Cell:
        """One device alone, the first, in the same round."""
        whole = replace(self, layers=0, new=0, out=0.0, runs=STANDARD_RUNS)
        return replace(whole, method=LOCAL, devices=1, mbit=FREE_MBIT)

    def reference(self) -> Cell:
        """The one device that links are made by."""
        environment = ENVIRONMENTS[self.environment].links or self.environment
        return Cell(environment, self.shape, LOCAL, 1, FREE_MBIT, runs=STANDARD_RUNS)

    def calibration(self, devices: int = 0) -> Cell:
        """As many devices, a barrier a layer, and links that cost nothing."""
        count = devices or self.devices
        return Cell(self.environment, self.shape, CALIBRATION, count, FREE_MBIT, dtype=self.dtype, runs=STANDARD_RUNS)

    def as_dict(self) -> dict[str, Any]:
        """For its record."""
        return {key: value for key, value in asdict(self).items() if key != "runs"}
