"""A member of a group, beside the portal: ``python -m device_agent.group.member --join HOST:PORT --model …``.

It dials the portal, learns its part of the plan, loads it and works until the group ends; then it dials again, since
the portal may have planned anew for those who are left.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import MISSING, dataclass
from typing import Any, Final, Literal

import structlog
import torch

from device_agent.group.formation.joining import ALL_LOADED, FITS, LOAD, LOADED, LOADED_WITHIN_S, Part, Refused
from device_agent.group.formation.loading import FITTING, Loading
from device_agent.group.formation.measuring import LinksOrder, measure_as_member, read_order
from device_agent.group.hinted import Where, hinted
from device_agent.group.holding.halves import own_slice
from device_agent.group.holding.kept_layers import KeptLayers
from device_agent.group.lives.lateness import PERIOD_S
from device_agent.group.messages.heads import BadGroupHead
from device_agent.group.messages.notes import Card, Device, Measure, Note, StepsDone, Trial, read, written
from device_agent.group.steps.pace import Pace, speed
from device_agent.profiling.kept_profiles import kept_or_measured
from peers.board import PeerLost
from peers.fabric import Fabric
from peers.membership import Attendance, Membership, attend
from peers.secret import BY_CERTIFICATE
from peers.staying import stay
from service.alive_file import AliveSettings, alive_while
from service.logs import configure_logs, end_process
from service.secret_files import current
from service.settings import changed, setting, settings_command
from service.shared_settings import MemorySettings, ModelSettings, ProcessSettings
from service.sizes import bytes_of
from service.stopping import end_at_once
from service.tls_settings import TlsSettings
from split_model.checkpoint import Checkpoint
from split_model.device import AUTO, choose_device
from split_model.errors import ModelError
from split_model.free_memory import free_bytes
from split_model.hub import identity, resolve
from split_model.kv_cache import CacheFull
from split_model.offload.errors import OffloadError
from split_model.pruning.block import CannotPrune
from split_model.slices import Slice, slice_bytes
from wire.errors import Code, ConnectionFailed

END_WITHIN_S: Final = 60.0
"""A member that still computes for a group that has ended so long ago hangs: it is more than a step takes, or a layer
to load."""

SLOWEST: Final = 2
"""A member dials again every second at least: answers wait for the group to be formed anew."""

EXAMPLES = """
TRILBY_GROUP_KEY=… python -m device_agent.group.member --join 10.0.0.1:8002 --model Qwen/Qwen3-0.6B --name kitchen
"""

log = structlog.get_logger()


@dataclass(frozen=True)
class MemberConfig(TlsSettings):
    """Compute a part of a model for a group of devices. Which part, the group's portal says.

    Without --tls-cert, hidden states travel between members neither encrypted nor signed: all belong into one trusted
    network or a VPN then.
    """

    join: str = setting(help="where the portal waits for members, as HOST:PORT")
    model: str = changed(ModelSettings, "model", MISSING)
    group_key: str = setting("", "secret that the members of a group share, 16 characters or more", secret=True)
    name: str = setting("", "name of this member in the plan; empty: the machine's", variable="member_name")
    dtype: Literal["", "float32", "bfloat16", "float16"] = setting(
        "", "the only number format that it computes in; empty: whatever the portal says"
    )
    device: str = changed(ModelSettings, "device", AUTO)
    memory: str = changed(MemorySettings, "memory", "")
    threads: int = changed(ModelSettings, "threads", 0)
    redial: bool = setting(True, "wait for the next plan when a group has ended", tunes=True)
    log_level: Literal["debug", "info", "warning", "error"] = changed(ProcessSettings, "log_level", "info")
    log_form: Literal["text", "json"] = changed(ProcessSettings, "log_form", "text")
    alive_path: str = changed(AliveSettings, "alive_path", "")

    def __post_init__(self) -> None:
        """Raises ``ValueError`` where it could not show that it belongs."""
        self.check_tls()
        self.check_equals(self.group_key, "the group's key (TRILBY_GROUP_KEY)")


class CannotTakePart(ConnectionFailed):
    """This member refused its part; dialling again would not help."""


def work(config: MemberConfig, membership: Membership, kept: KeptLayers, pace: Pace) -> None:
    """From the plan to the end of the group; blocks.

    Raises ``Refused``, ``ModelError``, ``ValueError``, ``MemoryError`` before the group works, ``RuntimeError`` once it
    has ended, but where the portal has ended it in order.
    """
    rank, board = membership.rank, membership.board
    plan = read_order(membership.plan)
    if isinstance(plan, LinksOrder):
        measure_as_member(plan, membership)
        return
    last = plan.first_layer + sum(each.count for each in plan.alike)
    with Loading(board, rank, FITTING).meanwhile():
        path = resolve(config.model, only=lambda spec: [own_slice(spec, plan.first_layer, last)], attention=None)
        checkpoint = Checkpoint.open(path, None)
        part = Part(plan, checkpoint, rank, bytes_of("--memory", config.memory), kept)
    board.post(f"{FITS}{rank}", b"")
    board.get(LOAD, LOADED_WITHIN_S)
    held = part.load(Loading(board, rank))
    board.post(f"{LOADED}{rank}", b"")
    megabytes = sum(each.loaded_bytes for each in held) // 10**6
    log.info("layers loaded", rank=rank, mode=plan.mode, megabytes=megabytes, layers_kept=kept.reused)
    board.get(ALL_LOADED, LOADED_WITHIN_S)
    with Fabric.open(board, rank, membership.size, membership.address, epoch=membership.epoch) as fabric:
        try:
            part.worker(held, fabric, pace).serve()
        except (BadGroupHead, CacheFull, CannotPrune, MemoryError, ModelError) as error:
            raise RuntimeError(f"a step cannot be computed here: {type(error).__name__}: {error}") from error


def card_of(config: MemberConfig) -> Card:
    """What this member says of itself. Raises ``CannotTakePart``."""
    try:
        path = resolve(config.model, only=lambda _: (), attention=None)
        return Card(identity(Checkpoint.open(path, None)), config.dtype)
    except (ModelError, ValueError) as error:
        raise CannotTakePart(Code.MODEL_NOT_FOUND, str(error)) from error


def device_of(config: MemberConfig) -> torch.device:
    """Where this member computes. Its part it does not know yet: ``auto`` is a GPU that has room for a layer, and the
    CPU where ``--memory`` says how much of the machine's may be used. Raises ``ValueError``, ``ModelError``."""
    path = resolve(config.model, only=lambda _: (), attention=None)
    on = "cpu" if config.memory and config.device == AUTO else config.device
    return choose_device(on, slice_bytes(Checkpoint.open(path, None).spec, Slice(0, 1), config.dtype or "float32"))


