"""Running the tools of iproute2."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

WITHIN_S = 20.0


class NetworkError(RuntimeError):
    """A tool that makes or changes the network failed; the message is what it was told and what it says."""


def run(command: Sequence[str], lines: Sequence[str] = ()) -> str:
    """What a tool prints. Lines it reads are a batch, which the first that fails ends.

    Raises:
        NetworkError: it failed, or is not there.
    """
    text = "".join(f"{line}\n" for line in lines)
    try:
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=WITHIN_S)
    except FileNotFoundError as error:
        raise NetworkError(f"{command[0]} is not installed; it comes with iproute2") from error
    except subprocess.TimeoutExpired as error:
        raise NetworkError(f"{' '.join(command)} took more than {WITHIN_S:.0f} s") from error
    if done.returncode:
        raise NetworkError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout
