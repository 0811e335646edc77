"""The file of a trained drafter: safetensors, which says what model and split it was trained for.

The metadata are strings: ``kind``, ``digest`` (of the model's weights), ``split`` (how many first layers the device
holds), ``form`` (which of the networks of its kind) and ``card``, a JSON object with how the drafter was trained and
what it measured.
"""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from drafting.errors import BadDrafter
from split_model.errors import BadCheckpoint
from split_model.matrix import Matrix, empty_for_products
from split_model.safetensors_file import SafetensorsFile
from split_model.spec import ModelSpec
from split_model.tensor_bytes import to_bytes

KINDS = ("adapter", "fused", "medusa")
MAX_HEADER_BYTES = 1 << 20
_DTYPE_NAMES = {torch.float32: "F32", torch.bfloat16: "BF16"}
_SPLIT = re.compile(r"[0-9]{1,4}")


def can_be_trained(spec: ModelSpec) -> bool:
    """Whether drafters for such a model can be: they have its kinds of norm and of positions, and these are an RMS norm
    and rotations."""
    return (spec.norm, spec.positions) == ("rms", "rotary")


@dataclass(frozen=True)
class DrafterFile:
    """What a file says of itself; its tensors are read when asked for.

    Attributes:
        form: a name for people; which network it is follows from the tensors that are there.
    """

    path: Path
    kind: str
    form: str
    digest: str
    split: int
    card: dict[str, Any]
    _file: SafetensorsFile

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every tensor, by name."""
        return {name: entry.shape for name, entry in self._file.entries.items()}

    @property
    def parameters(self) -> int:
        """Elements of all tensors together."""
        return sum(torch.Size(shape).numel() for shape in self.shapes.values())

    def check(self, kind: str, digest: str, split: int, shapes: Mapping[str, tuple[int, ...]]) -> None:
        """Raises BadDrafter unless the file is of this kind, model and split and has just these tensors."""
        if self.kind != kind:
            raise BadDrafter(f"{self.path} is a drafter of kind {self.kind}, not {kind}: draft with {self.kind}")
        if self.digest != digest:
            raise BadDrafter(
                f"{self.path} was trained for the model {self.digest}, but this model is {digest}: "
                "train one for it with `trilby distill`"
            )
        if self.split != split:
            raise BadDrafter(
                f"{self.path} was trained for --split {self.split}, but the split is {split}: "
                f"use --split {self.split}, or train one for this split with `trilby distill`"
            )
        found = self.shapes
        for name in sorted(found.keys() | shapes.keys()):
            if found.get(name) != shapes.get(name):
                said, wanted = (
                    "no place" if shape is None else f"shape {list(shape)}"
                    for shape in (found.get(name), shapes.get(name))
                )
                raise BadDrafter(
                    f"{self.path} is damaged, or of another form than this version knows: tensor {name} has {said} "
                    f"in the file and {wanted} in a drafter of this model. Train it again with `trilby distill`"
                )

    def tensor(self, name: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
        """One tensor. Raises BadDrafter where it cannot be read or is not finite."""
        return self.stacked([name], dtype, device)

    def matrix(
        self, names: Sequence[str], dtype: torch.dtype, device: torch.device | str = "cpu", bias: str | None = None
    ) -> Matrix:
        """Matrices stacked by rows, in the form that multiplies fastest. Raises BadDrafter as ``tensor`` does."""
        return Matrix(self.stacked(names, dtype, device), None if bias is None else self.tensor(bias, dtype, device))

    def stacked(self, names: Sequence[str], dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
        """Tensors of equal width, stacked by rows. Raises BadDrafter as ``tensor`` does."""
        try:
            shapes = [self._file.entry(name).shape for name in names]
            shape = (sum(each[0] for each in shapes), *shapes[0][1:])
            with torch.inference_mode():
                out = empty_for_products(shape, dtype, device)
                for name, rows in zip(names, out.split_with_sizes([each[0] for each in shapes]), strict=True):
                    self._file.read_into(name, rows, None, None)
                    if not rows.isfinite().all():
                        raise BadDrafter(
                            f"{self.path} is damaged: tensor {name} has numbers that are not finite. "
                            "Train it again with `trilby distill`"
                        )
        except (BadCheckpoint, ValueError) as error:
            raise BadDrafter(str(error)) from error
        return out


def write_drafter(
    path: Path,
    kind: str,
    digest: str,
    split: int,
    card: Mapping[str, Any],
    tensors: Mapping[str, torch.Tensor],
    form: str = "",
) -> None:
    """Writes a drafter's file, whole or not at all; folders on the way are made.

    card: whatever JSON can say. tensors: float32 or bfloat16, of any stride. Raises ValueError for what
    ``read_drafter`` would not take back, OSError.
    """
    if kind not in KINDS or split < 0:
        raise ValueError(f"a drafter of kind {kind!r} for split {split} cannot be written")
    said = json.dumps(card, allow_nan=False)
    metadata = {"kind": kind, "form": form, "digest": digest, "split": str(split), "card": said}
    header: dict[str, Any] = {"__metadata__": metadata}
    blocks = []
    end = 0
    for name, tensor in sorted(tensors.items()):
        if tensor.dtype not in _DTYPE_NAMES:
            raise ValueError(f"{name} is {tensor.dtype}; a drafter is written in float32 or bfloat16")
        _, shape, block = to_bytes(tensor)
        start, end = end, end + len(block)
        header[name] = {"dtype": _DTYPE_NAMES[tensor.dtype], "shape": list(shape), "data_offsets": [start, end]}
        blocks.append(block)
    encoded = json.dumps(header).encode()
    encoded += b" " * (-len(encoded) % 8)  # so that tensors lie aligned
    if len(encoded) > MAX_HEADER_BYTES:
        raise ValueError(f"a header of {len(encoded)} bytes would not be read back: shorten the card")
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(len(encoded).to_bytes(8, "little") + encoded)
            for block in blocks:
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # a temporary file is for its owner alone, a model's folder may be shared
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def read_drafter(path: Path) -> DrafterFile:
    """Opens a drafter's file, reading the header only. Raises BadDrafter where it is missing, damaged or none."""
    if not path.is_file():
        raise BadDrafter(f"there is no {path}: train a drafter for this model with `trilby distill`, or fetch its file")
    try:
        file = SafetensorsFile(path)
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = stream.read(length) if length <= MAX_HEADER_BYTES else b""
        metadata = json.loads(header)["__metadata__"]  # the header is sound: SafetensorsFile has read it
        kind, digest, split = metadata["kind"], metadata["digest"], metadata["split"]
        form = metadata.get("form", "")
        card = json.loads(metadata["card"])
    except (BadCheckpoint, OSError) as error:
        raise BadDrafter(str(error)) from error
    except (KeyError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise BadDrafter(f"{path} is no drafter: its metadata do not name kind, digest, split and card") from error
    strings = all(isinstance(each, str) for each in (kind, form, digest, split))
    if not strings or kind not in KINDS or not _SPLIT.fullmatch(split) or not isinstance(card, dict):
        raise BadDrafter(f"{path} is no drafter of a kind that is known: {', '.join(KINDS)}")
    return DrafterFile(path, kind, form, digest, int(split), card, file)
