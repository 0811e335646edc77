"""Groups of devices beside llama.cpp's RPC: the same hosts, links and model, and one device alone of each.

    PYTHONPATH=tests python -m bench.group_rivals --llama FOLDER --python PYTHON [--devices 2] [--mbit 125]

FOLDER has llama.cpp's ``llama-bench`` and ``ggml-rpc-server``; PYTHON is an interpreter that has the package ``gguf``.
The model is a random Llama; ours is bfloat16, llama.cpp's float16. Both are measured without text, sampling or HTTP: a
prompt at once, and then tokens one after the other. Everybody has one thread; all take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.fabric import MBIT, SCENARIOS
from bench.page import machine, table
from bench.random_llama import Shape, write_checkpoint
from bench.testbed.bed import Testbed
from bench.testbed.possible import obstacle
from bench.testbed.processes import environment
from bench.testbed.scenario import load

KEY = "a secret of this benchmark"
PORT = 8002
RPC_PORT = 50052
PROMPT, NEW = 256, 32
CORES = 1.6
"""Of two, for all devices together; the rest is for the links."""

WITHIN_S = 600.0
MODES = ("tensor", "pipeline", "galaxy", "voltage")
CONVERT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from bench.rivals.gguf_file import write_gguf
write_gguf(Path(sys.argv[2]), Path(sys.argv[3]))
"""


class Speed(NamedTuple):
    """Tokens a second of the prompt, and of what is generated."""

    prompt: float
    generated: float


class Bench:
    """One model on one testbed.

    Args:
        folder: with the checkpoint, ``model.gguf`` and room for logs.
    """

    def __init__(self, bed: Testbed, folder: Path, devices: int, llama: Path) -> None:
        self._bed, self._folder, self._devices, self._llama = bed, folder, devices, llama
        self._log = (folder / "log").open("ab")

    def ours(self, mode: str, devices: int) -> Speed:
        """A group of the first so many devices, of which the first has the prompt."""
        where = f"{self._bed.port('device-1').address}:{PORT}"
        model = str(self._folder / "model")
        words = [sys.executable, "-m", "bench.group_portal", where, mode, str(devices), model, str(PROMPT), str(NEW)]
        joining = [sys.executable, "-m", "device_agent.group.member", "--join", where, "--model", model]
        with ExitStack() as stack:
            portal = stack.enter_context(self._process(1, words, stdout=subprocess.PIPE, text=True))
            for number in range(2, devices + 1):
                more = ["--threads", "1", "--name", f"device-{number}"]
                stack.enter_context(self._process(number, [*joining, *more]))
            said, _ = portal.communicate(timeout=WITHIN_S)
        return Speed(**json.loads(said.splitlines()[-1]))

    def theirs(self, devices: int) -> Speed:
        """llama.cpp, with a server on every device; alone where there is one device."""
        words = [str(self._llama / "llama-bench"), "-m", str(self._folder / "model.gguf"), "-t", "1", "-r", "1"]
        words += ["-p", str(PROMPT), "-n", str(NEW), "-o", "json"]
        with ExitStack() as stack:
            if devices > 1:
                servers = [self._bed.port(f"device-{number}").address for number in range(1, devices + 1)]
                for number, address in enumerate(servers, 1):
                    server = [str(self._llama / "ggml-rpc-server"), "-H", address, "-p", str(RPC_PORT), "-t", "1"]
                    stack.enter_context(self._process(number, server))
                time.sleep(2.0)  # They say nothing when they listen.
                words += ["--rpc", ",".join(f"{address}:{RPC_PORT}" for address in servers), "-ngl", "99"]
            asking = stack.enter_context(self._process(1, words, stdout=subprocess.PIPE, text=True))
            said, _ = asking.communicate(timeout=WITHIN_S)
        found = {(each["n_prompt"] > 0): each["avg_ts"] for each in json.loads(said)}
        return Speed(found[True], found[False])

    @contextmanager
    def _process(self, number: int, words: list[str], **popen: Any) -> Iterator[subprocess.Popen[str]]:
        more = environment({"TRILBY_GROUP_KEY": KEY})
        given: dict[str, Any] = {"stdout": self._log, "stderr": self._log, "env": more, **popen}
        process = self._bed.spawn(f"device-{number}", words, **given)
        try:
            yield process
        finally:
            process.kill()
            process.wait()


def main() -> None:
    """Measure in turns, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama", type=Path, required=True, help="folder with llama-bench and ggml-rpc-server")
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has the package gguf")
    parser.add_argument("--devices", type=int, default=2, choices=(2, 4))
    parser.add_argument("--mbit", type=float, default=125.0, help="of each port, each way")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--layers", type=int, default=16)
    arguments = parser.parse_args()
    if obstacle():
        raise SystemExit(f"no emulated networks here: {obstacle()}")
    given = {"cores": str(CORES / arguments.devices), "mb_s": str(arguments.mbit * MBIT)}
    with TemporaryDirectory() as name:
        folder = Path(name)
        write_checkpoint(Shape(layers=arguments.layers), folder / "model")
        paths = [str(Path(__file__).parents[1]), str(folder / "model"), str(folder / "model.gguf")]
        subprocess.run([arguments.python, "-c", CONVERT, *paths], check=True)
        with Testbed(load(SCENARIOS / f"lan_{arguments.devices}.toml", given), folder) as bed:
            bench = Bench(bed, folder, arguments.devices, arguments.llama)
            ways: dict[str, Callable[[], Speed]] = {
                "Trilby, one device": lambda: bench.ours("pipeline", 1),
                "llama.cpp, one device": lambda: bench.theirs(1),
                f"llama.cpp RPC, {arguments.devices}": lambda: bench.theirs(arguments.devices),
            }
            for mode in MODES:
                ways[f"Trilby {mode}, {arguments.devices}"] = partial(bench.ours, mode, arguments.devices)
            found: dict[str, list[Speed]] = {way: [] for way in ways}
            for repeat in range(arguments.repeats):
                for way, measure in ways.items():
                    found[way].append(measure())
                    print(f"{repeat + 1} of {arguments.repeats}: {way}: {found[way][-1]}", file=sys.stderr, flush=True)
    print(
        f"Measured on {machine()}, load before: {os.getloadavg()[0]:.1f}.\n"
        "Tokens a second, medians (lowest to highest).\n"
    )
    print(
        table(
            "way | prompt | generated",
            [[way, *map(_shown, zip(*speeds, strict=True))] for way, speeds in found.items()],
        )
    )


def _shown(speeds: tuple[float, ...]) -> str:
    return f"{statistics.median(speeds):.1f} ({min(speeds):.1f} to {max(speeds):.1f})"


if __name__ == "__main__":
    main()
