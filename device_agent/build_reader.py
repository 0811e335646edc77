"""A device agent for a model that reads and writes nothing, and what kind of model one is."""

from __future__ import annotations

import secrets
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import torch

from device_agent.agent_process import Device, device_of
from device_agent.answering.images import Pixels
from device_agent.answering.inputs import TextLimits
from device_agent.answering.reading import ServedReader
from device_agent.answering.tokenizer import Tokenizer
from device_agent.build_group import build_group
from device_agent.chain.chain import Chain
from device_agent.chain.chain_reader import ChainReader
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.reader import AT_ONCE_ROWS, Reader
from device_agent.chain.within_memory import loader_of, residence_within, too_little
from device_agent.config import DeviceConfig
from device_agent.sharing.compute import Compute, FairThreads
from device_agent.sharing.permits import Permits
from service.modes import MODES, NO_DRAFT
from service.sizes import bytes_of
from split_model.checkpoint import Checkpoint
from split_model.classes import Classes
from split_model.device import AUTO, choose_device
from split_model.encoder import Encoder
from split_model.encoder_rows import PatchRows, TextRows
from split_model.hub import described, resolve
from split_model.load_apart import load_apart
from split_model.names import model_name
from split_model.offload.budget import BudgetTooSmall
from split_model.offload.loader import Loader
from split_model.pooling import Pooling
from split_model.slices import slice_bytes, whole
from split_model.spec import ModelSpec
from split_model.submodel import ReadingSubmodel
from split_model.text_vectors import TextVectors, text_vectors
from wire.request_messages import ServedModel

READERS = 2
"""Requests whose texts are tokenised, or images decoded, at once."""


Kind = Literal["reads", "translates", "writes"]


def kind_of(model: str) -> Kind:
    """Whether a model only reads, reads one text and writes another, or writes on. Raises ModelError as ``resolve``
    does."""
    kinds: dict[str, Kind] = {"bidirectional": "reads", "cross": "translates", "causal": "writes"}
    return kinds[described(model).attention]


def check_translates(config: DeviceConfig) -> None:
    """Raises ValueError where a model that reads one text and writes another cannot be served with these settings."""
    mode = MODES[config.mode]
    if mode.has_cloud:
        raise ValueError(
            f"it reads one text and writes another, which --mode {config.mode} cannot do: say --mode local"
        )
    if mode.group and config.split:
        raise ValueError("a group has all layers of a model that reads one text and writes another: leave --split out")
    if set(config.draft) - {NO_DRAFT}:
        raise ValueError("drafts are for models that write on from a text: leave --draft out")


def memory_of(config: DeviceConfig) -> int:
    """Bytes that all layers, kept here, must do with; 0: nothing was said, or a group's plan sees to it.

    Raises ValueError where ``--memory`` means nothing.
    """
    memory, mode = bytes_of("--memory", config.memory), MODES[config.mode]
    if memory and mode.has_cloud:
        raise ValueError(f"--memory is for --mode local and for groups, and --mode {config.mode} is neither")
    return 0 if mode.group else memory


def build_reader(config: DeviceConfig, opened: ExitStack) -> Device:
    """Load it and connect the pieces; nothing is dialled yet. opened: closed by the caller where something fails here.

    Raises:
        ModelError: the checkpoint is missing, broken or not supported.
        ValueError: the mode has a cloud, drafters are named, there is no such ``--device`` here, or no group runs it.
    """
    mode = MODES[config.mode]
    if mode.has_cloud:
        raise ValueError(f"it reads whole texts or images, which --mode {config.mode} cannot do: say --mode local")
    if set(config.draft) - {NO_DRAFT}:
        raise ValueError("it reads and writes nothing: leave --draft out")
    path = resolve(config.model, only=lambda spec: [whole(spec)], attention=None)
    checkpoint = Checkpoint.open(path, None)
    spec = checkpoint.spec
    vectors = text_vectors(path, spec)
    classes = Classes.read(path, spec.labels) if spec.labels else None
    if vectors is None and classes is None:
        raise ValueError("it has no classifier, and there is no vector of it: there is nothing to serve")
    images = spec.patches is not None
    pixels = Pixels.load(path, spec) if images else None
    tokenizer = None if images else Tokenizer.load(path, ())
    name = config.name or f"device-{secrets.token_hex(4)}"
    compute = Compute()
    group = build_group(config, name, checkpoint, whole(spec)) if mode.group else None
    elsewhere = group.submodel if group is not None else None
    reader, loaded_bytes, loader = _reader(config, checkpoint, compute, elsewhere, opened)
    longest = min(spec.max_positions, reader.submodel.max_rows, config.max_model_len or spec.max_positions)
    model = ServedReader(
        reader=reader,
        tokenizer=tokenizer,
        pixels=pixels,
        limits=_limits(longest, spec, vectors),
        vectors=vectors,
        classes=classes,
        permits=Permits(config.max_num_seqs),
        readers=FairThreads(READERS, "input"),
    )
    served = _served(config, path, model)
    return device_of(config, name, served, model, group, loaded_bytes, loader)


