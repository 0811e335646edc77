"""``python -m cloud_server.stage``: some of the layers in a process of their own, one stage of a pipeline.

Started by the cloud server (``pipeline.py``) and nobody else; it ends when that one does, or when a neighbour is gone.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass
from time import perf_counter

import structlog
import torch

from cloud_server.attention import BackendMissing, choose_backend
from cloud_server.pool import KVPool, Moves, PagedSpan
from cloud_server.runner import LayerStep
from cloud_server.stage_link import TRANSPORTS, Link, Place, reach_store, stage_device
from cloud_server.stage_wire import BadHead, Head
from service.logs import configure_logs
from service.settings import setting, settings_command
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.slices import Slice
from split_model.stack import Stack

LOADED = "loaded/"
"""What a stage writes into the store, with its rank, once it has its layers."""

PARENT_LOOKED_FOR_EVERY_S = 0.5

log = structlog.get_logger()


@dataclass(frozen=True)
class StageConfig:
    """One stage of the cloud server's pipeline. Started by the cloud server, not by hand."""

    model: str = setting(help="checkpoint folder")
    first_layer: int = setting(help="first layer of this stage", minimum=0)
    last_layer: int = setting(help="the layer behind its last one", minimum=1)
    dtype: str = setting(help="number format of weights and hidden states", choices=("float32", "bfloat16"))
    device: str = setting(help="where the layers run")
    attention: str = setting(help="attention kernels")
    transport: str = setting(help="how hidden states go from stage to stage", choices=TRANSPORTS)
    pages: int = setting(help="pages of the KV cache; in every stage the same", minimum=1)
    page_positions: int = setting(help="positions in one page", minimum=1)
    threads: int = setting(help="threads for the matrix products; 0: PyTorch's choice", minimum=0)
    rank: int = setting(help="number of this stage", minimum=1)
    stages: int = setting(help="how many there are, the cloud server's own included", minimum=2)
    generation: int = setting(help="which start of the pipeline this is", minimum=1)
    store_port: int = setting(help="port of the rendezvous on loopback", minimum=1, maximum=65535)
    parent_pid: int = setting(help="process of the cloud server", minimum=1)
    log_level: str = setting("info", "what to log", choices=("debug", "info", "warning", "error"))
    log_form: str = setting("text", "how to log", choices=("text", "json"))


def load(config: StageConfig) -> LayerStep:
    """The layers of a stage and their pages. Raises ``ModelError``, ``ValueError``, ``BackendMissing``."""
    device, dtype = stage_device(config.device, config.rank, config.stages), getattr(torch, config.dtype)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    checkpoint = Checkpoint.open(config.model)
    spec, held = checkpoint.spec, Slice(config.first_layer, config.last_layer)
    backend = choose_backend(device, dtype, config.attention, spec.head_dim)
    stack = Stack.load(checkpoint, held, dtype, device)
    pool = KVPool(held.num_layers, spec.num_kv_heads, spec.head_dim, dtype, device, config.pages, config.page_positions)
    return LayerStep(stack, pool, backend)


def relay(link: Link, step: LayerStep, rank: int) -> None:
    """Compute what comes and pass it on, strictly in order, until a neighbour is gone: ``RuntimeError``, ``BadHead``.

    What another stage has failed at passes through. What fails here goes on as failed, without its rows.
    """
    while True:
        head, spans, hidden, moves = link.receive()
        if hidden is not None:
            began = perf_counter()
            hidden = _compute(step, hidden, spans, moves, rank)
            spent = head.microseconds + round((perf_counter() - began) * 1e6)
            head = Head(head.number, failed=rank if hidden is None else -1, microseconds=spent)
        link.send(head, spans if head.has_rows else [], hidden, moves)


def _compute(
    step: LayerStep, hidden: torch.Tensor, spans: list[PagedSpan], moves: Moves, rank: int
) -> torch.Tensor | None:
    try:
        outputs = step(hidden.to(step.stack.device), spans, moves)
    except Exception as error:  # Whatever it is, it is this step's alone.
        cause = error.__cause__ or error
        log.error("step failed in a stage", stage=rank, error=type(cause).__name__)
        outputs = None
    if step.stack.device.type == "cuda":
        # Also where the step failed: a GPU that is lost for good raises here, which ends the process.
        torch.cuda.synchronize(step.stack.device)
    return outputs


def run(config: StageConfig) -> None:
    """Load, join, and work until the cloud server or a neighbour is gone."""
    configure_logs(f"stage {config.rank}", config.log_level, config.log_form)
    threading.Thread(target=_end_with, args=(config.parent_pid,), name="parent", daemon=True).start()
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        step = load(config)
    except (ModelError, ValueError, BackendMissing) as error:
        raise SystemExit(f"Cannot load {config.model}: {error}") from error
    stack = step.stack
    try:
        store = reach_store(config.store_port, config.stages)
        store.set(f"{LOADED}{config.rank}", "")
        place = Place(config.rank, config.stages, config.generation, stack.device, config.transport)
        link = Link(store, place, stack.spec.hidden_size, stack.dtype)
        relay(link, step, config.rank)
    except (RuntimeError, BadHead) as error:
        # Usual where the cloud server stops or another stage has died; the cloud server says which.
        log.debug("the pipeline is gone", error=str(error))
        raise SystemExit(1) from None


def _end_with(parent: int) -> None:
    """End the process, whatever it is doing, once its parent is gone."""
    while os.getppid() == parent:
        time.sleep(PARENT_LOOKED_FOR_EVERY_S)
    os._exit(1)


main = settings_command(StageConfig, run, name="python -m cloud_server.stage")

if __name__ == "__main__":
    main(prog_name=main.name)
