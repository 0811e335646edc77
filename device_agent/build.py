"""A device agent from its settings: the ends of the model, drafters, the way to the middle layers."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import structlog
import torch

from device_agent.agent_process import Device, Elsewhere, device_of
from device_agent.answering.answer import ServedChain
from device_agent.answering.conversations import Conversations
from device_agent.answering.grammars import Grammars
from device_agent.answering.tokenizer import Tokenizer
from device_agent.build_group import PortalGroup, build_group
from device_agent.build_reader import Kind, build_reader, chain_reader, check_translates, kind_of, memory_of
from device_agent.chain.chain import Chain
from device_agent.chain.group_pruning import GroupPruner, group_order
from device_agent.chain.local import LocalSubmodel
from device_agent.chain.local_pruning import LocalPruner
from device_agent.chain.model_ends import DeviceParts
from device_agent.chain.prefill import WHOLE_PROMPT
from device_agent.chain.pruning import Pruner
from device_agent.chain.source import Sources
from device_agent.chain.within_memory import STREAMED_CHUNK, loader_of, too_little
from device_agent.cloud.remote import RemoteSubmodel
from device_agent.config import DeviceConfig
from device_agent.sharing.compute import Compute, FairThreads
from device_agent.sharing.permits import Permits
from device_agent.speculative.drafters import KINDS, Drafters, load_drafters
from device_agent.speculative.short_memory import ShortMemory
from device_agent.speculative.way import DraftingWays
from service.modes import MODES, NO_DRAFT
from service.sizes import bytes_of
from service.version import VERSION
from split_model.checkpoint import Checkpoint
from split_model.device import AUTO, choose_device
from split_model.hub import identity, resolve
from split_model.load_apart import load_apart
from split_model.names import model_name
from split_model.offload.budget import BudgetTooSmall
from split_model.offload.loader import Loader
from split_model.slices import Slice, held_bytes, input_slice, middle_slice, output_slice, slice_bytes
from split_model.slices import whole as whole_model
from split_model.spec import ModelSpec
from split_model.stack import Stack
from split_model.submodel import Submodel
from wire.reading_messages import Task
from wire.request_messages import ServedModel
from wire.session_messages import DeviceHello

READERS = 2
"""Prompts tokenised at once."""

FINGERPRINT_DIGITS = 12

log = structlog.get_logger()

LoadDrafters = Callable[[Sequence[str], Path, Checkpoint, int, torch.dtype, DeviceParts], Drafters]
"""What ``load_drafters`` is."""


def build(config: DeviceConfig, load: LoadDrafters = load_drafters) -> Device:
    """Load the parts and connect the pieces; nothing is dialled yet.

    Args:
        load: loads the drafters.

    Raises:
        ModelError: the checkpoint is missing, broken or not supported.
        BadDrafter: a drafter that was named is missing or does not fit the model.
        ValueError: the mode is not for such a model, there is no such ``--device`` here, ``--split`` and ``--tail`` do
            not fit the model, ``--drafters`` is no folder, the mode drafts with a small model and was given another
            drafter, or no group can run this.
    """
    kind = kind_of(config.model)
    if config.t_max and kind != "writes":
        raise ValueError("--t-max is for models that write on from a text: leave it out")
    with ExitStack() as opened:
        device = build_reader(config, opened) if kind == "reads" else _writer(config, kind, load, opened)
        opened.pop_all()
    return device


def _writer(config: DeviceConfig, kind: Kind, load: LoadDrafters, opened: ExitStack) -> Device:
    """Of a model that writes. opened: closed by the caller where something fails here."""
    if kind == "translates":
        check_translates(config)
    if config.mode == "u-small" and config.draft[0] in KINDS:
        raise ValueError(f"--mode u-small drafts with a small model, and {config.draft[0]} is none")
    mode, local = MODES[config.mode], config.mode == "local"
    drafts = (NO_DRAFT,) if kind == "translates" else config.wanted_drafters
    whole = local and set(drafts) == {NO_DRAFT}

    def held(spec: ModelSpec) -> list[Slice]:
        if not mode.has_cloud:  # A group's portal reads what the plan gives it.
            return [whole_model(spec)]
        return [input_slice(spec, config.split), output_slice(spec, config.tail)]

    path = resolve(config.model, only=held, attention=None)
    checkpoint = Checkpoint.open(path, "cross" if kind == "translates" else "causal")
    spec = checkpoint.spec
    if checkpoint.usual.ignored:
        log.warning("generation_config.json says what is not done here", fields=", ".join(checkpoint.usual.ignored))
    split, tail = config.split, config.tail
    folder = Path(config.drafters) if config.drafters else path / "drafters"
    if config.drafters and not folder.is_dir():
        raise ValueError(f"--drafters {config.drafters}: there is no such folder")
    # In a cloud the name is part of the tenant: devices that were given none are strangers to each other.
    name = config.name or f"device-{secrets.token_hex(4)}"
    dtype = getattr(torch, config.dtype)
    reader_bytes = 0 if spec.reader is None else slice_bytes(spec.reader, whole_model(spec.reader), dtype)
    on, most_bytes = "cpu" if mode.group else config.device, held_bytes(spec, held(spec), dtype) + reader_bytes
    memory = memory_of(config)
    device = choose_device("cpu" if memory and on == AUTO else on, most_bytes)
    positions = min(config.max_model_len or spec.max_positions, spec.max_positions)
    chunk = WHOLE_PROMPT if config.whole_prompts else config.chunk or (STREAMED_CHUNK if memory else 0)
    short = ShortMemory(checkpoint, config.dtype, folder, positions)
    loader: Loader | None = None
    if memory:
        rows = min(chunk, positions)
        try:
            if whole and not config.draft and kind == "writes":
                drafts, split, stays = short.drafted(memory, rows)
                whole = set(drafts) == {NO_DRAFT}
            else:
                split = 0 if whole else short.layers(drafts, split)
                stays = short.alone(memory, rows, drafts, split)
        except BudgetTooSmall as error:
            raise too_little(error, positions) from error
        loader = load_apart(lambda: loader_of(checkpoint, dtype, stays, config.code_weights == "auto", device))
        if loader is not None:
            opened.callback(loader.close)
    if config.mode == "lime" and not config.draft and not split and kind == "writes":
        drafts, split = short.beside(bytes_of("--memory", config.memory))
    if whole:
        split, tail = spec.num_layers, 0
    parts = load_apart(lambda: DeviceParts.load(checkpoint, split, tail, dtype, device, loader))
    loaded_bytes = parts.loaded_bytes + (0 if loader is None else loader.nbytes)
    drafters = load_apart(lambda: load(drafts, folder, checkpoint, split, dtype, parts))
    compute = Compute()
    remote: Elsewhere | None = None
    rest: Submodel | None = None
    group: PortalGroup | None = None
    middle = middle_slice(spec, split, tail)
    if local and not whole:
        # A draft is verified here: behind the layers it was drafted with come the others, as they do in the cloud.
        stack = load_apart(lambda: Stack.load(checkpoint, middle, dtype, device, loader=loader))
        loaded_bytes += stack.loaded_bytes
        rest = LocalSubmodel(stack, compute)
    elif mode.group:
        group = build_group(config, name, checkpoint, middle, short.front_bytes(split) + short.drafter_bytes(drafts))
        rest, remote = group.submodel, group
    elif mode.has_cloud:
        rest = remote = RemoteSubmodel(
            config.cloud,
            _hello(config, name, checkpoint, middle),
            config.reply_within_s,
            config.recover_within_s,
            may_pack=config.pack_rows == "auto",
            tls=config.tls(),
        )
    sources: Sources | None = None
    if kind == "translates":
        sources, more_bytes = load_apart(lambda: _sources(checkpoint, parts, group, dtype, compute, loader))
        loaded_bytes += more_bytes
    pruner: Pruner | None = None
    if config.t_max:
        pruner = _pruner(config, checkpoint, parts, rest, group, compute, max(2, positions), chunk)
    tokenizer = Tokenizer.load(path, spec.eos_token_ids, config.tool_call_parser, config.reasoning_parser)
    chain = Chain(parts, rest, compute, chunk, download_all=config.download == "all", sources=sources)
    permits, readers = Permits(config.max_num_seqs), FairThreads(READERS, "prompt")
    model = ServedChain(
        chain=chain,
        tokenizer=tokenizer,
        max_positions=positions,
        default_max_tokens=config.default_max_tokens,
        permits=permits,
        conversations=Conversations(config.conversations, config.conversation_mb * 2**20, config.conversation_s),
        ways=DraftingWays(drafters, config),
        readers=readers,
        grammars=Grammars.of(tokenizer, spec.vocab_size),
        pruner=pruner,
        usual=checkpoint.usual,
        reader=chain_reader(path, chain, tokenizer, positions, permits, readers),
    )
    served = _served(config, path, checkpoint, model)
    return device_of(config, name, served, model, remote, loaded_bytes, loader)


def _pruner(
    config: DeviceConfig,
    checkpoint: Checkpoint,
    parts: DeviceParts,
    rest: Submodel | None,
    group: PortalGroup | None,
    compute: Compute,
    longest: int,
    chunk: int,
) -> Pruner:
    """What leaves heads out, of layers that are here or in a group."""
    if group is not None:
        how = getattr(torch, config.dtype), config.prune_by, bytes_of("--memory", config.memory)
        found = load_apart(lambda: group_order(checkpoint, parts, *how))
        times, news = group.head_times, group.host.news
        about = checkpoint, parts, group.submodel, compute, found, config.t_max, longest, times, news
        pruned = GroupPruner(*about, told=group.host.renew, copies=group.attention_copies)
        group.says = lambda: pruned.words
        return pruned
    between = rest.stack if isinstance(rest, LocalSubmodel) else None
    pruner = LocalPruner(checkpoint, parts, between, config.t_max, longest, config.prune_by, chunk=chunk)
    load_apart(pruner.prepare)
    return pruner


def _sources(
    checkpoint: Checkpoint,
    parts: DeviceParts,
    group: PortalGroup | None,
    dtype: torch.dtype,
    compute: Compute,
    loader: Loader | None,
) -> tuple[Sources, int]:
    """What reads prompts, here or in a group, and the bytes that it takes here."""
    if group is None:
        return Sources.load(checkpoint, parts.embedding, parts.front, compute, loader)
    return Sources.over(checkpoint, parts.embedding, group.submodel, dtype, compute)


def _hello(config: DeviceConfig, name: str, checkpoint: Checkpoint, middle: Slice) -> DeviceHello:
    return DeviceHello(
        name=name,
        credential=config.cloud_token,
        model=config.name_in_cloud or model_name(config.model),
        digest=identity(checkpoint),
        first_layer=middle.first_layer,
        last_layer=middle.last_layer,
        hidden_size=checkpoint.spec.hidden_size,
        dtype=config.dtype,
        pads=config.pad_frames,
        takes_state=True,
    )


def _served(config: DeviceConfig, path: Path, checkpoint: Checkpoint, model: ServedChain) -> list[ServedModel]:
    """The model under each name that clients may use."""
    created = int(Path(path, "config.json").stat().st_mtime)
    characters, scores = model.max_positions * model.tokenizer.longest_piece, model.chain.sources is None
    computed = f"{identity(checkpoint)} {config.dtype} {VERSION}"
    fingerprint = f"fp_{hashlib.sha256(computed.encode()).hexdigest()[:FINGERPRINT_DIGITS]}"
    tasks: list[Task] = ["generate", *(model.reader.tasks if model.reader is not None else ())]
    numbers = model.reader.numbers if model.reader is not None else 0
    said = (model.max_positions, created, model.ways.drafters.names, characters, tasks, numbers)
    return [
        ServedModel(
            name,
            *said,
            t_max_s=config.t_max,
            scores=scores,
            grammars=model.grammars is not None,
            fingerprint=fingerprint,
            decides=scores,
            tools=model.tokenizer.dialect.tools,
        )
        for name in config.served_model_name or (model_name(config.model),)
    ]
