"""What a classifier's labels are called, and how its logits become chances. As transformers' pipelines have it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from split_model.checkpoint import MAX_CONFIG_BYTES, read_object


@dataclass(frozen=True)
class Classes:
    """The labels, one for each logit; `kind`: "softmax" (one of them holds), "sigmoid" (any may), "none" (a number)."""

    labels: tuple[str, ...]
    kind: str

    @classmethod
    def read(cls, folder: Path, count: int) -> Classes:
        """Of a checkpoint whose classifier tells `count` labels apart. Raises BadCheckpoint."""
        config = read_object(folder / "config.json", MAX_CONFIG_BYTES)
        names, problem = config.get("id2label"), config.get("problem_type")
        found = names if isinstance(names, dict) else {}
        labels = tuple(str(found.get(str(each), f"LABEL_{each}")) for each in range(count))
        if problem == "regression":
            return cls(labels, "none")
        return cls(labels, "sigmoid" if problem == "multi_label_classification" or count == 1 else "softmax")

    def chances(self, logits: torch.Tensor) -> torch.Tensor:
        """float32 [sequences, labels] -> the same shape."""
        if self.kind == "none":
            return logits
        return logits.sigmoid() if self.kind == "sigmoid" else logits.softmax(-1)
