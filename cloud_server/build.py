"""A cloud server from its settings: layers, pages sized from memory, runner, engine."""

from __future__ import annotations

from pathlib import Path

import torch

from cloud_server.cache.memory import page_count
from cloud_server.cache.pool import KVPool
from cloud_server.cache.pool_attention import choose_backend
from cloud_server.config import CloudConfig
from cloud_server.engine.engine import Engine
from cloud_server.engine.entries import Limits
from cloud_server.engine.ledger import Ledger
from cloud_server.metrics import CloudMetrics
from cloud_server.server import CloudServer
from cloud_server.stages.layer_step import LayerStep
from cloud_server.stages.pipeline import LOOPBACK, PipelineRunner, RemoteStages
from cloud_server.stages.plan import stage_device, stage_layers
from cloud_server.stages.runner import LocalRunner, Runner
from cloud_server.stages.stage import StageConfig
from peers.secret import BY_CERTIFICATE
from service.traces import NO_TRACES, Traces
from split_model.checkpoint import Checkpoint
from split_model.device import choose_device
from split_model.free_memory import free_bytes
from split_model.hub import identity, resolve
from split_model.load_apart import load_apart
from split_model.names import model_name
from split_model.slices import Slice, middle_slice, slice_bytes
from split_model.spec import ModelSpec
from split_model.stack import Stack
from wire.hello import CloudIdentity
from wire.limits import CLOUD_LINK

USUAL_POSITIONS = 32768
"""Of one session, where nobody says and the model has no more."""


def build(config: CloudConfig, traces: Traces = NO_TRACES) -> CloudServer:
    """The server of a configuration, its layers (or those of its first stage) loaded.

    Raises:
        ModelError: the checkpoint is missing, broken or not supported; the message says what to do.
        ValueError: there is no such device here, the split or the number of stages does not fit the model, or the pages
            do not fit the memory.
        BackendMissing: the attention asked for cannot be used here.
    """
    path = resolve(config.model, only=lambda spec: [middle_slice(spec, config.split, config.tail)])
    checkpoint = Checkpoint.open(path)
    spec = checkpoint.spec
    part = middle_slice(spec, config.split, config.tail)
    stages = [range(part.first_layer, part.last_layer)]
    if config.stages > 1:
        stages = stage_layers(part.first_layer, part.last_layer, config.stages)
    dtype, where = getattr(torch, config.dtype), _device(config, spec, part)
    device = stage_device(where, 0, config.stages)
    backend = choose_backend(device, dtype, config.attention, spec.head_dim, config.page_positions)
    held = Slice(stages[0].start, stages[0].stop)
    stack = load_apart(lambda: Stack.load(checkpoint, held, dtype, device))
    pages = _page_count(config, spec, stages, where)
    try:
        pool = KVPool(held.num_layers, spec.num_kv_heads, spec.head_dim, dtype, device, pages, config.page_positions)
    except (MemoryError, OverflowError, RuntimeError) as error:
        raise ValueError(f"there is no memory for {pages} pages of keys and values: lower --kv-mb") from error
    served = CloudIdentity(
        model=config.name_in_cloud or model_name(config.model),
        digest=identity(checkpoint),
        first_layer=part.first_layer,
        last_layer=part.last_layer,
        hidden_size=spec.hidden_size,
        dtype=config.dtype,
        credential=config.cloud_token,
        certificates=bool(config.tls_cert and config.tls_ca),
    )
    engine = Engine(
        _runner(config, LayerStep(stack, pool, backend), path, stages, served.digest, where),
        Ledger(_limits(config, spec, pages)),
        CloudMetrics(traces),
        served,
        step_rows=config.step_rows,
        slack=config.step_slack,
    )
    about = {"loaded_bytes": stack.loaded_bytes, "kv_bytes": pool.nbytes, "device": str(device)}
    return CloudServer(config, engine, about, traces)