def chain_reader(
    path: Path, chain: Chain, tokenizer: Tokenizer, positions: int, permits: Permits, readers: FairThreads
) -> ServedReader | None:
    """What says vectors of texts by a model that also writes; None where it reads one text and writes another.

    positions: most of one text. permits, readers: those of its answers. Raises BadCheckpoint, or UnsupportedModel
    where its checkpoint says that vectors are made in a way that cannot be computed.
    """
    spec = chain.parts.spec
    vectors = text_vectors(path, spec)
    if vectors is None:
        return None
    reader = ChainReader(chain, last_alone=vectors.last_alone)
    return ServedReader(reader, tokenizer, None, _limits(positions, spec, vectors), vectors, None, permits, readers)


def _reader(
    config: DeviceConfig,
    checkpoint: Checkpoint,
    compute: Compute,
    elsewhere: ReadingSubmodel | None,
    opened: ExitStack,
) -> tuple[Reader, int, Loader | None]:
    """What reads, the bytes loaded for it here, and what loads the rest; its layers where nobody has them
    ``elsewhere``."""
    spec, dtype = checkpoint.spec, getattr(torch, config.dtype)
    if elsewhere is None:
        memory = memory_of(config)
        on = "cpu" if memory and config.device == AUTO else config.device
        device = choose_device(on, slice_bytes(spec, whole(spec), dtype))
        rows = max(AT_ONCE_ROWS, min(config.max_model_len or spec.max_positions, spec.max_positions))
        loader: Loader | None = None
        if memory:
            try:
                stays = residence_within(spec, config.dtype, memory, positions=rows, rows=rows)
            except BudgetTooSmall as error:
                raise too_little(error, rows) from error
            loader = load_apart(lambda: loader_of(checkpoint, dtype, stays, config.code_weights == "auto", device))
            if loader is not None:
                opened.callback(loader.close)
        encoder = load_apart(lambda: Encoder.load(checkpoint, dtype, device, loader))
        here = LocalSubmodel(encoder.stack, compute)
        loaded_bytes = encoder.loaded_bytes + (0 if loader is None else loader.nbytes)
        return Reader(encoder.embedding, here, encoder.pooling, compute), loaded_bytes, loader
    kind: type[TextRows] | type[PatchRows] = TextRows if spec.patches is None else PatchRows
    embedding = load_apart(lambda: kind.load(checkpoint, dtype))
    pooling = load_apart(lambda: Pooling.load(checkpoint, dtype))
    return Reader(embedding, elsewhere, pooling, compute), embedding.loaded_bytes + pooling.loaded_bytes, None


def _limits(most: int, spec: ModelSpec, vectors: TextVectors | None) -> TextLimits:
    said = vectors or TextVectors()
    return TextLimits(
        max_positions=min(most, said.max_tokens or most),
        vocabulary=spec.vocab_size,
        token_types=spec.token_types > 1,
        prefix=said.prefix,
        lowers=said.lowers,
    )


def _served(config: DeviceConfig, path: Path, model: ServedReader) -> list[ServedModel]:
    """The model under each name that clients may use."""
    created = int(Path(path, "config.json").stat().st_mtime)
    longest = model.limits.max_positions
    characters = longest * model.tokenizer.longest_piece if model.tokenizer is not None else 0
    return [
        ServedModel(name, longest, created, [], characters, model.tasks, model.numbers)
        for name in config.served_model_name or (model_name(config.model),)
    ]
