"""What is measured of LIME: models, devices, methods, and the cells made of them. Pure.

Everything is scaled from the paper: the models' layers are as many, their sizes divided by one factor; memory keeps its
ratio to the weights, links theirs to computing. What disks are beside computing the paper does not say; ours is stated.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DTYPE: Final = "float32"
PROMPT = 16
VOCAB = 512

NEW, VARIED_NEW = 12, 24
"""Tokens of each session; where bandwidths vary, more."""

MOST_S = 30.0
"""A method that is slow generates fewer tokens, `LEAST` at least, so that they take about so long by its plan."""

LEAST = 3

VARIED_MBIT, VARIED_TOKENS = (50.0, 250.0), (1, 6)
"""Between which bandwidths are drawn, as the paper has it, and for how many tokens one stays, which it leaves open."""

HEAD_DIM = 8
"""A sixteenth of the models' own, so that there are as many heads and groups as they have."""


def _llama(layers: int, hidden: int, heads: int, kv_heads: int, intermediate: int, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": HEAD_DIM,
        "intermediate_size": intermediate,
        "vocab_size": VOCAB,
        "max_position_embeddings": 16384,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": None,
        **more,
    }


@dataclass(frozen=True)
class Model:
    """One of the paper's models.

    Attributes:
        title: whose shape it has.
        config: as a Hugging Face config; all sizes of a layer, a head's too, are a sixteenth of the model's own.
    """

    title: str
    config: Mapping[str, Any]


MODELS = {
    "13b": Model("Llama-2-13B", _llama(40, 320, 40, 40, 864)),
    "32b": Model("Qwen3-32B", _llama(64, 320, 64, 8, 1600)),
    "70b": Model("Llama-3.3-70B", _llama(80, 512, 64, 8, 1792)),
}


@dataclass(frozen=True)
class Devices:
    """Devices, first to last; the first has the tokens.

    Attributes:
        memory: nominal gigabytes of each, of which only the proportions count.
        fill: the weights' share of all memory together.
        slow: which of them compute at 0.29 of the others' speed, the memory bandwidth of a Xavier NX beside an Orin's.
    """

    title: str
    memory: tuple[float, ...]
    fill: float
    slow: frozenset[int]

    def budgets(self, weights: int) -> list[int]:
        """Bytes of memory of each, for a model with so many bytes of weights."""
        return [int(weights / self.fill * each / sum(self.memory)) for each in self.memory]


SLOW = 0.29
SETTINGS = {
    "E1": Devices("E1", (32, 16), 0.54, frozenset({1})),
    "E2": Devices("E2", (64, 32, 16), 0.58, frozenset({2})),
    "E3": Devices("E3", (64, 64, 32, 16), 0.80, frozenset({3})),
    "S1": Devices("Setting 1", (64, 32, 32, 16, 16), 0.88, frozenset({3, 4})),
    "S2": Devices("Setting 2", (64, 32, 32, 16, 8), 0.93, frozenset({3, 4})),
    "S3": Devices("Setting 3", (64, 32, 24, 16, 8), 0.98, frozenset({3, 4})),
    "over": Devices("ours: more than all memory", (64, 32, 24, 16, 8), 1.3, frozenset({3, 4})),
}

CORES = 0.4
"""The quota of a fast device."""


def cores_of(devices: Devices) -> list[float]:
    """The quota of each; together at most 1.6 of two cores, since the rest is the links'."""
    count = len(devices.memory)
    return [CORES * (SLOW if number in devices.slow else 1.0) for number in range(count)]


@dataclass(frozen=True)
class Cell:
    """One measurement.

    Attributes:
        model, setting, method: keys of `MODELS`, `SETTINGS`, `methods.METHODS`.
        sessions: that generate at once: 1, *sporadic*; as many as there are devices, *bursty*.
        mbit: the paper's bandwidth that the links stand for; of a cell that varies, the first one.
        new: tokens of each session, fewer where a method is slow (`MOST_S`).
        repeat: from 0 on.
        vary: whether bandwidths are drawn while it runs, as in Fig. 18.
        room: positions that each session may grow to, for which others keep memory from the beginning and LIME streams
            more when it comes to that; 0: prompt and tokens.
        prompt: tokens of each prompt.
        planned: sessions that plans are made for; where more come, keys and values outgrow their room; 0: all.
    """

    model: str
    setting: str
    method: str
    sessions: int
    mbit: float
    new: int = NEW
    repeat: int = 0
    vary: bool = False
    room: int = 0
    planned: int = 0
    prompt: int = PROMPT

    @property
    def name(self) -> str:
        """Of its record's file."""
        more = [*(["vary"] if self.vary else []), *([f"room{self.room}"] if self.room else [])]
        more += [f"for{self.planned}_p{self.prompt}"] if self.planned else []
        words = [self.model, self.setting, self.method, f"{self.sessions}", f"{self.mbit:g}", f"n{self.new}", *more]
        return "_".join([*words, f"{self.repeat}"])


