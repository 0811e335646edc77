"""A model on this machine that has too little memory for all of it: what does not stay is read at each use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import structlog
import torch
from rich.console import Console

from device_agent.chain.local import MAX_ROWS, NODE_ROOM
from device_agent.profiling.decoding import measured_decoding
from device_agent.profiling.disk import measured_read
from service.bars import Bars
from split_model.cache_folder import cache_folder
from split_model.checkpoint import Checkpoint
from split_model.offload.budget import BudgetTooSmall, Residence, residence
from split_model.offload.errors import DiskFull
from split_model.offload.form import coded_pays
from split_model.offload.loader import Loader
from split_model.offload.store import UNITS
from split_model.spec import ModelSpec

STREAMED_CHUNK = 1024
"""Prompt rows that go together where weights are read for each forward, unless somebody says otherwise: so many take
longer to compute than a disk takes for the weights, on most machines."""

log = structlog.get_logger()


def residence_within(
    spec: ModelSpec, dtype: str, budget: int, *, positions: int, rows: int, first_layer: int = 0
) -> Residence:
    """What stays in memory of a model on its own. The halves of layers that have no room are read at each use, from
    ``first_layer`` on.

    Args:
        budget: bytes for weights, the keys and values of one session of ``positions`` positions, and the rows of a
            forward, of which there are up to ``rows``.

    Raises:
        BudgetTooSmall: not even the least has room.
    """
    # Nodes that are drafted have room behind the last position.
    kept = {"causal": positions + NODE_ROOM, "cross": positions}.get(spec.attention, 0)
    return residence(spec, dtype, budget, positions=kept, rows=min(rows, MAX_ROWS), first_layer=first_layer)


def too_little(error: BudgetTooSmall, positions: int) -> ValueError:
    """The error for whoever said ``--memory``."""
    hint = "give more, or less to remember with --max-model-len"
    return ValueError(f"--memory is too little: {error}, with room for {positions} positions; {hint}")


def loader_of(
    checkpoint: Checkpoint,
    dtype: torch.dtype,
    stays: Residence,
    code: bool = True,
    device: torch.device | str = "cpu",
) -> Loader | None:
    """What reads the halves of layers that have no room; None where all have.

    code: whether weights may lie in fewer bytes on the disk, where they can and are sooner here so.

    Long for a large model when it is asked for the first time; says on the terminal how far it is. Raises BadCheckpoint
    and OffloadError where the weights cannot be repacked.
    """
    log.info(
        "what has room stays in memory",
        halves_read_at_each_use=len(stays.streamed),
        of=2 * checkpoint.spec.num_layers,
        ring_megabytes=stays.ring_bytes // 10**6,
        needed_megabytes=stays.needed // 10**6,
    )
    if not stays.streamed:
        return None
    with _bar() as progress:
        name = str(dtype).removeprefix("torch.")
        coded = code and stays.decodes and _coded_pays(checkpoint, stays.streamed[0].layer, name)
        opened = partial(
            Loader.open, checkpoint, stays.streamed, dtype, stays.ring_bytes, progress=progress, device=device
        )
        try:
            return opened(coded=coded)
        except DiskFull:
            if not coded:
                raise
            return opened()  # Those files may be there from another time.


def _coded_pays(checkpoint: Checkpoint, layer: int, dtype: str) -> bool:
    """By what disk and decoding take now, which is measured in a second or two."""
    try:
        read_bytes_s = measured_read(cache_folder(UNITS))
    except OSError as error:
        log.warning("how fast the disk is cannot be measured", why=str(error))
        return False
    decoding = measured_decoding(checkpoint, dtype, layer)
    pays = coded_pays(read_bytes_s, decoding)
    log.info(
        "weights are read coded" if pays else "weights are read plain",
        disk_megabytes_s=round(read_bytes_s / 1e6),
        decoded_megabytes_s=round(decoding.bytes_s / 1e6),
        coded_share=round(decoding.share, 3),
    )
    return pays


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """Shown once there is something to repack."""
    with ExitStack() as stack:
        told: Callable[[int], None] | None = None
        shown = 0

        def progress(done: int, of: int) -> None:
            nonlocal told, shown
            if told is None:
                bars = stack.enter_context(Bars(Console(stderr=True)))
                told = stack.enter_context(bars.bar("repacking", of // 10**6, "MB"))
            told(done // 10**6 - shown)
            shown = done // 10**6

        yield progress
