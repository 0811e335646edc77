"""What methods, data sets and settings are called, and the colour and marker each method has in every plot.

Colours are Okabe and Ito's, which people who see few colours can tell apart; what shares a hue differs in its marker.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Look:
    """A method in tables and plots. ``apart``: it protects no text or splits nothing, so it is no rival here."""

    label: str
    colour: str
    marker: str
    dash: str = "-"
    apart: bool = False


LOOKS: Mapping[str, Look] = {
    "hat": Look("HAT, ours", "#D55E00", "o"),
    "hat-paper": Look("HAT as in the paper", "#E69F00", "s"),
    "hat-plain": Look("HAT, ours, rows not packed", "#8C3D00", "<", "--"),
    "ushape-full": Look("U-shape, all rows down", "#000000", "v"),
    "ushape": Look("U-shape, last row down", "#8A8A8A", "^", "--"),
    "u-sarathi": Look("U-Sarathi", "#0072B2", "D"),
    "u-medusa": Look("U-Medusa", "#009E73", "P"),
    "u-small": Look("U-shape, small drafter", "#CC79A7", "X"),
    "cloud": Look("cloud (text sent)", "#56B4E9", "*", ":", apart=True),
    "llama-rpc": Look("llama.cpp RPC split", "#B8A000", "h", ":", apart=True),
}
OURS = ("hat", "hat-paper", "hat-plain")
BASELINES = tuple(name for name, look in LOOKS.items() if not look.apart and name not in OURS)
"""What HAT is compared with; a method that stands apart is shown and not counted."""

STRATEGIES: Mapping[str, Look] = {
    "none": Look("none", "#000000", "v"),
    "pc": Look("PC", "#0072B2", "D"),
    "sd": Look("SD", "#009E73", "P"),
    "sd+pd": Look("SD + PD", "#CC79A7", "X"),
    "sd+pc": Look("SD + PC", "#E69F00", "s"),
    "sd+pc+pd": Look("SD + PC + PD", "#D55E00", "o"),
}
CHUNKS: Mapping[str, Look] = {
    "chunk-512": Look("chunks of 512 rows", "#0072B2", "D"),
    "chunk-256": Look("chunks of 256 rows", "#009E73", "P"),
    "chunk-128": Look("chunks of 128 rows", "#CC79A7", "X"),
    "chunk-64": Look("chunks of 64 rows", "#E69F00", "s"),
    "chunk-auto": Look("chunks as advised", "#D55E00", "o"),
}
DATASETS: Mapping[str, str] = {
    "specbench": "SpecBench lengths",
    "cnndm": "CNN/DM lengths",
    "real": "real prompts",
}
SETTINGS: Mapping[str, str] = {
    "demo": "demo model, its own acceptance",
    "wide": "200 M parameters, acceptance replayed",
}


def look(method: str) -> Look:
    """A method's look; one that is not known here is grey and called by its name."""
    return LOOKS.get(method) or STRATEGIES.get(method) or CHUNKS.get(method) or Look(method, "#555555", ".")


def ordered(methods: Iterable[str]) -> list[str]:
    """Methods in the order of the tables, unknown ones last."""
    ranks = {name: rank for rank, name in enumerate([*LOOKS, *STRATEGIES, *CHUNKS])}
    return sorted(set(methods), key=lambda name: (ranks.get(name, len(ranks)), name))


def dataset_label(dataset: str) -> str:
    """What a data set is called."""
    return DATASETS.get(dataset, dataset)


def setting_label(setting: str) -> str:
    """What a model setting is called."""
    return SETTINGS.get(setting, setting)


def place_label(setting: str, dataset: str) -> str:
    """Both in a few words, for a title."""
    return f"{dataset_label(dataset)} ({setting_label(setting).split(',')[0]})"
