"""What methods, data sets and settings are called, and the colour and marker each method has in every plot.

Colours are Okabe and Ito's, which people who see few colours can tell apart; what shares a hue differs in its marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """A method in tables and plots."""

    label: str
    colour: str = "#555555"
    marker: str = "."
    dash: str = "-"


LOOKS: Mapping[str, Look] = {
    "hat": Look("HAT, ours", "#D55E00", "o"),
    "hat-paper": Look("HAT as in the paper", "#E69F00", "s"),
    "hat-plain": Look("HAT, ours, rows not packed", "#8C3D00", "<", "--"),
    "ushape-full": Look("U-shape, all rows down", "#000000", "v"),
    "ushape": Look("U-shape, last row down", "#8A8A8A", "^", "--"),
    "u-sarathi": Look("U-Sarathi", "#0072B2", "D"),
    "u-medusa": Look("U-Medusa", "#009E73", "P"),
    "u-small": Look("U-shape, small drafter", "#CC79A7", "X"),
    "cloud": Look("cloud (text sent)", "#56B4E9", "*", ":"),
    **{name: Look(name.upper().replace("+", " + ") if name != "none" else name)
       for name in ("none", "pc", "sd", "sd+pd", "sd+pc", "sd+pc+pd")},
    "chunk-512": Look("chunks of 512 rows"),
    "chunk-128": Look("chunks of 128 rows"),
    "chunk-auto": Look("chunks as advised"),
}  # fmt: skip
BASELINES = ("ushape-full", "ushape", "u-sarathi", "u-medusa", "u-small")
"""What HAT is compared with."""

SENDS_TEXT = "cloud"
"""Protects no text, so it is no baseline, and shown and judged apart."""

DATASETS: Mapping[str, str] = {"specbench": "SpecBench lengths", "cnndm": "CNN/DM lengths", "real": "real prompts"}
SETTINGS: Mapping[str, str] = {"demo": "demo model", "wide": "200 M parameters"}


def look(method: str) -> Look:
    """A method's look; one that is not known here is grey and called by its name."""
    return LOOKS.get(method, Look(method))


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the tables, unknown ones last."""
    ranks = {name: rank for rank, name in enumerate(LOOKS)}
    return sorted(set(methods), key=lambda name: (ranks.get(name, len(ranks)), name))