def answers(
    config: MemberConfig, name: str, attendance: Attendance, compute: ThreadPoolExecutor, kept: KeptLayers
) -> Callable[[bytes], None]:
    """What is done with each note of the portal: measured or tried, on the compute thread, and answered."""
    loop = asyncio.get_running_loop()

    def done(answered: asyncio.Future[Note | None]) -> None:
        if answered.cancelled():
            return
        failure = answered.exception()
        if failure is not None:
            log.error("what the portal asks cannot be done", why=str(failure))
            attendance.give_up(CannotTakePart(Code.MODEL_MISMATCH, str(failure)))
        elif (note := answered.result()) is not None:
            attendance.note(written(note))

    def noted(data: bytes) -> None:
        loop.run_in_executor(compute, answer, config, name, kept, data).add_done_callback(done)

    return noted


def answer(config: MemberConfig, name: str, kept: KeptLayers, data: bytes) -> Note | None:
    """Do what a note of the portal asks; None: nothing is to be said. Raises ``ValueError``, ``ModelError``."""
    asked = read(data)
    kept.handed.put(None, {})  # Who is measured or tried is in no plan that would go on with it.
    if isinstance(asked, Measure):
        checkpoint = Checkpoint.open(resolve(config.model, only=lambda _: [Slice(0, 1)], attention=None), None)
        kept_bytes = kept.loaded_bytes(identity(checkpoint), asked.dtype)
        memory, device = bytes_of("--memory", config.memory) or free_bytes(kept.device) + kept_bytes, kept.device
        found = kept_or_measured(checkpoint, asked.dtype, name, memory, quick=True, again=asked.again, device=device)
        return Device(found)
    return Trial(speed()) if isinstance(asked, Trial) else None


