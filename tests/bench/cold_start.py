"""How long each part takes from its start until it can take work, the demo model read from the disk's cache.

    PYTHONPATH=tests python -m bench.cold_start [--rounds 5]

Real command lines, one part after the other: gateway and cloud until they answer /health, the device until the
gateway has it and it has its cloud. The first round, which reads all files, is shown beside the others.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
from bench.page import machine, table
from bench.runs import spread
from checkpoints import DEMO
from installation import wait_until
from processes import Process, free_port


def ready(port: int) -> bool:
    """Whether the gateway there has a device that can answer."""
    return httpx.get(f"http://127.0.0.1:{port}/ready", trust_env=False, verify=False).status_code == 200


def measure(folder: Path) -> dict[str, float]:
    """Seconds that each part has taken in one round."""
    near, far = free_port(), free_port()
    cut = ("--model", str(DEMO), "--split", "2")
    links = ("--gateway", f"ws://127.0.0.1:{near}", "--cloud", f"ws://127.0.0.1:{far}")
    took = {}
    with ExitStack() as stack:
        for name, words, port in (
            ("gateway", ("--port", str(near)), near),
            ("cloud_server", (*cut, "--port", str(far)), far),
            ("device_agent", (*cut, *links), 0),
        ):
            began = time.perf_counter()
            stack.enter_context(Process(name, *words, log=folder / name, port=port))
            if not port:
                wait_until(lambda: ready(near))
            took[name] = time.perf_counter() - began
    return took


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        first, *others = [measure(Path(folder)) for _ in range(rounds + 1)]
    rows = [[name, f"{first[name]:.1f}", spread([each[name] for each in others], 2)] for name in first]
    print(f"Measured on {machine()}; {rounds} rounds, demo model.\n")
    print(table("part | first start, s | later ones, s: median and quartiles (range)", rows))


if __name__ == "__main__":
    main()
