"""From a model's name to a folder on disk: a local path as it is, a hub id through huggingface_hub's cache.

Of a hub model only the files that hold the asked slice are fetched. Once they are in the cache, no network is
needed; `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE` and `HF_TOKEN` work as everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from split_model.checkpoint import (
    INDEX_FILE,
    MAX_CONFIG_BYTES,
    MAX_FILE_NAME_CHARACTERS,
    SINGLE_FILE,
    Checkpoint,
    read_index,
    read_object,
)
from split_model.errors import BadCheckpoint, ModelNotFound
from split_model.slices import Slice, slice_parts, whole
from split_model.spec import ModelSpec
from split_model.text_vectors import MODULES_FILE, pooling_files

OPTIONAL_FILES = (
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "vocab.txt",
    "spiece.model",
    "preprocessor_config.json",
    MODULES_FILE,
    "chat_template.jinja",
)
MAX_NAME_CHARACTERS = 200
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def resolve(
    model: str, *, only: Callable[[ModelSpec], Sequence[Slice]] | None = None, attention: str | None = "causal"
) -> Path:
    """The folder of a model, with config, tokenizer and at least the weights of `only` (None: all of them) in it.

    `only` is a function of the spec, which is known before any weights are fetched; `attention` is the kind of model
    that the caller can run, None: any. Raises ModelNotFound, saying what to do; UnsupportedModel before weights are
    fetched; BadCheckpoint for an index that cannot be trusted.
    """
    if _is_folder(model):
        return Path(model)
    config = _config(model)
    folder = config.parent
    spec = _spec(config)  # refuses an unsupported model before its weights are fetched
    if attention is not None:
        spec.check_attention(attention)
    # All files of the same commit, even if the branch moves on meanwhile; no question to the hub where cached.
    commit = folder.name
    there = any((folder / name).is_file() for name in (INDEX_FILE, SINGLE_FILE))
    for name in OPTIONAL_FILES:
        _fetch(model, name, commit, there)
    if (folder / MODULES_FILE).is_file():
        for name in pooling_files(folder):
            _fetch(model, name, commit, there)
    index = _fetch(model, INDEX_FILE, commit, there)
    if index is None:
        if _fetch(model, SINGLE_FILE, commit, there) is None:
            raise ModelNotFound(f"{model} has no safetensors weights; choose a copy of it that has")
        return folder
    checkpoint = Checkpoint(folder, spec, read_index(index))
    slices = [whole(spec)] if only is None else only(spec)
    names = [part.name for held in slices for part in slice_parts(spec, held)]
    if spec.tied_embeddings and spec.names.embedding in names and checkpoint.has(spec.names.head):
        names.append(spec.names.head)  # It may be another one, though the config ties them.
    if spec.reader is not None:  # Who runs any of it has both halves.
        names += [part.name for part in slice_parts(spec.reader, whole(spec.reader))]
    for shard in checkpoint.shards_of(names):
        if _fetch(model, shard, commit) is None:
            raise BadCheckpoint(f"the index of {model} names {shard}, which the hub does not have")
    return folder


def described(model: str) -> ModelSpec:
    """The spec of a model; no weights are fetched. Raises as `resolve` does."""
    if _is_folder(model):
        if not (Path(model) / "config.json").is_file():
            raise ModelNotFound(f"{model} has no config.json; name the folder of a Hugging Face model")
        return _spec(Path(model) / "config.json")
    return _spec(_config(model))


def _is_folder(model: str) -> bool:
    """Whether this is a folder here. Raises ModelNotFound where it is no hub id either."""
    if model and all(len(part) <= MAX_FILE_NAME_CHARACTERS for part in Path(model).parts) and Path(model).is_dir():
        return True
    if not _HUB_ID.fullmatch(model) or len(model) > MAX_NAME_CHARACTERS or ".." in model:
        raise ModelNotFound(f"{model!r} is neither a folder here nor a hub id such as 'Qwen/Qwen3-0.6B'")
    return False


def _config(model: str) -> Path:
    config = _fetch(model, "config.json")
    if config is None:
        raise ModelNotFound(f"{model} on the hub has no config.json: it is not in the Hugging Face format")
    return config


def identity(checkpoint: Checkpoint) -> str:
    """What two processes compare to know that they hold the same weights.

    In the hub's cache the commit, which names every byte and is known where only some shards were fetched; of any
    other folder the digest, for which all shards must be there. Raises BadCheckpoint.
    """
    folder = checkpoint.path
    if folder.parent.name == "snapshots" and _COMMIT.fullmatch(folder.name):
        return f"commit:{folder.name}"
    return checkpoint.digest()


def _fetch(model: str, name: str, commit: str | None = None, there: bool = False) -> Path | None:
    """The file in the cache, fetched if need be; None where the model has no such file.

    commit: None: the newest one. there: weights are in the cache already, and so is all else that the model has.
    """
    import huggingface_hub
    from huggingface_hub import errors

    if commit is not None:
        known = huggingface_hub.try_to_load_from_cache(model, name, revision=commit)
        if known is not None:
            # A path, or the mark of a file that this commit is known not to have.
            return Path(known) if isinstance(known, str) else None
    try:
        return Path(huggingface_hub.hf_hub_download(model, name, revision=commit))
    except errors.GatedRepoError as error:
        raise ModelNotFound(f"{model} is gated: accept its licence on the hub and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"the hub has no model {model}, or it is private: check the name, or set HF_TOKEN"
        ) from error
    except errors.LocalEntryNotFoundError as error:
        known = there or huggingface_hub.constants.HF_HUB_OFFLINE
        if known and (name in OPTIONAL_FILES or name in (INDEX_FILE, SINGLE_FILE)):
            # Offline, a file that was never fetched looks like one that does not exist.
            return None
        raise ModelNotFound(
            f"{name} of {model} is not in the cache and the hub cannot be reached: "
            "connect once, or name a local folder (HF_HUB_OFFLINE keeps the hub from being asked)"
        ) from error
    except errors.EntryNotFoundError:
        return None
    except (errors.RevisionNotFoundError, errors.HFValidationError) as error:
        raise ModelNotFound(f"the hub did not give {name} of {model}: {error}") from error
    except Exception as error:  # Of the disk, or of whichever HTTP client the hub's package has.
        why = f"{str(error) or type(error).__name__}; start again, what is here already is kept"
        raise ModelNotFound(f"the hub did not give {name} of {model}: {why}") from error


def _spec(config: Path) -> ModelSpec:
    return ModelSpec.from_config(read_object(config, MAX_CONFIG_BYTES))
