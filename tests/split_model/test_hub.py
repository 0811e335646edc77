"""Models by name, from a hub that the test serves itself."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tiny_models import build_tiny

from split_model.checkpoint import Checkpoint
from split_model.errors import ModelNotFound
from split_model.hub import identity, resolve

ROOT = Path(__file__).parents[2]
COMMIT = "c0ffee" + "0" * 34
Ask = Callable[..., str]

# Each question has a process of its own: huggingface_hub reads its environment once, when it is imported. These are
# forked from one that has imported everything else.
PROGRAM = """
import json, os, sys
from split_model.hub import resolve
from split_model.errors import ModelError
from split_model.slices import input_slice, middle_slice
cuts = {"all": None, "input": lambda spec: [input_slice(spec, 1)], "middle": lambda spec: [middle_slice(spec, 1, 1)]}

def answer(model, cut):
    try:
        return str(resolve(model, only=cuts[cut]))
    except ModelError as error:
        return type(error).__name__ + ": " + str(error)

assert "huggingface_hub" not in sys.modules
for line in sys.stdin:
    arguments, environment = json.loads(line)
    child = os.fork()
    if child == 0:
        os.environ.clear()
        os.environ.update(environment)
        print(json.dumps(answer(*arguments)))
        break
    if os.waitpid(child, 0)[1]:
        print(json.dumps("it failed: see what it has printed"), flush=True)
"""


@pytest.fixture(scope="module")
def asked() -> Iterator[subprocess.Popen[str]]:
    """The process that answers questions: a line with arguments and environment each."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) == 0


class Hub(ThreadingHTTPServer):
    """Serves `repositories[name]` (a folder) as the hub does, and keeps the paths of files that were sent.

    Of those that end in `breaks_off` it sends half.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), HubHandler)
        self.repositories: dict[str, Path] = {}
        self.sent: list[str] = []
        self.breaks_off: tuple[str, ...] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class HubHandler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        if "/resolve/" not in self.path:
            return self._refuse(404, "EntryNotFound")
        owner, name, _, revision, file = self.path.lstrip("/").split("/", 4)
        folder = self.server.repositories.get(f"{owner}/{name}")
        if owner == "gated":
            return self._refuse(403, "GatedRepo")
        if folder is None:
            return self._refuse(404, "RepoNotFound")
        if revision not in ("main", COMMIT):
            return self._refuse(404, "RevisionNotFound")
        if not (folder / file).is_file():
            return self._refuse(404, "EntryNotFound")
        content = (folder / file).read_bytes()
        if body:
            self.server.sent.append(file)
        self.send_response(200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if body and file.endswith(self.server.breaks_off):
            self.wfile.write(content[: len(content) // 2])
            self.close_connection = True
        elif body:
            self.wfile.write(content)

    def _refuse(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.repositories["tiny/llama"] = build_tiny("llama", tmp_path / "repo", max_shard_bytes=20_000)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def ask(asked: subprocess.Popen[str], tmp_path: Path) -> Ask:
    """``resolve`` with a cache for this test alone; the folder, or the error and its words."""

    def answer(hub_url: str, *arguments: str, offline: bool = False) -> str:
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("HF_")},
            "HF_ENDPOINT": hub_url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "1" if offline else "0",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
            "OMP_NUM_THREADS": "1",
        }
        assert asked.stdin is not None and asked.stdout is not None
        asked.stdin.write(json.dumps([arguments, environment]) + "\n")
        asked.stdin.flush()
        return str(json.loads(asked.stdout.readline()))

    return answer


def test_only_the_shards_of_the_slice_are_fetched(hub: Hub, ask: Ask) -> None:
    """A device's slice brings config and its own shards; a later slice adds its own; the rest never comes."""
    repository = hub.repositories["tiny/llama"]
    weight_map = json.loads((repository / "model.safetensors.index.json").read_text())["weight_map"]
    first = {file for name, file in weight_map.items() if "embed" in name or "layers.0." in name}
    middle = {file for name, file in weight_map.items() if "layers.1." in name or "layers.2." in name}

    folder = Path(ask(hub.url, "tiny/llama", "input"))
    assert folder.name == COMMIT
    assert {path.name for path in folder.glob("*.safetensors")} == first < set(weight_map.values())
    assert {"config.json", "generation_config.json"} <= {path.name for path in folder.iterdir()}

    hub.sent.clear()
    ask(hub.url, "tiny/llama", "middle")
    assert set(hub.sent) == middle - first


