"""``trilby stage``: some of a cloud server's layers, in a process of their own, on its machine or on another.

The cloud server starts those of its own machine (``processes.py``), which end with it. One on another machine is
started there, and dials again whenever its pipeline has ended: the next start takes it in.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, dataclass, field
from time import perf_counter
from typing import Any, Literal

import structlog
import torch

from cloud_server.cache.pool import KVPool, Moves
from cloud_server.cache.pool_attention import BackendMissing, choose_backend
from cloud_server.cache.span import PagedSpan
from cloud_server.config import MachineSettings, RemoteStageSettings
from cloud_server.stages.layer_step import LayerStep
from cloud_server.stages.link import Link, Place
from cloud_server.stages.plan import ALL_LOADED, LOADED, LOADED_WITHIN_S, StagePlan, stage_device
from cloud_server.stages.step_wire import BadHead, StepHead
from peers.membership import Membership, join
from peers.secret import BY_CERTIFICATE
from peers.staying import stay
from service.alive_file import AliveSettings, alive_while
from service.logs import configure_logs, end_process
from service.secret_files import current
from service.settings import changed, setting, settings_command
from service.shared_settings import ModelSettings, ProcessSettings
from service.stopping import end_at_once
from service.tls_settings import TlsSettings
from split_model.checkpoint import Checkpoint
from split_model.device import AUTO, DeviceLost, choose_device
from split_model.errors import ModelError
from split_model.hub import identity, resolve
from split_model.slices import Slice, slice_bytes
from split_model.stack import Stack
from wire.errors import Code, ConnectionFailed

END_WITHIN_S = 10.0
"""A stage that still computes for a pipeline that has ended so long ago hangs."""

EXAMPLES = """
TRILBY_STAGE_TOKEN=… trilby stage --join 10.0.0.1:8002 --model Qwen/Qwen3-32B --device cuda
trilby stage --join 10.0.0.1:8002 --model /models/qwen --stage-token-file /run/secrets/stage-token
"""

log = structlog.get_logger()


@dataclass(frozen=True)
class StageConfig(TlsSettings):
    """Run some of the middle layers for a cloud server on another machine. Which ones, the cloud server says.

    Without --tls-cert, hidden states travel between the two neither encrypted nor signed: both belong into one trusted
    network or a VPN then.
    """

    join: str = setting(help="where the cloud server waits for stages (its --stage-address), as HOST:PORT")
    model: str = changed(ModelSettings, "model", MISSING)
    stage_token: str = changed(RemoteStageSettings, "stage_token", "", tunes=False)
    device: str = changed(ModelSettings, "device", "auto")
    attention: Literal["auto", "sdpa", "varlen", "flash"] = changed(MachineSettings, "attention", "auto")
    threads: int = changed(ModelSettings, "threads", 0)
    seat: int = setting(0, "number in the pipeline; 0: any that is free", minimum=0, tunes=True)
    redial: bool = setting(True, "wait for the next pipeline when one has ended", tunes=True)
    log_level: Literal["debug", "info", "warning", "error"] = changed(ProcessSettings, "log_level", "info")
    log_form: Literal["text", "json"] = changed(ProcessSettings, "log_form", "text")
    alive_path: str = changed(AliveSettings, "alive_path", "")

    def __post_init__(self) -> None:
        """Raises ``ValueError`` where it could not show that it belongs."""
        self.check_tls()
        self.check_equals(self.stage_token, "a --stage-token (TRILBY_STAGE_TOKEN)")


class CannotLoad(ConnectionFailed):
    """The layers asked for cannot be had here; dialling again would not help."""

    def __init__(self, why: str) -> None:
        super().__init__(Code.INTERNAL, f"cannot load its layers: {why}")


@dataclass
class Life:
    """A stage in one life of its pipeline: from loading to the end of the pipeline, on the compute thread."""

    config: StageConfig
    membership: Membership
    _link: Link | None = field(default=None, init=False)

    def run(self) -> None:
        """Raises ``CannotLoad``, ``DeviceLost``; ``RuntimeError`` and ``BadHead`` once the pipeline has ended."""
        rank, board = self.membership.rank, self.membership.board
        try:
            plan = StagePlan.read(self.membership.plan)
            step = load(self.config, plan, self.membership.size)
        except (ModelError, ValueError, BackendMissing, MemoryError) as error:
            raise CannotLoad(f"{type(error).__name__}: {error}") from error
        stack = step.stack
        place = Place(rank, self.membership.size, self.membership.address, stack.device, plan.transport)
        board.post(f"{LOADED}{rank}", b"")
        log.info("layers loaded", stage=rank, layers=f"{plan.first_layer}-{plan.last_layer}")
        board.get(ALL_LOADED, LOADED_WITHIN_S)
        self._link = Link(board, place, stack.spec.hidden_size, stack.dtype)
        try:
            board.has(())  # It may have ended meanwhile, when there was nothing yet to abort.
            relay(self._link, step, rank)
        finally:
            self._link.abort()

    @property
    def ends_within_s(self) -> float:
        """How long ``run`` may go on for a pipeline that has ended: loading cannot be broken off."""
        return LOADED_WITHIN_S if self._link is None else END_WITHIN_S

    def abort(self) -> None:
        """The pipeline has ended, so ``run`` shall. On any thread."""
        if self._link is not None:
            self._link.abort()


def load(config: StageConfig, plan: StagePlan, stages: int) -> LayerStep:
    """The layers of a stage and their pages. Raises ``ModelError``, ``ValueError``, ``BackendMissing``."""
    dtype, held = getattr(torch, plan.dtype), Slice(plan.first_layer, plan.last_layer)
    checkpoint = Checkpoint.open(resolve(config.model, only=lambda _: [held]))
    if plan.digest and identity(checkpoint) != plan.digest:
        raise ValueError("the weights are not the cloud server's: use the same revision of the checkpoint on both")
    spec = checkpoint.spec
    # Of its own machine the cloud server shares the GPUs out; on another, this one has the device that it is given.
    if config.seat and config.device != AUTO:
        device = stage_device(config.device, config.seat, stages)
    else:
        device = choose_device(config.device, slice_bytes(spec, held, dtype))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    backend = choose_backend(device, dtype, config.attention, spec.head_dim, plan.page_positions)
    stack = Stack.load(checkpoint, held, dtype, device)
    pool = KVPool(held.num_layers, spec.num_kv_heads, spec.head_dim, dtype, device, plan.pages, plan.page_positions)
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
            head = StepHead(head.number, failed=rank if hidden is None else -1, microseconds=spent)
        link.send(head, spans if head.has_rows else [], hidden, moves)


def _compute(
    step: LayerStep, hidden: torch.Tensor, spans: list[PagedSpan], moves: Moves, rank: int
) -> torch.Tensor | None:
    try:
        return step(hidden, spans, moves)
    except DeviceLost:
        raise  # Which ends the process.
    except Exception as error:  # Whatever it is, it is this step's alone.
        cause = error.__cause__ or error
        log.error("step failed in a stage", stage=rank, error=type(cause).__name__)
        return None


async def serve(config: StageConfig) -> None:
    """Be a stage of one pipeline, and with ``redial`` of each that follows.

    Raises ``ConnectionFailed`` where another try would not help, or none is wanted.
    """
    # One thread for all lives: each that computes would keep a team of OpenMP's.
    compute, tls = ThreadPoolExecutor(1, thread_name_prefix="stage"), config.equals_tls

    async def visit(welcomed: Callable[[], None]) -> None:
        secret = current(config.stage_token) or BY_CERTIFICATE
        async with join(config.join, secret, os.uname().nodename, config.seat, tls) as membership:
            welcomed()
            await _live(Life(config, membership), compute)

    await stay(visit, again=config.redial, ends=(CannotLoad,))


async def _live(life: Life, compute: ThreadPoolExecutor) -> None:
    ended = life.membership.ended
    running = asyncio.get_running_loop().run_in_executor(compute, life.run)
    both: list[asyncio.Future[Any]] = [running, ended]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not running.done() and not life.config.redial:
        os._exit(1)  # Whatever it is doing, nobody wants it any more.
    life.abort()  # Also where it has ended by itself: the others wait for its connections to close.
    if not running.done():
        await asyncio.wait([running], timeout=life.ends_within_s)
    if not running.done():
        log.error("this stage hangs, and ends")
        end_process(1)
    try:
        running.result()
    except (RuntimeError, BadHead) as error:
        raise ConnectionFailed(Code.STAGE_LOST, ended.result() if ended.done() else str(error)) from error


def run(config: StageConfig) -> None:
    """Dial, load, and work until the cloud server is gone, or for ever."""
    if config.redial:
        end_at_once()
    else:
        # A supervisor may send it to all processes of a service: sessions drain through this one, the server ends it.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    configure_logs(f"stage {config.seat or ''}".strip(), config.log_level, config.log_form)
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        asyncio.run(alive_while(config.alive_path, serve(config)))
    except DeviceLost as error:
        raise SystemExit(f"{error}: start this stage again") from None
    except (ConnectionFailed, ValueError) as error:
        status = str(error) if config.redial or isinstance(error, CannotLoad | ValueError) else 1
        raise SystemExit(status) from None


main = settings_command(StageConfig, run, name="trilby stage", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
