"""What the model computes for every token of the text, once, on disk: shallow and deep hidden states.

A folder holds shards of whole documents, each four memory-mapped arrays without header, and `index.json`, written last:

- `N.ids` int32 [tokens], `N.own` uint8 [tokens]: the documents of shard N one after the other;
- `N.shallow`, `N.deep` bfloat16 [tokens, hidden_size]: after the first `split` layers, and after the last layer, before
  the final norm.

bfloat16, since deep states of large models have single values beyond the range of float16.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from drafting.distill.lanes import Prompts
from drafting.distill.text import Document
from split_model.reference import Reference
from split_model.residence import Blocks
from split_model.slices import Slice
from split_model.stack import Stack

INDEX = "index.json"
SHARD_TOKENS = 1 << 18
PASS_TOKENS = 4096
"""Rows of one forward of the whole model, the filling included."""


@dataclass(frozen=True)
class Key:
    """What features depend on: they are used again where all of it is the same."""

    digest: str
    split: int
    text: str  # a hash over ids and own of all documents

    @classmethod
    def of(cls, digest: str, split: int, documents: Sequence[Document]) -> Key:
        state = hashlib.sha256()
        for document in documents:
            state.update(len(document.ids).to_bytes(8, "little"))
            state.update(document.ids.astype("<i4").tobytes())
            state.update(document.own.astype(np.uint8).tobytes())
        return cls(digest, split, f"sha256:{state.hexdigest()}")


@dataclass(frozen=True)
class Features:
    """One document's tokens and hidden states. Views of the mapped files."""

    ids: torch.Tensor  # int32 [tokens]
    own: torch.Tensor  # bool [tokens]
    shallow: torch.Tensor  # bfloat16 [tokens, hidden_size]
    deep: torch.Tensor  # bfloat16 [tokens, hidden_size]


def token_bytes(hidden_size: int) -> int:
    """Bytes on disk for each token."""
    return 2 * 2 * hidden_size + 4 + 1


def within(documents: Sequence[Document], hidden_size: int, most_bytes: int) -> list[Document]:
    """As many of the first documents as fit."""
    kept: list[Document] = []
    used = 0
    for document in documents:
        used += len(document.ids) * token_bytes(hidden_size)
        if used > most_bytes:
            break
        kept.append(document)
    return kept


class FeatureFiles:
    """Features on disk, document by document."""

    def __init__(self, folder: Path) -> None:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
        self.key = Key(**index["key"])
        self.hidden_size: int = index["hidden_size"]
        self.lengths: list[int] = []
        self._at: list[tuple[int, int]] = []
        self._shards: list[dict[str, torch.Tensor]] = []
        for number, lengths in enumerate(index["shards"]):
            self._shards.append(_mapped(folder, number, sum(lengths), self.hidden_size, False))
            start = 0
            for length in lengths:
                self._at.append((number, start))
                start += length
            self.lengths += lengths

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def tokens(self) -> int:
        """Of all documents."""
        return sum(self.lengths)

    @property
    def nbytes(self) -> int:
        """On disk, without the index."""
        return self.tokens * token_bytes(self.hidden_size)

    def __getitem__(self, number: int) -> Features:
        shard, start = self._at[number]
        part = slice(start, start + self.lengths[number])
        of = self._shards[shard]
        return Features(of["ids"][part], of["own"][part].bool(), of["shallow"][part], of["deep"][part])