def test_a_filled_cache_needs_no_hub(hub: Hub, ask: Ask) -> None:
    """Once fetched, a model is found with HF_HUB_OFFLINE and with a hub that does not answer."""
    folder = ask(hub.url, "tiny/llama", "all")
    assert Path(folder, "config.json").is_file()
    assert ask(hub.url, "tiny/llama", "all", offline=True) == folder
    assert ask("http://127.0.0.1:9", "tiny/llama", "all") == folder


def test_offline_names_what_is_missing(hub: Hub, ask: Ask) -> None:
    """Offline, an unknown model and a shard that was never fetched are ModelNotFound with advice."""
    assert "not in the cache" in ask(hub.url, "tiny/llama", "all", offline=True)
    ask(hub.url, "tiny/llama", "input")
    found = ask(hub.url, "tiny/llama", "all", offline=True)
    assert found.startswith("ModelNotFound") and ".safetensors" in found and "connect once" in found


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        (("tiny/none", "all"), "check the name"),
        (("gated/model", "all"), "accept its licence"),
    ],
)
def test_refusals_of_the_hub_say_what_to_do(hub: Hub, ask: Ask, arguments: tuple[str, ...], advice: str) -> None:
    """Missing and gated models are ModelNotFound with advice."""
    found = ask(hub.url, *arguments)
    assert found.startswith("ModelNotFound") and advice in found


def test_a_connection_that_breaks_off_says_what_to_do(hub: Hub, ask: Ask) -> None:
    """Whatever the HTTP client of the hub's own package raises."""
    hub.breaks_off = (".safetensors",)
    found = ask(hub.url, "tiny/llama", "all")
    assert found.startswith("ModelNotFound") and "start again" in found, found


def test_unsupported_models_are_refused_before_their_weights_come(hub: Hub, ask: Ask, tmp_path: Path) -> None:
    """The config alone decides; no weights are fetched in vain."""
    config = hub.repositories["tiny/llama"] / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "model_type": "mamba"}))
    assert ask(hub.url, "tiny/llama", "all").startswith("UnsupportedModel")
    # A model that can be run, but not by whoever writes on from a text.
    hub.repositories["tiny/bert"] = tmp_path
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    assert "a bert model reads" in ask(hub.url, "tiny/bert", "all")
    assert not any(file.endswith(".safetensors") for file in hub.sent)


def test_a_local_folder_is_itself(tmp_path: Path) -> None:
    """A path to a folder is returned as it is."""
    assert resolve(str(tmp_path)) == tmp_path


@pytest.mark.parametrize(
    "name", ["", "../x", "a/b/c", "/no/such/folder", "a/../b", "a b", "-x", "a/" + "b" * 300, "ü/x"]
)
def test_impossible_names_never_reach_the_hub(name: str) -> None:
    """What is neither a folder nor a hub id is ModelNotFound at once."""
    with pytest.raises(ModelNotFound):
        resolve(name)


def test_identity_is_the_commit_in_the_cache_and_the_digest_elsewhere(tmp_path: Path) -> None:
    """Of a snapshot the commit names every byte, whichever shards are there; of any other folder the weights do."""
    folder = build_tiny("llama", tmp_path / "model")
    assert identity(Checkpoint.open(folder)) == Checkpoint.open(folder).digest()
    commit = "0" * 39 + "a"
    shutil.copytree(folder, tmp_path / "snapshots" / commit)
    assert identity(Checkpoint.open(tmp_path / "snapshots" / commit)) == f"commit:{commit}"
