"""Every part is replaced by another version's, one after the other, while clients stream: nothing is lost or wrong.

    make test-upgrade [UPGRADE_FROM=COMMIT]

Two gateways, two clouds and two devices, each with its real command line, out of two checkouts: this one, and a
worktree of the release before, which is the last tag (without one: 50 commits back) unless ``UPGRADE_FROM`` says which.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
from checkpoints import DEMO
from installation import OPERATOR, wait_until
from oracle import oracle_answer
from processes import ROOT, Process, free_port
from redis_here import RedisServer
from streamed import stream_answer

pytestmark = [pytest.mark.system, pytest.mark.slow]

QUESTIONS: Final = ("Tell me a story about a fox.", "What is 2 + 3?", "Who found the key?", "Where is the hen?")
TOKENS: Final = 40
CLIENTS: Final = 4
TRIES: Final = 60
"""Of one request, a second apart: longer than any part of an installation takes to be replaced."""
ANSWERS: Final = 8
"""That come in each state of the installation before the next part is replaced."""
SECRETS: Final = {
    "TRILBY_OPERATOR_TOKEN": OPERATOR,
    "TRILBY_GATEWAY_TOKEN": "what-gateways-share",
    "TRILBY_DRAIN_WITHIN_S": "60",
}


def said(*words: str) -> str:
    """What git says."""
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True, cwd=ROOT).stdout.strip()


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A checkout of the release before."""
    tags = said("tag", "--merged", "HEAD", "--sort=-creatordate").split()
    commit = os.environ.get("UPGRADE_FROM") or (tags[0] if tags else "HEAD~50")
    folder = tmp_path_factory.mktemp("before") / "trilby"
    said("worktree", "add", "--detach", str(folder), commit)
    print(f"{said('rev-parse', '--short', commit)} and {said('rev-parse', '--short', 'HEAD')}")
    yield folder
    said("worktree", "remove", "--force", str(folder))


@dataclass
class Clients:
    """They ask one question after the other until they are stopped, each at the next gateway where one refuses.

    Attributes:
        answers: complete ones, by client. refused: tries that were refused, by what was said.
        wrong: of answers that came, what was wrong. lost: requests that nobody answered.
    """

    bases: list[str]
    expected: dict[str, str]
    answers: Counter[int] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def run(self, who: int) -> None:
        """One client, to its end."""
        for turn in count(who):
            if self.over.is_set():
                return
            question = QUESTIONS[turn % len(QUESTIONS)]
            for at in range(turn, turn + TRIES):
                if self._answered(question, self.bases[at % len(self.bases)]):
                    self.answers[who] += 1
                    break
                self.over.wait(1.0)  # As Retry-After says.
            else:
                self.lost.append(question)

    def _answered(self, question: str, base: str) -> bool:
        body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": TOKENS}
        answer = stream_answer(base, {**body, "ignore_eos": True})
        if not answer.done:
            self.refused[str(answer.error.get("code") or answer.error)] += 1
            if answer.pieces:
                self.wrong.append(f"{base} broke off: {answer.error}")
        elif answer.text != self.expected[question]:
            self.wrong.append(f"{base} said {answer.text!r}")
        return answer.done


class Site:
    """Two of each part. ``parts`` are what is to be replaced, in the order in which it is."""

    def __init__(self, redis: str, logs: Path) -> None:
        self.gateways, self.clouds = ([free_port(), free_port()] for _ in range(2))
        self._environment = {**SECRETS, "TRILBY_REDIS": redis}
        self._logs = logs
        self._stack = ExitStack()
        self._running: dict[tuple[str, int], Process] = {}

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Clouds first, then gateways, then devices."""
        return [(module, at) for module in ("cloud_server", "gateway", "device_agent") for at in range(2)]

    def put(self, part: tuple[str, int], root: Path) -> None:
        """Have a part run the version of a checkout, in the place of what runs there; it is asked to end first."""
        if part in self._running:
            assert self._running[part].end() == 0, f"{part} did not end well"
        module, at = part
        port, log = self._port(part), self._logs / f"{module}-{at}-{root.name}.log"
        words = (*self._words(module, at), *(("--port", str(port)) if port else ()))
        self._running[part] = Process(module, *words, log=log, port=port, environment=self._environment, root=root)
        self._stack.callback(self._running[part].start().end)
        self._running[part].wait_ready()

    def whole(self) -> bool:
        """Whether each device is at a gateway and at both clouds, and each gateway knows of both."""
        try:
            agents = [each for port in self.gateways for each in _state(port)["agents"]]
            reached = all(each["cloud_connected"] for each in agents)
            known = all(len(_state(port)["fleet"]["gateways"]) == 1 for port in self.gateways)
            return reached and known and len(agents) == 2 and all(len(_state(x)["devices"]) == 2 for x in self.clouds)
        except httpx.HTTPError:
            return False

    def close(self) -> None:
        """End what runs."""
        self._stack.close()

    def _port(self, part: tuple[str, int]) -> int:
        return {"gateway": self.gateways, "cloud_server": self.clouds}.get(part[0], [0, 0])[part[1]]

    def _words(self, module: str, at: int) -> tuple[str, ...]:
        cut = ("--model", str(DEMO), "--split", "2", "--threads", "1")
        if module == "gateway":
            return ("--advertise", f"http://127.0.0.1:{self.gateways[at]}")
        if module == "cloud_server":
            return cut
        near = [f"ws://127.0.0.1:{port}" for port in self.gateways]
        clouds = [word for port in self.clouds for word in ("--cloud", f"ws://127.0.0.1:{port}")]
        return (*cut, "--name", f"device-{at}", "--gateway", ",".join(near[at:] + near[:at]), *clouds)


def _state(port: int) -> Any:
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    return httpx.get(f"http://127.0.0.1:{port}/state", headers=headers, timeout=10, trust_env=False).json()


@pytest.mark.parametrize("back", [False, True], ids=["to this release", "back again"])
def test_each_part_is_replaced_under_load(back: bool, before: Path, tmp_path: Path) -> None:
    """0 requests lost, 0 wrong tokens, no stream broken off: from the release before to this one, clouds first, then
    gateways, then devices; and back from the other end, as after an upgrade that was a mistake."""
    expected = {each: oracle_answer(DEMO, each, TOKENS, whole=True)[0] for each in QUESTIONS}
    with RedisServer() as redis, ExitStack() as stack:
        site = Site(redis.url, tmp_path)
        stack.callback(site.close)
        old, new = (ROOT, before) if back else (before, ROOT)
        for part in site.parts:
            site.put(part, old)
        wait_until(site.whole)
        clients = Clients([f"http://127.0.0.1:{port}/v1" for port in site.gateways], expected)
        threads = [threading.Thread(target=clients.run, args=(who,)) for who in range(CLIENTS)]
        for each in threads:
            stack.callback(each.join)
        stack.callback(clients.over.set)
        for each in threads:
            each.start()
        for part in site.parts[:: -1 if back else 1]:
            site.put(part, new)
            wait_until(site.whole)
            wait_until(partial(_more, clients, clients.answers.total() + ANSWERS))
            print(part, dict(clients.answers), dict(clients.refused))
            assert not clients.lost and not clients.wrong
        clients.over.set()
    for log in tmp_path.glob("*.log"):
        assert "Traceback" not in log.read_text(), log.name


def _more(clients: Clients, answers: int) -> bool:
    return bool(clients.answers.total() >= answers or clients.lost or clients.wrong)
