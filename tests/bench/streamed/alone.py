"""Another program on one device of the largest kind: its quota, its memory limit, and a disk of its own."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.streamed.bed import SCENARIO, SPARE, resident
from bench.streamed.cases import DTYPE
from bench.streamed.portal import Result
from bench.streamed.told import PIPES, Told
from bench.testbed.bed import Testbed
from bench.testbed.processes import environment
from bench.testbed.scenario import load

MODULES = {"accelerate": "bench.rivals.accelerate_disk", "llama.cpp": "bench.rivals.llama_mmap"}
DEVICE = "device-1"
LOADED_WITHIN_S, GENERATED_WITHIN_S = 300.0, 300.0


def run_alone(
    method: str,
    python: str,
    folder: Path,
    checkpoint: Path,
    budget: int,
    cores: float,
    disk_mb_s: float,
    prompt: Sequence[int],
    new: int,
) -> tuple[Result, list[int]]:
    """A job of one session on a bed of its own, and the device's limit in bytes.

    The limit is what the process takes before it has a model, the budget, and what members have to spare. Raises
    DeviceFailed.
    """
    with ExitStack() as stack:
        bed = stack.enter_context(Testbed(load(SCENARIO, {"mb_s": "0", "disk_mb_s": f"{disk_mb_s:g}"}), folder))
        log = stack.enter_context((folder / "devices.log").open("ab"))
        on_disk = bed.disk(DEVICE) / "weights"
        on_disk.mkdir()
        words = [python, "-m", MODULES[method], str(checkpoint), str(on_disk), DTYPE]
        own = environment({"OMP_NUM_THREADS": "1", "HOME": str(on_disk)})
        process = bed.spawn(DEVICE, words, env=own, stderr=log, **PIPES)
        told = Told(process, method, folder)
        told.hear(LOADED_WITHIN_S)
        host = bed.host(DEVICE)
        limit = resident(process.pid) + budget + SPARE
        host.group.set_memory(limit // 10**6)
        told.say({})
        told.hear(LOADED_WITHIN_S)
        host.set_cores(cores)
        told.say({"prompt": list(prompt), "new": new})
        said = told.hear(GENERATED_WITHIN_S)
        times = said["times"]
        return Result(generated_s=times[-1], steps_s=times, tokens=[said["tokens"]]), [limit]
