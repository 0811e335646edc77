"""``trilby serve``: gateway, cloud server and one device agent on this machine, started and stopped together."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import httpx

from service.children import Children
from service.draft_settings import NO_DRAFT, arguments, draft_setting, settle, split_setting
from service.modes import MODES, cloud_flags
from service.settings import setting, settings_command

DEMO = Path(__file__).resolve().parents[1] / "models" / "demo"
"""The model that comes with Trilby."""

LEAST_STEP_ROWS = 64
"""What a cloud server takes at least."""

START_WITHIN_S = 900.0
"""Time for all processes to be ready: a large model may have to be downloaded and read."""

POLL_S = 0.1

EXAMPLES = """
trilby serve
trilby serve --model ~/models/Qwen3-0.6B --split 4 --dtype bfloat16
trilby serve --draft lookup
trilby serve --mode local --port 9000
trilby serve --mode u-sarathi --step-rows 256
trilby serve --mode u-small --draft ~/models/small
"""


@dataclass(frozen=True)
class ServeConfig:
    """Serve a model on this machine: gateway, cloud server and one device agent, each a process of its own."""

    model: str = setting(str(DEMO), "checkpoint folder or Hugging Face id")
    split: int = split_setting()
    tail: int = setting(0, "layers the device keeps at the end", minimum=0)
    mode: str = draft_setting("mode")
    dtype: str = setting("float32", "number format of weights and hidden states", choices=("float32", "bfloat16"))
    draft: tuple[str, ...] = draft_setting("draft")
    drafters: str = draft_setting("drafters")
    verify: str = draft_setting("verify")
    draft_length: str = draft_setting("draft_length")
    draft_threshold: float = draft_setting("draft_threshold")
    draft_cap: int = draft_setting("draft_cap")
    prepare: str = draft_setting("prepare")
    stream_rows: str = draft_setting("stream_rows")
    hat_paper: bool = draft_setting("hat_paper")
    chunk: int = draft_setting("chunk")
    whole_prompts: bool = draft_setting("whole_prompts")
    download: str = draft_setting("download")
    pack_rows: str = draft_setting("pack_rows")
    step_rows: int = setting(
        0, "most rows in one step of the cloud, 64 or more; 0: as the mode has it, else 512", minimum=0
    )
    host: str = setting("127.0.0.1", "address of the API")
    port: int = setting(8000, "port of the API", minimum=1, maximum=65535)
    threads: int = setting(0, "threads of cloud and device each; 0: half of this machine's cores", minimum=0)
    api_keys: str = setting("", "keys that clients must show, separated by commas; empty: none needed", secret=True)
    device_token: str = setting("", "credential between gateway and device; required beyond loopback", secret=True)
    log_level: str = setting("warning", "what to log", choices=("debug", "info", "warning", "error"))

    def __post_init__(self) -> None:
        """Raises ValueError where settings contradict each other."""
        settle(self)
        if 0 < self.step_rows < LEAST_STEP_ROWS:
            raise ValueError(f"--step-rows is {LEAST_STEP_ROWS} or more, not {self.step_rows}")
        if self.step_rows and not MODES[self.mode].has_cloud:
            raise ValueError(f"--mode {self.mode} has no cloud: leave --step-rows out")


def run(config: ServeConfig) -> None:
    """Start everything, say how to use it, wait."""
    children = Children()
    for number in (signal.SIGTERM, signal.SIGINT):  # A background job of a shell starts with SIGINT ignored.
        signal.signal(number, _stop_on_signal)
    try:
        _start(config, children)
        _say_hello(config)
        name, code = children.wait()
        raise SystemExit(f"The {name} process ended by itself (exit status {code}); see its messages above.")
    except KeyboardInterrupt:
        click.echo("\nStopping …")
    finally:
        children.stop()


def _start(config: ServeConfig, children: Children) -> None:
    began = time.monotonic()
    threads = str(config.threads or max(1, (os.cpu_count() or 2) // 2))
    cloud_port = _free_port()
    common = ["--model", config.model, "--split", str(config.split), "--tail", str(config.tail)]
    common += ["--dtype", config.dtype, "--threads", threads, "--log-level", config.log_level]
    where = f"http://{_reachable(config.host)}:{config.port}"
    click.echo(f"Starting Trilby with {config.model} ({config.mode}, {config.dtype}) …")
    gateway = ["--host", config.host, "--port", str(config.port), "--log-level", config.log_level]
    # Secrets go by the environment: everybody on the machine can read a command line.
    os.environ["TRILBY_API_KEYS"], os.environ["TRILBY_DEVICE_TOKEN"] = config.api_keys, config.device_token
    children.start("gateway", [sys.executable, "-m", "gateway", *gateway])
    has_cloud = MODES[config.mode].has_cloud
    if has_cloud:
        # A credential for this run only: other users of this machine can reach the loopback address too.
        cloud_token = os.urandom(16).hex()
        os.environ["TRILBY_CLOUD_TOKEN"] = cloud_token
        cloud = [*common, *cloud_flags(config.mode, whole_prompts=config.whole_prompts, step_rows=config.step_rows)]
        cloud += ["--host", "127.0.0.1", "--port", str(cloud_port)]
        children.start("cloud", [sys.executable, "-m", "cloud_server", *cloud])
    device = [*common, *arguments(config), "--gateway", where.replace("http", "ws", 1)]
    device += ["--cloud", f"ws://127.0.0.1:{cloud_port}", "--name", "device"]
    _await("gateway", children, lambda: _answers(f"{where}/health"))
    if has_cloud:
        _await("cloud", children, lambda: _answers(f"http://127.0.0.1:{cloud_port}/health"))
    children.start("device", [sys.executable, "-m", "device_agent", *device])
    _await("device", children, lambda: _answers(f"{where}/ready"))
    click.echo(f"Ready after {time.monotonic() - began:.0f} s.")


def _await(name: str, children: Children, ready: Callable[[], bool]) -> None:
    click.echo(f"  {name} …", nl=False)
    deadline = time.monotonic() + START_WITHIN_S
    while not ready():
        ended = children.ended()
        if ended is not None:
            click.echo("")
            raise SystemExit(f"The {ended[0]} process could not start; see its message above.")
        if time.monotonic() > deadline:
            raise SystemExit(f"The {name} process was not ready within {START_WITHIN_S:.0f} s.")
        time.sleep(POLL_S)
    children.ready(name)
    click.echo(" ready")


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False).status_code == 200
    except httpx.HTTPError:
        return False


def _say_hello(config: ServeConfig) -> None:
    base = f"http://{_reachable(config.host)}:{config.port}"
    key = " -H 'Authorization: Bearer YOUR_KEY'" if config.api_keys else ""
    drafting = drafting_line(_drafters(base, config.api_keys))
    if config.mode == "cloud":
        drafting += "\nThe whole model runs in the cloud, and the cloud sees the text."
    click.echo(
        f"""
