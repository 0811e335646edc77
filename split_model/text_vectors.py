"""One vector for a text, as its checkpoint says: which of its rows, how they become one, and what is done to that.

Checkpoints say it as sentence-transformers writes it: `modules.json` and a pooling module's `config.json`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from split_model.checkpoint import MAX_CONFIG_BYTES, read_json, read_object
from split_model.dense import DENSE_FILES, Dense
from split_model.errors import BadCheckpoint, UnsupportedModel
from split_model.spec import ModelSpec

MODULES_FILE = "modules.json"
_FOLDER = re.compile(r"[A-Za-z0-9_-]*")
SETTINGS_FILES = ("config_sentence_transformers.json", "sentence_bert_config.json")


def _weighted(rows: torch.Tensor) -> torch.Tensor:
    weights = torch.arange(1, len(rows) + 1, dtype=rows.dtype, device=rows.device)[:, None]
    return (rows * weights).sum(0) / weights.sum()


POOLINGS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cls": lambda rows: rows[0],
    "max": lambda rows: rows.amax(0),
    "mean": lambda rows: rows.mean(0),
    "mean_sqrt_len_tokens": lambda rows: rows.sum(0) / len(rows) ** 0.5,
    "weightedmean": _weighted,
    "lasttoken": lambda rows: rows[-1],
}
"""A text's rows [rows, hidden] to one [hidden]. Where several are named they go one behind the other, in this order."""

LAST_ALONE = ("lasttoken",)

_FLAGS = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "weightedmean": "pooling_mode_weightedmean_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}


@dataclass(frozen=True)
class TextVectors:
    """How texts become vectors.

    Attributes:
        poolings: of `POOLINGS`.
        dense: what their outcome goes through, one after the other.
        normalized: each vector's length is made 1.
        sizes: to how many of its first numbers a vector may be cut ("matryoshka"); empty: to none.
        any_size: to any number.
        max_tokens: of a text, where the checkpoint says less than its positions.
        prefix: what it wants before every text.
        lowers: texts are read in lower case.
    """

    poolings: tuple[str, ...] = ("mean",)
    dense: tuple[Dense, ...] = ()
    normalized: bool = False
    sizes: tuple[int, ...] = ()
    any_size: bool = False
    max_tokens: int | None = None
    prefix: str = ""
    lowers: bool = False

    @property
    def last_alone(self) -> bool:
        """Whether no row of a text is wanted but its last."""
        return self.poolings == LAST_ALONE

    def numbers(self, spec: ModelSpec) -> int:
        """Numbers of a whole vector."""
        return self.dense[-1].size if self.dense else len(self.poolings) * spec.final_size

    @torch.inference_mode()
    def vectors(self, rows: torch.Tensor, lengths: Sequence[int], size: int = 0) -> torch.Tensor:
        """Rows as the model gives them, of one text after the other -> float32 [texts, size].

        size: of the first numbers, cut before the length is made 1; 0: all.
        """
        each = [
            torch.cat([POOLINGS[kind](text) for kind in self.poolings])
            for text in rows.float().split_with_sizes(list(lengths))
        ]
        found = torch.stack(each)
        for matrix in self.dense:
            found = matrix(found)
        found = found[:, : size or None]
        return functional.normalize(found) if self.normalized else found


def text_vectors(folder: Path, spec: ModelSpec) -> TextVectors | None:
    """What the folder of a checkpoint says; where it says nothing, the last token for a model that writes on, the mean
    over all tokens for an encoder of texts that does not classify, and None for every other model.

    Raises BadCheckpoint for files that cannot be read, UnsupportedModel, by name, for what could not be computed.
    """
    if spec.patches is not None or spec.attention == "cross":
        return None
    if not (folder / MODULES_FILE).is_file():
        if spec.attention == "causal":
            return TextVectors(LAST_ALONE, **_sizes(folder))
        return None if spec.labels else TextVectors(**_sizes(folder))
    modules = _modules(folder)
    kinds = [kind for kind, _ in modules]
    normalized = kinds[-1:] == ["Normalize"]
    if (
        kinds[:2] != ["Transformer", "Pooling"]
        or set(kinds[2 : -1 if normalized else None]) - {"Dense"}
        or modules[0][1]
    ):
        raise UnsupportedModel(
            f"{MODULES_FILE} names {', '.join(kinds)}; only Transformer in the folder itself, Pooling, and perhaps "
            "Dense and Normalize behind it can be computed"
        )
    poolings = _poolings(read_object(folder / modules[1][1] / "config.json", MAX_CONFIG_BYTES))
    dense: list[Dense] = []
    for kind, path in modules:
        if kind == "Dense":
            dense.append(Dense.load(folder / path, dense[-1].size if dense else len(poolings) * spec.final_size))
    said: dict[str, Any] = {}
    for name in SETTINGS_FILES:
        if (folder / name).is_file():
            said |= read_object(folder / name, MAX_CONFIG_BYTES)
    longest = said.get("max_seq_length")
    return TextVectors(
        poolings=poolings,
        dense=tuple(dense),
        normalized=normalized,
        max_tokens=longest if isinstance(longest, int) and longest > 0 else None,
        prefix=_prefix(said),
        lowers=said.get("do_lower_case") is True,
        **_sizes(folder),
    )


def pooling_files(folder: Path) -> list[str]:
    """The files that `text_vectors` looks at beside `modules.json`, which is there. Raises BadCheckpoint."""
    files = {"Pooling": ("config.json",), "Dense": DENSE_FILES}
    return [*SETTINGS_FILES, *(f"{path}/{name}" for kind, path in _modules(folder) for name in files.get(kind, ()))]


def _modules(folder: Path) -> list[tuple[str, str]]:
    """Kind and folder of each."""
    found = read_json(folder / MODULES_FILE, MAX_CONFIG_BYTES)
    modules = []
    for each in found if isinstance(found, list) else []:
        kind, path = (each.get(name) if isinstance(each, dict) else None for name in ("type", "path"))
        if not isinstance(kind, str) or not isinstance(path, str) or not _FOLDER.fullmatch(path):
            raise BadCheckpoint(f"{folder / MODULES_FILE} has a module without a type and a folder of its own")
        modules.append((kind.rpartition(".")[2], path))
    return modules


def _poolings(config: Mapping[str, Any]) -> tuple[str, ...]:
    named = config.get("pooling_mode")
    if isinstance(named, str):
        named = [named]
    if not isinstance(named, list):
        named = [kind for kind, flag in _FLAGS.items() if config.get(flag) is True]
    if not named or any(each not in POOLINGS for each in named):
        raise UnsupportedModel(f"the pooling is {named!r}; it must be of {', '.join(POOLINGS)}")
    if config.get("include_prompt") is False:
        raise UnsupportedModel("include_prompt is false: prompts that are read and not pooled are not supported")
    return tuple(kind for kind in POOLINGS if kind in named)


def _prefix(said: Mapping[str, Any]) -> str:
    """What is put before a text where nobody names one of the checkpoint's prompts."""
    prompts, name = said.get("prompts"), said.get("default_prompt_name")
    found = prompts.get(name, "") if isinstance(prompts, dict) and isinstance(name, str) else ""
    return found if isinstance(found, str) else ""


def _sizes(folder: Path) -> dict[str, Any]:
    config = read_object(folder / "config.json", MAX_CONFIG_BYTES)
    given = config.get("matryoshka_dimensions")
    sizes = [each for each in given if isinstance(each, int) and each > 0] if isinstance(given, list) else []
    return {"sizes": tuple(sizes), "any_size": config.get("is_matryoshka") is True and not sizes}