def sessions_of(setting: str) -> tuple[int, int]:
    """Sporadic and bursty."""
    return 1, len(SETTINGS[setting].memory)


def out_of_time_s(sessions: int) -> float:
    """Seconds a token beyond which the paper calls a method out of time. As they are there: a token of LIME takes about
    as long here (Table V: 1.5 s)."""
    return 40.0 if sessions == 1 else 15.0


def bandwidths(steps: int, seed: int) -> list[float]:
    """Of each step, in the paper's Mb/s: drawn anew after a number of tokens that is drawn, too (V-D)."""
    drawn, found = random.Random(seed), list[float]()
    while len(found) < steps:
        found += [drawn.uniform(*VARIED_MBIT)] * drawn.randint(*VARIED_TOKENS)
    return found[:steps]


STREAMING = ("lime", "offloaded", "tpi-llm", "galaxy-offloaded")
"""Ours, and who comes nearest."""

RESIDENT = ("edgeshard", "galaxy", "pipeline")
"""Who needs memory for everything."""

ALONE = ("accelerate", "llama.cpp")
"""One device of the largest kind, one session."""

GROWING = ("lime", "no-transfers", "rows-fetched", "lime-reserved")
"""Table V's ablations of what is done as keys and values grow."""

LONG_PROMPT = 128
"""Of those, so that what is counted of keys and values is mostly there."""

ROOMS = (2048, 8192)
"""Positions of a session that are planned for."""


def planned(quick: bool = False) -> list[Cell]:
    """All cells, those that say most first: our row with more weights than memory, then the paper's settings from the
    least memory up, its testbeds, and sweeps. The headline's nearest methods have three repeats."""
    new = 6 if quick else NEW

    def row(model: str, setting: str, sessions: int, methods: Sequence[str], **more: Any) -> list[Cell]:
        given = {"mbit": 100.0, "new": new, **more}
        return [Cell(model, setting, method, sessions, **given) for method in methods]

    one, many = sessions_of("over")
    cells = row("70b", "over", one, [*STREAMING, "no-prefetch"]) + row("70b", "over", many, STREAMING)
    if quick:
        return cells + row("70b", "S3", one, STREAMING) + row("70b", "S3", many, STREAMING)
    for sessions in (one, many):
        cells += row("70b", "over", sessions, ["lime-coded"])
    cells += row("70b", "over", one, ["edgeshard-offloaded", *RESIDENT, "one-unit-rings"])
    cells += row("70b", "over", many, ["lime", "offloaded"], vary=True, new=VARIED_NEW)
    cells += row("70b", "S3", one, STREAMING) + row("70b", "S3", many, [*STREAMING, "lime-coded"])
    cells += row("70b", "over", one, ALONE)
    for repeat in (1, 2):
        for sessions in (one, many):
            cells += row("70b", "over", sessions, [*STREAMING, "lime-coded"], repeat=repeat)
    for sessions in (one, many):
        cells += row("70b", "over", sessions, ["offloaded-coded"])
    cells += row("70b", "over", many, ["edgeshard-offloaded"])
    for room in ROOMS:
        cells += row("70b", "S1", one, ["lime", "lime-reserved", "offloaded"], room=room)
    cells += row("70b", "S3", many, [*GROWING, "offloaded"], room=ROOMS[0], planned=1, prompt=LONG_PROMPT)
    for setting in ("S2", "S1"):
        for sessions in (one, many):
            cells += row("70b", setting, sessions, STREAMING)
    for model, setting in (("70b", "E3"), ("32b", "E2"), ("13b", "E1")):
        for sessions in sessions_of(setting):
            cells += row(model, setting, sessions, ["lime", "offloaded", "tpi-llm", *RESIDENT])
    for setting in ("S3", "S2", "S1"):
        for sessions in (one, many):
            cells += row("70b", setting, sessions, ["edgeshard-offloaded", *RESIDENT])
    for setting in ("over", "S3", "S2", "S1"):
        for sessions in (one, many):
            cells += row("70b", setting, sessions, ["lime", "offloaded", "tpi-llm"], mbit=200.0)
    return cells
