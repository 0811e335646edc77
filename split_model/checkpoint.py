"""A local Hugging Face model folder: its spec, and any part of any tensor without reading the rest."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from split_model.end_parts import head_parts
from split_model.errors import BadCheckpoint, ModelNotFound, UnsupportedModel
from split_model.families.fields import first_token_id
from split_model.safetensors_file import SafetensorsFile, TensorEntry
from split_model.slices import slice_parts, whole
from split_model.spec import ModelSpec
from split_model.usual_sampling import NOTHING_USUAL, UsualSampling
from split_model.weight_parts import WeightPart

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
MAX_CONFIG_BYTES = 1 << 20
MAX_INDEX_BYTES = 64 << 20
MAX_FILE_NAME_CHARACTERS = 255
COMPARED_ROWS = 4096
DIGEST_WINDOW_BYTES = 4096
DIGEST_WINDOWS = 8  # the first, the last and six between

# They say how a model is used or stored, not what it computes.
_NOT_IN_DIGEST = ("bos_token_id", "eos_token_ids", "dtype", "max_positions")


_DEFAULTS = {
    field.name: field.default for field in dataclasses.fields(ModelSpec) if field.default is not dataclasses.MISSING
}


class Checkpoint:
    """An opened folder. It holds no file open and no weights in memory; shards may be missing until asked for."""

    def __init__(
        self, path: Path, spec: ModelSpec, shard_of: Mapping[str, str], usual: UsualSampling = NOTHING_USUAL
    ) -> None:
        self.path = path
        self.spec = spec
        self.usual = usual
        self._shard_of = shard_of  # tensor name as the files have it -> file name
        self._files: dict[str, SafetensorsFile] = {}

    @classmethod
    def open(cls, path: Path | str, attention: str | None = "causal") -> Checkpoint:
        """Reads config and index (or the single file's header).

        attention: the kind of model that the caller can run, see `Architecture.attention`; None: any.
        Raises ModelNotFound, UnsupportedModel, or BadCheckpoint for files that cannot be trusted.
        """
        folder = Path(path)
        if any(len(part) > MAX_FILE_NAME_CHARACTERS for part in folder.parts):
            raise ModelNotFound("no folder has a name that long; name the folder of a Hugging Face model")
        if not (folder / "config.json").is_file():
            raise ModelNotFound(f"{folder} has no config.json; name the folder of a Hugging Face model")
        config = read_object(folder / "config.json", MAX_CONFIG_BYTES)
        spec = ModelSpec.from_config(config)
        if attention is not None:
            spec.check_attention(attention)
        usual = NOTHING_USUAL
        if (folder / "generation_config.json").is_file():
            generation = read_object(folder / "generation_config.json", MAX_CONFIG_BYTES)
            usual = UsualSampling.read(generation)
            spec = dataclasses.replace(spec, eos_token_ids=spec.with_eos(generation.get("eos_token_id")))
            if spec.attention == "cross" and generation.get("decoder_start_token_id") is not None:
                start = first_token_id(generation, "decoder_start_token_id", spec.vocab_size)
                spec = dataclasses.replace(spec, bos_token_id=start)
        elif spec.attention != "bidirectional":
            usual = UsualSampling.read(config, "config.json")
        files: dict[str, SafetensorsFile] = {}
        if (folder / SINGLE_FILE).is_file():
            files[SINGLE_FILE] = SafetensorsFile(folder / SINGLE_FILE)
            shard_of = dict.fromkeys(files[SINGLE_FILE].entries, SINGLE_FILE)
        elif (folder / INDEX_FILE).is_file():
            shard_of = read_index(folder / INDEX_FILE)
        else:
            raise BadCheckpoint(
                f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}; convert the model to safetensors"
            )
        checkpoint = cls(folder, spec, shard_of, usual)
        checkpoint._files |= files
        checkpoint._check_embeddings()
        if spec.pooled_size and not spec.labels and not checkpoint.has(f"{spec.names.pooler}.weight"):
            # Saved without a pooler, as models for vectors are that need none.
            checkpoint.spec = dataclasses.replace(spec, pooled_size=0)
        return checkpoint

    def read(
        self,
        name: str,
        rows: range | None = None,
        columns: range | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> torch.Tensor:
        """A tensor, or some rows and columns of it, as a new contiguous tensor of `dtype`.

        Raises BadCheckpoint where it cannot be read, ValueError for a range outside of it.
        """
        shape = self.entry(name).shape
        part = WeightPart(name, shape, rows, columns if len(shape) > 1 else None)
        out = torch.empty(part.shape, dtype=dtype)
        self.read_into(part, out)
        return out

    def read_into(self, part: WeightPart, out: torch.Tensor) -> None:
        """Fills `out`, of the part's shape and of any float dtype, stride and device, with a part of a tensor.

        Needs no more memory beside `out` than one block. Raises BadCheckpoint as `read` does, and where the
        tensor in the file has another shape than the config gives it.
        """
        self.check(part)
        found = self._resolve(part.name)
        self._file(found).read_into(found, out.t() if part.turned else out, part.rows, part.columns)

    def check(self, part: WeightPart) -> None:
        """Raises BadCheckpoint where the tensor is missing or its shape is not the config's: before memory is taken."""
        shape = self.entry(part.name).shape
        if shape != part.full_shape:
            raise BadCheckpoint(f"{part.name} has shape {shape}, but the config says {part.full_shape}")

    def entry(self, name: str) -> TensorEntry:
        """Dtype and shape of a tensor, as its file states them. Raises BadCheckpoint where it is missing."""
        found = self._resolve(name)
        return self._file(found).entry(found)

    def reader(self) -> Checkpoint:
        """The same files as those of the encoder alone, of a model that has a decoder too."""
        spec = self.spec.reader
        assert spec is not None, "only a model that reads one text and writes another has two halves"
        return Checkpoint(self.path, spec, self._shard_of)

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this very name in the files, or in those that the index names."""
        return self._found(name) is not None

    def has_own_head(self) -> bool:
        """Whether there is a head in the files that is not the embedding, though the config ties them: some were
        trained on their own, and transformers 5 takes what is there. Reads both where both are there.

        Raises BadCheckpoint where they cannot be read.
        """
        names = self.spec.names
        embedding, head = self._known(names.embedding), self._found(names.head)
        if not self.spec.tied_embeddings or embedding is None or head is None or embedding == head:
            return False
        entries = [self._file(each).entry(each) for each in (embedding, head)]
        if entries[0].shape != entries[1].shape or entries[0].dtype != entries[1].dtype:
            return True
        rows = entries[0].shape[0]
        for begin in range(0, rows, COMPARED_ROWS):
            block = range(begin, min(begin + COMPARED_ROWS, rows))
            if not torch.equal(self.read(embedding, block), self.read(head, block)):
                return True
        return False

    def head_matrix(self) -> WeightPart:
        """The matrix to the vocabulary, where it is in the files. Raises BadCheckpoint as ``has_own_head`` does."""
        matrix = head_parts(self.spec).matrix
        return dataclasses.replace(matrix, name=self.spec.names.head) if self.has_own_head() else matrix

    def shards_of(self, names: list[str]) -> list[str]:
        """The names of the files that hold these tensors, sorted."""
        return sorted({self._shard_of[self._resolve(name)] for name in names})

    def digest(self) -> str:
        """Identifies the model as "sha256:" and 64 hex digits, quickly, however large it is.

        Covers what the config says of the computation and, for every tensor the model uses, its name,
        dtype, shape and eight windows of 4 KiB. It tells different models and revisions apart, in whatever
        shards they are stored. It is no proof against tampering: a change between the windows goes unseen.
        Raises BadCheckpoint unless all shards are there.
        """
        fields = {key: value for key, value in dataclasses.asdict(self.spec).items() if self._in_digest(key, value)}
        state = hashlib.sha256(json.dumps(fields, sort_keys=True).encode())
        specs = [spec for spec in (self.spec, self.spec.reader) if spec is not None]
        for name in sorted({part.name for spec in specs for part in slice_parts(spec, whole(spec))}):
            entry = self.entry(name)
            state.update(json.dumps([name, entry.dtype, entry.shape]).encode())
            state.update(self._sample(self._resolve(name)))
        names = self.spec.names
        embedding, head = self._known(names.embedding), self._found(names.head)
        # A head of its own, though the config ties it; most files that have both have the same in both.
        if self.spec.tied_embeddings and embedding and head and self._sample(embedding) != self._sample(head):
            state.update(self._sample(head))
        return f"sha256:{state.hexdigest()}"

    def _sample(self, found: str) -> bytes:
        return self._file(found).sample(found, DIGEST_WINDOW_BYTES, DIGEST_WINDOWS)

    @staticmethod
    def _in_digest(key: str, value: object) -> bool:
        """Fields that came later count where they are not what they were when there were none."""
        return key not in _NOT_IN_DIGEST and (key not in _DEFAULTS or value != _DEFAULTS[key])

    def _resolve(self, name: str) -> str:
        """The name that the files use: some leave out the leading prefix, some keep of a tied pair only the head."""
        found = self._known(name)
        if found is None and name == self.spec.names.embedding and self.spec.tied_embeddings:
            found = self._found(self.spec.names.head)
        if found is None:
            raise BadCheckpoint(f"{self.path} has no tensor {name}; its config.json belongs to another model")
        return found

    def _known(self, name: str) -> str | None:
        """The tensor of this name, or of one that other versions of transformers have for it, as the files name it."""
        return next((found for found in map(self._found, self._names_of(name)) if found is not None), None)

    def _names_of(self, name: str) -> list[str]:
        names = [name]
        for renaming in self.spec.names.renamings:
            other = name
            for piece, instead in renaming:
                other = other.replace(piece, instead)
            names.append(other)
        return names

    def _check_embeddings(self) -> None:
        """That who reads and who writes look tokens up in the same table: transformers 5 takes what is there, and here
        there is one. Windows of the tables are compared. Raises UnsupportedModel."""
        if self.spec.reader is None:
            return
        named = sorted({name for name in self._names_of(self.spec.names.embedding) if name in self._shard_of})
        tables = [name for name in named if (self.path / self._shard_of[name]).is_file()]
        if len({self._sample(name) for name in tables}) > 1:
            raise UnsupportedModel(f"{' and '.join(tables)} differ: several embeddings of a model are not supported")

    def _found(self, name: str) -> str | None:
        """A name as the files have it, with the leading prefix or without."""
        return next(
            (each for each in (name, name.removeprefix(self.spec.names.prefix)) if each in self._shard_of), None
        )

    def _file(self, found: str) -> SafetensorsFile:
        shard = self._shard_of[found]
        if shard not in self._files:
            if not (self.path / shard).is_file():
                raise BadCheckpoint(f"{self.path} lacks {shard}, which holds {found}; fetch that file of the model too")
            self._files[shard] = SafetensorsFile(self.path / shard)
        return self._files[shard]


def read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name, from an index. Raises BadCheckpoint for anything but files of the same folder."""
    shard_of = read_object(path, MAX_INDEX_BYTES).get("weight_map")
    if not isinstance(shard_of, dict) or not shard_of:
        raise BadCheckpoint(f"{path} has no weight_map; fetch the file again")
    for name, shard in shard_of.items():
        safe = isinstance(shard, str) and shard.endswith(".safetensors") and not shard.startswith(".")
        if not safe or len(shard) > MAX_FILE_NAME_CHARACTERS or any(character in shard for character in "/\\:\0"):
            raise BadCheckpoint(f"{path} places {name!r} in {shard!r}, which is no safetensors file of that folder")
    return shard_of


def read_object(path: Path, most_bytes: int) -> dict[str, Any]:
    """A JSON object from a file of a stranger's. Raises BadCheckpoint for anything else, or more bytes."""
    found = read_json(path, most_bytes)
    if not isinstance(found, dict):
        raise BadCheckpoint(f"{path} is no JSON object")
    return found


def read_json(path: Path, most_bytes: int) -> Any:
    """What a JSON file of a stranger's says. Raises BadCheckpoint where it cannot be read, or has more bytes."""
    try:
        with open(path, "rb") as file:
            text = file.read(most_bytes + 1)
        if len(text) > most_bytes:
            raise BadCheckpoint(f"{path} is larger than {most_bytes} bytes")
        return json.loads(text.decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise BadCheckpoint(f"{path} cannot be read as JSON: {error}") from error
