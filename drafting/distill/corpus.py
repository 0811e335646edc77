"""From text files to features on disk; each stage is kept, so that a second run or one that goes on finds it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from drafting.distill import features
from drafting.distill.answers import regenerated
from drafting.distill.features import FeatureFiles, Key
from drafting.distill.network import check_trainable
from drafting.distill.passages import Passage
from drafting.distill.text import Document, Sample, Writer, samples
from service.bars import Bars
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float32}
"""In what the model computes features and answers; float16 has too little range on a CPU."""


@dataclass(frozen=True)
class Renewal:
    """How answers are said anew: at these temperatures in turn, of at most `longest` tokens each."""

    temperatures: tuple[float, ...] = (0.0,)
    longest: int = 256
    seed: int = 0


class Source:
    """A model as the source of features, read when first needed."""

    def __init__(self, folder: Path, longest: int = 512) -> None:
        """`longest`: tokens of one text. Raises ModelError, BadText."""
        self.checkpoint = Checkpoint.open(folder)
        self.spec = self.checkpoint.spec
        check_trainable(self.spec)
        self.digest = self.checkpoint.digest()
        self.writer = Writer.load(folder, longest)
        self._model: Reference | None = None

    @property
    def model(self) -> Reference:
        """The model in its own number format. Raises ModelError."""
        if self._model is None:
            self._model = Reference.load(self.checkpoint, DTYPES[self.spec.dtype])
        return self._model

    def exact_model(self) -> Reference:
        """The model in float32. Raises ModelError."""
        return Reference.load(self.checkpoint, torch.float32)

    def read(self, paths: Sequence[Path], bars: Bars) -> list[Sample]:
        """The conversations that have an answer, and the passages of plain text, of text files. Raises BadText."""
        found: list[Sample] = []
        with bars.bar("text", None, "passages") as told:
            for path in paths:
                for sample in samples(path, self.writer):
                    if isinstance(sample, Passage) or sample.own.any():
                        found.append(sample)
                        told(1)
        return found

    def answered(
        self, texts: Sequence[Document], renewal: Renewal, folder: Path, bars: Bars, model: Reference | None = None
    ) -> list[Document]:
        """The documents with their last answers said anew by the model, kept in `folder`."""
        given = Key.of(self.digest, 0, texts).text
        what = json.dumps([self.digest, given, renewal.__dict__, str((model or self.model).stack.dtype)])
        path = folder / f"answers-{hashlib.sha256(what.encode()).hexdigest()[:16]}.jsonl"
        if path.exists():
            return [_read(line) for line in path.read_text(encoding="utf-8").splitlines()]
        with bars.bar("answers", len(texts) * renewal.longest, "tokens") as told:
            new = regenerated(model or self.model, texts, renewal.temperatures, renewal.longest, renewal.seed, told)
        folder.mkdir(parents=True, exist_ok=True)
        beside = path.with_suffix(".new")
        beside.write_text("".join(_written(each) for each in new), encoding="utf-8")
        os.replace(beside, path)
        return new

    def features(self, texts: Sequence[Document], split: int, folder: Path, bars: Bars) -> FeatureFiles:
        """The features of documents, from `folder` where they are the same."""
        key = Key.of(self.digest, split, texts)
        found = features.cached(folder, key)
        if found is not None:
            return found
        with bars.bar("features", sum(len(each.ids) for each in texts), "tokens") as told:
            return features.compute(folder, key, self.model, texts, told)


def _written(document: Document) -> str:
    own = np.flatnonzero(np.diff(np.concatenate(([0], document.own.astype(np.int8), [0]))))
    return json.dumps({"ids": document.ids.tolist(), "own": own.tolist()}) + "\n"


def _read(line: str) -> Document:
    found = json.loads(line)
    own = np.zeros(len(found["ids"]), dtype=bool)
    for start, end in zip(found["own"][::2], found["own"][1::2], strict=True):
        own[start:end] = True
    return Document(np.array(found["ids"], dtype=np.int32), own)
