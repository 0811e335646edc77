"""What is measured of LIME: models, devices, methods, and the cells made of them. Pure.

Everything is scaled from the paper: the models' layers are as many, their sizes divided by one factor; memory keeps its
ratio to the weights, links theirs to computing. What disks are beside computing the paper does not say; ours is stated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

DTYPE: Final = "float32"
PROMPT = 16
VOCAB = 512

HEAD_DIM = 64


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
        "max_position_embeddings": 2048,
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
        config: as a Hugging Face config; all sizes of a layer are a sixteenth of the model's own.
    """

    title: str
    config: Mapping[str, Any]


MODELS = {
    "13b": Model("Llama-2-13B", _llama(40, 320, 5, 5, 864)),
    "32b": Model("Qwen3-32B", _llama(64, 320, 8, 1, 1600)),
    "70b": Model("Llama-3.3-70B", _llama(80, 512, 8, 1, 1792)),
    "tiny": Model("of tests", _llama(6, 64, 2, 1, 128)),
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
    "two": Devices("two, of tests", (2, 1), 1.5, frozenset()),
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
        mbit: the paper's bandwidth that the links stand for.
        new: tokens of each session.
        repeat: from 0 on.
    """

    model: str
    setting: str
    method: str
    sessions: int
    mbit: float
    new: int
    repeat: int = 0

    @property
    def name(self) -> str:
        """Of its record's file."""
        words = [self.model, self.setting, self.method, f"{self.sessions}", f"{self.mbit:g}", f"n{self.new}"]
        return "_".join([*words, f"{self.repeat}"])


def sessions_of(setting: str) -> tuple[int, int]:
    """Sporadic and bursty."""
    return 1, len(SETTINGS[setting].memory)


def planned(methods: Sequence[str], quick: bool) -> list[Cell]:
    """All cells, those that say most first."""
    new = 6 if quick else 12
    rows = [("70b", "over"), ("70b", "S3")] if quick else [("70b", each) for each in ("over", "S3", "S2", "S1", "E3")]
    if not quick:
        rows += [("32b", "E2"), ("13b", "E1")]
    cells = [
        Cell(model, setting, method, sessions, mbit, new)
        for mbit in ((100.0,) if quick else (100.0, 200.0))
        for model, setting in rows
        for sessions in sessions_of(setting)
        for method in methods
    ]
    if not quick:  # Headline rows three times.
        first = [cell for cell in cells if cell.setting == "over" and cell.mbit == 100.0]
        cells += [Cell(**{**vars(cell), "repeat": repeat}) for repeat in (1, 2) for cell in first]
    return cells
