"""llama.cpp split by its own RPC on a testbed: a server on the cloud's host, a client on a device, one request at once.

An interpreter that has it is named by ``LLAMA_RPC_PYTHON``; ``tests/bench/rivals/llama_rpc.py`` says what it needs.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Final

from bench.hat.prompts import Prompt
from bench.hat.serving import DEADLINE_S, WARM_LENGTHS, WARM_TOKENS
from bench.hat.setups import SCENARIOS, Setup
from bench.rivals import llama_rpc
from bench.testbed.bed import Testbed
from bench.testbed.scenario import load

from device_agent.tokenizer import Tokenizer
from wire.messages import ChatTurn

VARIABLE: Final = "LLAMA_RPC_PYTHON"
SCENARIO: Final = SCENARIOS / "hat_demo_llama.toml"
PORT: Final = 50052
READY_WITHIN_S: Final = 180.0
_SERVER: Final = "bench.rivals.llama_rpc_server"
_CLIENT: Final = "bench.rivals.llama_rpc_client"
_CONVERTER: Final = "bench.rivals.gguf_yarn"


def unavailable() -> str:
    """Why it cannot be measured here, or nothing where it can."""
    reason = llama_rpc.missing(os.environ.get(VARIABLE))
    return reason and f"{VARIABLE}: {reason}"


@dataclass(frozen=True)
class Answer:
    """Greedy tokens: the request was read at ``began_s`` of this machine's monotonic clock, each token known so many
    seconds later."""

    tokens: list[int]
    began_s: float
    times_s: list[float]


class LlamaSplit:
    """A context manager: both programs ready, the weights sent, the link still unlimited.

    Attributes:
        setup: whose model it is; its split is theirs.
        bed: the testbed they are on.
    """

    def __init__(self, setup: Setup, folder: Path) -> None:
        """``folder`` gets the logs and the GGUF file."""
        self.setup = setup
        self.bed = Testbed(load(SCENARIO), folder)
        self._folder = folder
        self._python = os.environ[VARIABLE]
        self._tokenizer = Tokenizer.load(setup.model, ())

    def __enter__(self) -> LlamaSplit:
        """Raises RuntimeError where a program does not come up, or places layers elsewhere than the other methods."""
        with ExitStack() as stack:
            stack.enter_context(self.bed)
            gguf = self._converted()
            hosts = self.bed.host("cloud"), self.bed.host("device")
            hosts[0].set_cores(self.setup.cloud_cores)
            for host in hosts:
                host.lift_quota()
            server = self._started("cloud", _SERVER, f"0.0.0.0:{PORT}", "--threads", "1")
            server.heard(READY_WITHIN_S)
            split = "--front", str(self.setup.split), "--tail", "0", "--threads", "1"
            endpoint = self.bed.endpoint("device", "cloud", PORT)
            self._client = self._started("device", _CLIENT, str(self.setup.model), str(gguf), endpoint, *split)
            self._check(self._client.heard(READY_WITHIN_S)["layers"])
            for host in hosts:
                host.set_cores(host.cores)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def warm(self) -> None:
        """Answers that nobody counts, over an unlimited link: memory is touched for prompts of every length."""
        self.set_link(0.0, 0.0)
        for number, length in enumerate(WARM_LENGTHS):
            self.ask(self.ids(self.setup.texts([length], number + 1)[0]), WARM_TOKENS)

    def set_link(self, up_bytes_s: float, down_bytes_s: float) -> None:
        """Bandwidths from now on; 0 is unlimited."""
        self.bed.link("device", "cloud").set(up_mb_s=up_bytes_s / 1e6, down_mb_s=down_bytes_s / 1e6)

    def ids(self, prompt: Prompt) -> list[int]:
        """A prompt as the product's device would read it."""
        return prompt_ids(self._tokenizer, prompt)

    def ask(self, prompt: Sequence[int], new: int) -> Answer:
        """So many new tokens, whatever they are. Raises RuntimeError where the client fails or takes too long."""
        self._client.tell({"prompt": list(prompt), "new": new})
        said = self._client.heard(DEADLINE_S)
        return Answer(said["tokens"], said["began"], said["times"])

    def _converted(self) -> Path:
        """The model as a GGUF file, made anew, since the model may be."""
        gguf = self._folder / "model.gguf"
        gguf.unlink(missing_ok=True)
        argv = [self._python, "-m", _CONVERTER, str(self.setup.model), str(gguf)]
        environment = {**os.environ, "PYTHONPATH": str(llama_rpc.TESTS)}
        found = subprocess.run(argv, env=environment, capture_output=True, text=True)
        if found.returncode:
            raise RuntimeError(f"no GGUF file came of {self.setup.model}: {found.stderr.strip()}")
        return gguf

    def _started(self, host: str, module: str, *arguments: str) -> _Program:
        log = self._folder / f"{module.rpartition('.')[2]}.log"
        argv = [self._python, "-m", module, *arguments]
        with log.open("w", encoding="utf-8") as errors:
            pipe = subprocess.PIPE
            return _Program(self.bed.spawn(host, argv, stdin=pipe, stdout=pipe, stderr=errors, text=True), log)

    def _check(self, layers: list[str]) -> None:
        """Layers and, last, the head: the input submodel and the head are the device's, all else is the cloud's."""
        front = ["CPU"] * self.setup.split
        if layers != front + ["RPC0"] * (len(layers) - len(front) - 1) + ["CPU"]:
            raise RuntimeError(f"llama.cpp has placed layers and head on {' '.join(layers)}")


class _Program:
    """One that is told lines of JSON and says some; they are read on a thread, so that one that hangs is found out."""

    def __init__(self, process: subprocess.Popen[str], log: Path) -> None:
        self._process = process
        self._log = log
        self._lines: SimpleQueue[str] = SimpleQueue()
        Thread(target=self._read, name=log.stem, daemon=True).start()

    def tell(self, message: dict[str, Any]) -> None:
        """Raises RuntimeError where it has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except OSError:
            raise self._ended() from None

    def heard(self, within_s: float) -> dict[str, Any]:
        """The next it says. Raises RuntimeError where it ends instead, or takes longer."""
        try:
            line = self._lines.get(timeout=within_s)
        except Empty:
            raise RuntimeError(f"{self._log.stem} said nothing within {within_s:g} s") from None
        if not line:
            raise self._ended()
        found: dict[str, Any] = json.loads(line)
        return found

    def _ended(self) -> RuntimeError:
        last = self._log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
        return RuntimeError(f"{self._log.stem} has ended: {''.join(last) or 'it did not say why'}")

    def _read(self) -> None:
        """What is JSON of each line, and '' when there are no more. llama.cpp prints as well, through a buffer of its
        own, so its words may stand in front on the same line."""
        assert self._process.stdout is not None
        with suppress(ValueError):  # The bed has closed it.
            for line in self._process.stdout:
                _, brace, rest = line.partition('{"')
                if brace:
                    self._lines.put(brace + rest)
        self._lines.put("")


def prompt_ids(tokenizer: Tokenizer, prompt: Prompt) -> list[int]:
    """Its messages in the checkpoint's chat template."""
    return tokenizer.chat([ChatTurn(each["role"], each["content"]) for each in prompt.messages])