Trilby serves an OpenAI-compatible API on {base}/v1
{drafting}

Try, in another terminal:
  .venv/bin/trilby chat{"" if config.port == 8000 else f" --url {base}/v1"}
  curl {base}/v1/chat/completions{key} -H 'Content-Type: application/json' \\
    -d '{{"messages": [{{"role": "user", "content": "Tell me a story about a fox."}}]}}'
Or point any OpenAI client at it:
  OpenAI(base_url="{base}/v1", api_key="{"YOUR_KEY" if config.api_keys else "none"}")

Load and state: {base}/state    Metrics: {base}/metrics    Stop with Ctrl-C.
"""
    )


def drafting_line(drafters: list[str]) -> str:
    """What drafts, the device's own choice being the first of ``drafters``."""
    if not drafters or drafters == [NO_DRAFT]:
        return "It does not draft."
    first, *others = drafters
    chosen = "It drafts only when asked to" if first == NO_DRAFT else f"It drafts with: {first}"
    return f"{chosen} (a request may name another in its field 'draft': {', '.join(others)})."


def _drafters(base: str, api_keys: str) -> list[str]:
    """The drafters of the device that has connected, as the gateway knows them."""
    key = next((each.strip() for each in api_keys.split(",") if each.strip()), "")
    try:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        state = httpx.get(f"{base}/state", headers=headers, timeout=2.0, trust_env=False).json()
        return [str(name) for agent in state["agents"] for names in agent["drafts"].values() for name in names]
    except (httpx.HTTPError, ValueError, KeyError, TypeError, AttributeError):
        return []  # It has gone again: whoever waits for its end says so.


def _reachable(host: str) -> str:
    if host in ("0.0.0.0", "::", ""):
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _stop_on_signal(number: int, frame: object) -> None:
    raise KeyboardInterrupt


command = settings_command(ServeConfig, run, name="serve", examples=EXAMPLES)