def _device(config: CloudConfig, spec: ModelSpec, part: Slice) -> str:
    """Where the layers run: ``cuda``, of a pipeline, is a GPU to each stage where there are as many. Raises ValueError
    where there is no such device."""
    stages = config.stages
    found = choose_device(config.device, slice_bytes(spec, part, config.dtype) // stages)
    return found.type if stages > 1 and ":" not in config.device else str(found)


def _runner(config: CloudConfig, step: LayerStep, path: Path, stages: list[range], digest: str, where: str) -> Runner:
    if len(stages) == 1:
        return LocalRunner(step, config.step_rows)
    elsewhere = RemoteStages()
    if config.remote_stages:
        host, _, port = (config.stage_address or f"{LOOPBACK}:0").rpartition(":")
        secret, tls = config.stage_token or BY_CERTIFICATE, config.equals_tls
        elsewhere = RemoteStages(config.remote_stages, host.strip("[]"), int(port), secret, digest, tls)
    shows = elsewhere.tls is not None
    like = StageConfig(
        join="",
        stage_token=elsewhere.secret,
        tls_cert=config.tls_cert if shows else "",
        tls_key=config.tls_key if shows else "",
        tls_ca=config.tls_ca if shows else "",
        model=str(path),
        device=where,
        attention=config.attention,
        threads=config.threads,
        log_level=config.log_level,
        log_form=config.log_form,
    )
    return PipelineRunner(
        step, stages, like, elsewhere=elsewhere, transport=config.transport, warm_rows=config.step_rows
    )


def _page_count(config: CloudConfig, spec: ModelSpec, stages: list[range], where: str) -> int:
    """Pages for every stage, the first of which is loaded: as many as the memory of each holds beside its layers, or
    that of all together beside all their layers where they share one. Those on other machines must have it too."""
    dtype = getattr(torch, config.dtype)
    stages = stages[: len(stages) - config.remote_stages]
    most = config.max_sessions * -(-_longest(config, spec) // config.page_positions)
    shared = len({stage_device(where, rank, config.stages) for rank in range(len(stages))}) == 1

    def page_bytes(layers: int) -> int:
        return KVPool.bytes_of_page(layers, spec.num_kv_heads, spec.head_dim, dtype, config.page_positions)

    if config.kv_mb:
        counted = page_bytes(sum(map(len, stages)) if shared else max(map(len, stages)))
        return max(1, config.kv_mb * 10**6 // counted) if counted else most  # Without layers a page takes no memory.
    # The other stages load theirs later, each in a process of its own.
    weights = [0, *(slice_bytes(spec, Slice(layers.start, layers.stop), dtype) for layers in stages[1:])]
    if shared:
        free = free_bytes(stage_device(where, 0, config.stages)) - sum(weights)
        return page_count(free, page_bytes(sum(map(len, stages))), most)
    return min(
        page_count(free_bytes(stage_device(where, rank, config.stages)) - weight, page_bytes(len(layers)), most)
        for rank, (layers, weight) in enumerate(zip(stages, weights, strict=True))
    )


def _longest(config: CloudConfig, spec: ModelSpec) -> int:
    """Positions that one session may have. Where nobody says, devices are trusted to hold to what the model has."""
    longest = config.max_model_len or max(spec.max_positions, USUAL_POSITIONS)
    return longest if spec.position_limit is None else min(longest, spec.position_limit)


def _limits(config: CloudConfig, spec: ModelSpec, pages: int) -> Limits:
    return Limits(
        sessions=config.max_sessions,
        device_sessions=config.max_device_sessions,
        positions=min(_longest(config, spec), pages * config.page_positions),
        window_rows=config.window_rows,
        rows=min(config.max_rows, config.window_rows, CLOUD_LINK.rows_of(spec.hidden_size, config.dtype)),
        pages=pages,
        page_positions=config.page_positions,
        parked_sessions=config.parked_sessions,
        idle_s=config.idle_s,
        resume_s=config.resume_s,
    )