async def serve(config: MemberConfig, where: Where | None = None) -> None:
    """Be a member of one group, and with ``redial`` of each that follows.

    where: finds the portal's address, each time anew, since the next may be elsewhere; None: it is ``config.join``.
        Whoever listens there may be anybody: until it has proved that it knows the key, its refusals end nothing.

    Raises ``ConnectionFailed`` where another try would not help, or none is wanted, ``ValueError`` where there is no
    such device.
    """
    # One thread for all lives: each that computes would keep a team of OpenMP's.
    loop, compute = asyncio.get_running_loop(), ThreadPoolExecutor(1, thread_name_prefix="member")
    name, tls = config.name or os.uname().nodename, config.equals_tls
    card = await loop.run_in_executor(compute, card_of, config)
    kept = KeptLayers(await loop.run_in_executor(compute, device_of, config))

    async def visit(welcomed: Callable[[], None], join: str = config.join) -> None:
        async with attend(join, current(config.group_key) or BY_CERTIFICATE, name, tls=tls) as attendance:
            attendance.noted = answers(config, name, attendance, compute, kept)
            attendance.note(written(card))
            refused: CannotTakePart | None = None
            while refused is None:
                membership = await attendance.place()
                welcomed()
                refused = await _live(config, attendance, membership, compute, kept)
        raise refused  # Once the portal has heard it.

    try:
        going = visit if where is None else hinted(where, visit)
        await stay(going, again=config.redial, slowest=SLOWEST, ends=(CannotTakePart,))
    finally:
        compute.submit(kept.close)  # Behind whatever it still does.
        compute.shutdown(wait=False)


async def _live(
    config: MemberConfig,
    attendance: Attendance,
    membership: Membership,
    compute: ThreadPoolExecutor,
    kept: KeptLayers,
) -> CannotTakePart | None:
    """One life of the group. The end of the membership ends every wait of the thread, and the other way round.

    Returns why there shall be no other.
    """
    pace = Pace()
    running = asyncio.get_running_loop().run_in_executor(compute, work, config, membership, kept, pace)
    running.add_done_callback(lambda done: done.cancelled() or done.exception())  # Who waits may be gone.
    both: list[asyncio.Future[Any]] = [running, membership.ended]
    said = pace.done
    while not any(each.done() for each in both):
        await asyncio.wait(both, timeout=PERIOD_S, return_when=asyncio.FIRST_COMPLETED)
        if pace.done != said:
            said = pace.done
            loads = pace.loads
            done = StepsDone(membership.epoch, *said, loads.reading_s, loads.waited_s, pace.relief)
            attendance.note(written(done))
    if not running.done():
        await asyncio.wait([running], timeout=END_WITHIN_S)
    if not running.done():
        log.error("this member hangs, and ends")
        end_process(1)
    try:
        running.result()
        membership.leave("the portal has ended it")
    except (ModelError, MemoryError, ValueError) as error:
        code = error.code if isinstance(error, Refused) else Code.MODEL_MISMATCH
        if isinstance(error, (MemoryError, OffloadError)):
            code = Code.TOO_LITTLE_MEMORY if isinstance(error, MemoryError) else Code.DISK_FAILED
        membership.leave(str(error), membership.rank, code.value)
        return CannotTakePart(code, f"it cannot take part: {error}")
    except (RuntimeError, OSError) as error:
        blamed = error.rank if isinstance(error, PeerLost) else membership.rank
        membership.leave(str(error), blamed or 0)
        log.info("no group, waiting for the next", why=str(error))
    return None


def run(config: MemberConfig, where: Where | None = None) -> None:
    """Dial, load, and work until nobody wants it any more. ``where``: see ``serve``."""
    end_at_once()
    configure_logs(f"member {config.name}".strip(), config.log_level, config.log_form)
    if config.threads:
        torch.set_num_threads(config.threads)
    try:
        asyncio.run(alive_while(config.alive_path, serve(config, where)))
    except (ConnectionFailed, ValueError) as error:
        raise SystemExit(str(error)) from None


main = settings_command(MemberConfig, run, name="python -m device_agent.group.member", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
