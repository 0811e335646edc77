"""The part of the doctor that knows models and the wire: a process of its own, whose findings are told as they come.

What imports PyTorch may be broken in ways that end a process: then that is a finding, and what was found before stays.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Collection, Sequence
from queue import Empty, SimpleQueue
from typing import IO, Any, Final

from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding, Say, finding_in
from service.python_module import python_module
from service.setting_names import ENDING, ENVIRONMENT_PREFIX, command_line
from service.settings import secrets_of, words_of

MODULE: Final = "device_agent.doctor"

SILENT_WITHIN_S: Final = 150.0
"""It says what it looks at before it does; nothing of it may take so long. To import PyTorch from a slow disk takes
longest."""

END_WITHIN_S: Final = 5.0
LAST_WORDS: Final = 30
"""Lines of its errors that are kept: the last one says what was wrong."""

DOING: Final = "doing"
"""The member of a line that says what is looked at now."""


def examined(
    config: DoctorConfig,
    unreachable: Collection[str],
    say: Say,
    doing: Callable[[str], object],
    command: Sequence[str] = (),
) -> None:
    """Have all looked at that needs PyTorch or the wire, and tell what is found; ``doing`` is told what is looked at.

    Args:
        unreachable: links that were tried in vain, and need not be again.
        command: what is started, in front of the settings; else the module for that.
    """
    words = [
        *(command or python_module(MODULE)),
        *words_of(config, DoctorConfig),
        *command_line(unreachable=tuple(unreachable)),
    ]
    child = subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_environment(config)
    )
    assert child.stdout is not None and child.stderr is not None
    lines: SimpleQueue[str | None] = SimpleQueue()
    errors: deque[str] = deque(maxlen=LAST_WORDS)
    threads = [
        threading.Thread(target=_read, args=(child.stdout, lines.put), daemon=True),
        threading.Thread(target=_read, args=(child.stderr, lambda line: errors.append(line or "")), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        if not _heard(lines, say, doing):
            say(Finding("models and wire", "fail", f"nothing was heard for {SILENT_WITHIN_S:g} s", _HANGS))
            return
        status = child.wait(END_WITHIN_S)
        threads[1].join(END_WITHIN_S)
        if status:
            say(Finding("models and wire", "fail", _ended(status, [each for each in errors if each]), _REINSTALL))
    except subprocess.TimeoutExpired:
        say(Finding("models and wire", "fail", "the process that looks at them does not end", _HANGS))
    finally:
        child.kill()
        child.wait()
        for thread in threads:
            thread.join(END_WITHIN_S)
        child.stdout.close()
        child.stderr.close()


_HANGS: Final = "A disk or a GPU's driver may hang: look at nvidia-smi and the system's log (dmesg), and try again."
_REINSTALL: Final = (
    "Install PyTorch again for this machine, as make serve does (PIP_FLAGS says from where), and see that python -c "
    "'import torch' works."
)


def _heard(lines: SimpleQueue[str | None], say: Say, doing: Callable[[str], object]) -> bool:
    """Tell what it says until it says no more; False where it is silent for too long."""
    while True:
        try:
            line = lines.get(timeout=SILENT_WITHIN_S)
        except Empty:
            return False
        if line is None:
            return True
        finding = finding_in(line)
        if finding is not None:
            say(finding)
        elif what := _doing(line):
            doing(what)


def _doing(line: str) -> str:
    """What a line says is looked at now; empty where it is any other line: libraries print what they like."""
    try:
        found: Any = json.loads(line)
    except (ValueError, RecursionError):
        return ""
    return str(found.get(DOING, "")) if isinstance(found, dict) else ""


def _read(pipe: IO[bytes], put: Callable[[str | None], object]) -> None:
    for line in pipe:
        put(line.decode("utf-8", "replace").strip())
    put(None)


def _ended(status: int, errors: Sequence[str]) -> str:
    if status >= 0:
        return f"they cannot be looked at here: {errors[-1] if errors else f'exit status {status}'}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    kinds = {
        "SIGILL": ": PyTorch, or a library of its, uses instructions that this processor does not have",
        "SIGKILL": ": probably there was too little memory",
    }
    return f"looking at them has ended the process ({name}){kinds.get(name, '')}"


def _environment(config: DoctorConfig) -> dict[str, str]:
    """Secrets go by the environment, since everybody on the machine can read a command line; those of files by the
    files' names."""
    endings = ENDING.upper()
    kept = {
        name: value
        for name, value in os.environ.items()
        if not (name.startswith(ENVIRONMENT_PREFIX) and name.endswith(endings))
    }
    return {**kept, **secrets_of(config)}
