"""``trilby serve``: gateway, one device agent, and a cloud server or the other members of its group, on this machine,
started and stopped together."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

import click
import httpx

from service.addresses import host_port, reachable
from service.children import AFTER_DRAINING_S, Children, Stopped
from service.lifecycle import listening
from service.logs import configure_logs
from service.model_kinds import undivided
from service.modes import MODES
from service.python_module import python_module
from service.served_lines import agents_of, drafting_line, each_of, example, group_lines
from service.setting_names import ENDING, ENVIRONMENT_PREFIX, command_line, variable_of
from service.settings import changed, secrets_of, settings_command, words_of
from service.shared_settings import (
    ApiSettings,
    CloudSide,
    DeviceSide,
    GatewaySide,
    ModelSettings,
    ProcessSettings,
    SplitSettings,
)
from service.sizes import for_each
from service.stopping import stop_signals
from service.tls_settings import TlsSettings
from service.trace_settings import TraceSettings
from split_model.host_memory import free_host_bytes
from tls.why import cause, why

DEMO = Path(__file__).resolve().parents[1] / "models" / "demo"
"""The model that comes with Trilby."""

DEVICE = "device"
"""What its device agent is called; the others of a group have its name and a number."""

START_WITHIN_S = 900.0
"""Time for all processes to be ready: a large model may have to be downloaded and read."""

POLL_S = 0.1

EXAMPLES = """
trilby serve
trilby serve --model ~/models/Qwen3-0.6B --split 4 --dtype bfloat16
trilby serve --draft lookup
trilby serve --mode local --port 9000
trilby serve --mode galaxy --devices 3
trilby serve --mode lime --devices 3 --memory 2GiB,1GiB,1GiB
trilby serve --mode u-sarathi --step-rows 256
trilby serve --mode u-small --draft ~/models/small
TRILBY_DEVICE_TOKEN=… trilby serve --host 0.0.0.0 --api-keys-file ~/.trilby-keys
"""


@dataclass(frozen=True)
class ServeConfig(ProcessSettings, TraceSettings, TlsSettings, GatewaySide, CloudSide, DeviceSide):
    """Serve a model on this machine: gateway, cloud server and one device agent, each a process of its own.

    In a group's mode there is no cloud server: several processes share the layers.
    """

    model: str = changed(ModelSettings, "model", str(DEMO))
    max_model_len: int = changed(ModelSettings, "max_model_len", 0, tunes=True)
    tail: int = changed(SplitSettings, "tail", 0, tunes=True)
    port: int = changed(ApiSettings, "port", 8000, minimum=1)
    log_level: Literal["debug", "info", "warning", "error"] = changed(
        ProcessSettings, "log_level", "warning", tunes=True
    )

    def __post_init__(self) -> None:
        """Raises ValueError where settings contradict each other."""
        super().__post_init__()
        self.check_tls()
        self.check_traces()
        if self.step_rows and not MODES[self.mode].has_cloud:
            raise ValueError(f"--mode {self.mode} has no cloud: leave --step-rows out")
        if MODES[self.mode].group and self.device not in ("auto", "cpu") and not self.memory:
            raise ValueError(f"--device {self.device} is one for the whole group: say with --memory who may use what")


def run(config: ServeConfig) -> None:
    """Start everything, say how to use it, wait."""
    configure_logs("serve", config.log_level, config.log_form)
    config = _suited(config)
    children = Children()
    with stop_signals(children.told):
        try:
            _start(config, children)
            _say_hello(config)
            ended = children.wait(lambda: _see_who_left(children))
            assert ended is not None
            name, code = ended
            raise SystemExit(f"The {name} process ended by itself (exit status {code}); see its messages above.")
        except Stopped:
            _stop(config, children)
        finally:
            children.stop()


def _suited(config: ServeConfig) -> ServeConfig:
    """The same where nobody has chosen a mode that the model cannot have: then all its layers are on the device."""
    does = undivided(config.model) if config.mode == "hat" else None
    if does is None:
        return config
    click.echo(f"{config.model} {does}, so all its layers run on the device: --mode local, or a group's mode.")
    return replace(config, mode="local")


def _stop(config: ServeConfig, children: Children) -> None:
    within_s = config.drain_within_s
    if not children.may_drain:
        click.echo("\nStopping …")
        return
    longest = within_s + AFTER_DRAINING_S
    click.echo(f"\nDraining: open answers get up to {within_s:g} s, all is over within {longest:g} s …")
    children.drain(within_s)


def _start(config: ServeConfig, children: Children) -> None:
    began = time.monotonic()
    cloud_port, join_port = _free_port(), _free_port()
    where = _base(config)
    # Who listens there would be taken for the gateway, and shown its keys. Raises SystemExit, and says what to do.
    listening(config.host, config.port).close()
    click.echo(f"Starting Trilby with {config.model} ({config.mode}, {config.dtype}) …")
    for name in [each for each in os.environ if each.startswith(ENVIRONMENT_PREFIX) and each.endswith(ENDING.upper())]:
        del os.environ[name]  # What they hold is known already.
    # Secrets go by the environment: everybody on the machine can read a command line.
    os.environ.update(secrets_of(config))
    tls = words_of(config, TlsSettings)
    for each in fields(TlsSettings):  # Only the gateway is reached from elsewhere.
        os.environ.pop(variable_of(each), None)
    if config.tls_cert and config.tls_ca and not config.device_token:
        os.environ["TRILBY_DEVICE_TOKEN"] = os.urandom(16).hex()  # In place of a certificate, for this run only.

    mode = MODES[config.mode]
    computing = config.devices if mode.group else 2
    memory = config.memory or (_share(config.devices) if mode.group else "")
    threads = config.threads or max(1, (os.cpu_count() or 2) // computing)
    memories = for_each("--memory", memory, config.devices if mode.group else 1)
    shared = replace(config, threads=threads, memory=memories[0])

    def start(name: str, module: str, side: type[Any], *more: str) -> None:
        common = (side, ProcessSettings, TraceSettings)
        words = [*(word for part in common for word in words_of(shared, part)), *more]
        children.start(name, [*python_module(module), *words])

    start("gateway", "gateway", GatewaySide, *tls)
    if mode.has_cloud:
        # A credential for this run only: other users of this machine can reach the loopback address too.
        os.environ["TRILBY_CLOUD_TOKEN"] = os.urandom(16).hex()
        start("cloud", "cloud_server", CloudSide, "--host", "127.0.0.1", "--port", str(cloud_port))
    _await("gateway", children, lambda: _answers(f"{where}/health", config))
    members = _start_members(shared, children, f"127.0.0.1:{join_port}", memories[1:]) if mode.group else []
    if mode.has_cloud:
        _await("cloud", children, lambda: _answers(f"http://127.0.0.1:{cloud_port}/health", config))
    links = ["--gateway", where.replace("http", "ws", 1), "--cloud", f"ws://127.0.0.1:{cloud_port}"]
    links += ["--group-listen", f"127.0.0.1:{join_port}"]
    start(DEVICE, "device_agent", DeviceSide, *links, "--name", DEVICE, "--tls-ca", config.tls_ca)
    _await(DEVICE, children, lambda: _answers(f"{where}/ready", config))
    for name in members:
        children.spare(name)
    click.echo(f"Ready after {time.monotonic() - began:.0f} s.")


def _share(devices: int) -> str:
    """For each device of a group on this machine an equal share of the memory that is free before any begins. Each by
    itself would count all of it as its own."""
    return f"{max(1, free_host_bytes() // devices // 10**6)}MB"


def _start_members(config: ServeConfig, children: Children, where: str, memories: Sequence[str]) -> list[str]:
    """The other devices of a group, which join it at ``where``, with so much memory each; their names."""
    # For this run only, as the cloud's credential.
    os.environ["TRILBY_GROUP_KEY"] = secrets.token_urlsafe(32)
    names = [f"{DEVICE}-{number}" for number in range(2, config.devices + 1)]
    words = command_line(join=where, model=config.model, threads=config.threads, log_level=config.log_level)
    words += command_line(log_form=config.log_form, device=config.device)
    for name, memory in zip(names, memories, strict=True):
        own = command_line(name=name, memory=memory)
        children.start(name, [*python_module("device_agent.group.member"), *words, *own])
    return names


def _see_who_left(children: Children) -> bool:
    """Never the end: the group goes on with those who are left, and who was killed is started again. Who ended with a
    message would say it again."""
    for name, code in children.left().items():
        click.echo(f"The {name} process ended by itself (exit status {code}); the group goes on without it.")
        if code < 0:
            children.start_again(name)
    return False


def _await(name: str, children: Children, ready: Callable[[], bool]) -> None:
    click.echo(f"  {name} …", nl=False)
    deadline = time.monotonic() + START_WITHIN_S
    ended = children.wait(lambda: ready() or time.monotonic() > deadline)
    if ended is not None:
        click.echo("")
        raise SystemExit(f"The {ended[0]} process could not start; see its message above.")
    if time.monotonic() > deadline:
        raise SystemExit(f"The {name} process was not ready within {START_WITHIN_S:.0f} s.")
    children.ready(name)
    click.echo(" ready")


def _answers(url: str, config: ServeConfig) -> bool:
    try:
        return httpx.get(url, timeout=2.0, trust_env=False, verify=config.verifies).status_code == 200
    except httpx.HTTPError as error:
        if (broken := cause(error)) is not None:
            raise SystemExit(f"Its own gateway cannot be dialled at {url}: {why(broken, dialled=True)}.") from None
        return False


def _say_hello(config: ServeConfig) -> None:
    base = _base(config)
    agents = agents_of(base, config.keys, config.verifies)
    tasks = each_of(agents, "tasks")
    does = drafting_line(each_of(agents, "drafts")) if "generate" in tasks or not tasks else "It reads."
    if config.mode == "cloud":
        does += "\nThe whole model runs in the cloud, and the cloud sees the text."
    if lines := group_lines(agents):
        click.echo("\n".join(["The group:", *lines]))
    click.echo(
        f"""
Trilby serves an OpenAI-compatible API on {base}/v1
{does}

Try, in another terminal:
{example(base, config.model, tasks, has_keys=bool(config.api_keys))}
Or point any OpenAI client at it:
  OpenAI(base_url="{base}/v1", api_key="{"YOUR_KEY" if config.api_keys else "none"}")

Watch and chat in a browser: {base}/    State: {base}/state    Metrics: {base}/metrics    Stop with Ctrl-C;
SIGTERM lets open answers end first, for up to {config.drain_within_s:g} s.
"""
    )


def _base(config: ServeConfig) -> str:
    return f"http{'s' if config.tls_cert else ''}://{host_port(reachable(config.host), config.port)}"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


command = settings_command(ServeConfig, run, name="serve", examples=EXAMPLES)