def cached(folder: Path, key: Key) -> FeatureFiles | None:
    """The features in a folder where they are complete and made for this key."""
    try:
        files = FeatureFiles(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return files if files.key == key else None


def compute(
    folder: Path, key: Key, model: Reference, documents: Sequence[Document], done: Callable[[int], None]
) -> FeatureFiles:
    """One pass of the whole model over all documents; replaces what was in `folder`.

    done: called with the number of tokens since the last call.
    """
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    front, rest = parts(model, key.split)
    shards = list(_shards(documents))
    for number, shard in enumerate(shards):
        arrays = _mapped(folder, number, sum(len(each.ids) for each in shard), model.spec.hidden_size, True)
        starts = np.cumsum([0, *(len(each.ids) for each in shard)]).tolist()
        for group in groups_of(shard):
            shallow, deep = states(model, front, rest, [shard[each].ids for each in group])
            for lane, each in enumerate(group):
                part, length = slice(starts[each], starts[each + 1]), len(shard[each].ids)
                arrays["ids"][part] = torch.from_numpy(shard[each].ids)
                arrays["own"][part] = torch.from_numpy(shard[each].own)
                arrays["shallow"][part] = shallow[lane, :length]
                arrays["deep"][part] = deep[lane, :length]
            done(sum(len(shard[each].ids) for each in group))
    index: dict[str, Any] = {
        "key": key.__dict__,
        "hidden_size": model.spec.hidden_size,
        "shards": [[len(each.ids) for each in shard] for shard in shards],
    }
    beside = folder / (INDEX + ".new")
    beside.write_text(json.dumps(index), encoding="utf-8")
    os.replace(beside, folder / INDEX)
    return FeatureFiles(folder)


def parts(model: Reference, split: int) -> tuple[Stack, Stack]:
    """The first `split` layers of a model, and all others."""
    spec, blocks, dtype = model.spec, model.stack.blocks, model.stack.dtype
    return (
        Stack(spec, Slice(0, split), Blocks(blocks[:split]), dtype),
        Stack(spec, Slice(split, spec.num_layers), Blocks(blocks[split:]), dtype),
    )


def _shards(documents: Sequence[Document]) -> Iterator[list[Document]]:
    shard: list[Document] = []
    tokens = 0
    for document in documents:
        shard.append(document)
        tokens += len(document.ids)
        if tokens >= SHARD_TOKENS:
            yield shard
            shard, tokens = [], 0
    if shard:
        yield shard


def groups_of(documents: Sequence[Document]) -> Iterator[list[int]]:
    """Documents of about the same length that make up one forward."""
    group: list[int] = []
    for each in sorted(range(len(documents)), key=lambda number: len(documents[number].ids)):
        if group and len(documents[each].ids) * (len(group) + 1) > PASS_TOKENS:
            yield group
            group = []
        group.append(each)
    if group:
        yield group


@torch.inference_mode()
def states(
    model: Reference, front: Stack, rest: Stack, texts: Sequence[np.ndarray]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Shallow and deep rows [texts, width, hidden_size]; behind a text's end they mean nothing."""
    lengths = torch.tensor([len(text) for text in texts])
    width = int(lengths.max())
    ids = torch.zeros((len(texts), width), dtype=torch.int64)
    for lane, text in enumerate(texts):
        ids[lane, : len(text)] = torch.from_numpy(text)
    shape = (len(texts), width, model.spec.hidden_size)
    shallow = front.run(model.embedding.forward(ids.reshape(-1)), Prompts(lengths, width))
    deep = rest.run(shallow, Prompts(lengths, width))
    return shallow.view(shape), deep.view(shape)


def _mapped(folder: Path, number: int, tokens: int, hidden_size: int, writable: bool) -> dict[str, torch.Tensor]:
    """The four arrays of a shard, made anew where `writable`; otherwise a private view of what is there."""

    def array(name: str, dtype: torch.dtype, *shape: int) -> torch.Tensor:
        path = folder / f"{number:04d}.{name}"
        size = int(np.prod(shape)) * dtype.itemsize
        if writable:
            with path.open("wb") as file:
                file.truncate(size)
                # Room for all of it now: where the disk fills up later, whoever writes by the mapping is killed.
                if size and hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, size)
        elif path.stat().st_size != size:
            raise ValueError(f"{path} is incomplete")
        return torch.from_file(str(path), shared=writable, size=int(np.prod(shape)), dtype=dtype).view(shape)

    wide = (tokens, hidden_size)
    return {
        "ids": array("ids", torch.int32, tokens),
        "own": array("own", torch.uint8, tokens),
        "shallow": array("shallow", torch.bfloat16, *wide),
        "deep": array("deep", torch.bfloat16, *wide),
    }
