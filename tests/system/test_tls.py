"""All parts with certificates instead of tokens, real processes: a chat through https and wss, and who is no device."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import httpx
import pytest
from certificates import flags, shown
from checkpoints import DEMO
from click.testing import CliRunner
from clouds import cloud_here, tokens_through
from forked import ForkedProcess
from installation import wait_until
from oracle import oracle_answer, oracle_tokens, prompt_for
from processes import Process, free_port
from serving import Serving

from service.certs import Authority
from service.chat import command as chat
from tls.contexts import Tls
from wire.connection import Role
from wire.errors import ConnectionFailed
from wire.limits import CLOUD_LINK, GATEWAY_LINK
from wire.request_messages import AgentHello, ServedModel
from wire.session_messages import DeviceHello
from wire.stream import dial

pytestmark = pytest.mark.system

WITHIN_S = 120.0
KINDS = ("cert", "key", "ca")
QUESTION = "Tell me a story about a fox."
MODEL = ("--model", str(DEMO), "--split", "2", "--threads", "1")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates of an installation, and of somebody else's."""
    folder = tmp_path_factory.mktemp("lab")
    for authority in (Authority(folder), Authority(folder / "other")):
        authority.issue(["server"], "server")
        authority.issue(["kitchen"], "device")
        for name in ("portal", "study"):
            authority.issue([name], "member")
    return folder


@contextmanager
def installation(lab: Path, folder: Path) -> Iterator[tuple[str, str, Process]]:
    """The URLs of gateway and cloud, and a device: nobody has a token."""
    gateway, cloud = free_port(), free_port()
    own = flags(lab, "server")
    with ExitStack() as stack:

        def begin(name: str, *words: str, port: int = 0) -> Process:
            process = ForkedProcess(name, *words, log=folder / f"{name}.log", port=port, scheme="https")
            return stack.enter_context(process)

        begin("gateway", "--host", "0.0.0.0", "--port", str(gateway), *own, port=gateway)
        begin("cloud_server", *MODEL, "--host", "0.0.0.0", "--port", str(cloud), *own, port=cloud)
        where = f"wss://localhost:{gateway}", f"wss://127.0.0.1:{cloud}"
        words = ("--gateway", where[0], "--cloud", where[1], "--name", "anybody", *flags(lab, "kitchen"))
        yield *where, begin("device_agent", *MODEL, *words)


def until_ready(client: httpx.Client) -> None:
    """A device has come, and its cloud."""
    deadline = monotonic() + WITHIN_S
    while client.get("/ready").status_code != 200:
        assert monotonic() < deadline
        sleep(0.05)


async def told(url: str, tls: Tls, hello: AgentHello | DeviceHello) -> str:
    """Why somebody is not let in."""
    role, limits = (Role.AGENT, GATEWAY_LINK) if isinstance(hello, AgentHello) else (Role.DEVICE, CLOUD_LINK)
    with pytest.raises(ConnectionFailed) as refused:
        async with dial(f"{url}/device", role, limits, tls.dialling()) as stream:
            stream.post(hello)
            await asyncio.wait_for(stream.receive(), WITHIN_S)
    return refused.value.message


def test_a_chat_through_all_of_it(lab: Path, tmp_path: Path) -> None:
    """The device is who its certificate says; strangers' certificates and no certificate are refused, and told why."""
    with installation(lab, tmp_path) as (gateway, cloud, _):
        base = gateway.replace("wss", "https")
        with httpx.Client(base_url=base, verify=shown(lab).dialling(), timeout=WITHIN_S, trust_env=False) as client:
            until_ready(client)
            assert [each["name"].partition("#")[0] for each in client.get("/state").json()["agents"]] == ["kitchen"]
            assert client.get("/groups").status_code == 401
        words, trusting = ["--url", f"{base}/v1", "--max-tokens", "8"], ["--tls-ca", str(lab / "ca.crt")]
        said = CliRunner().invoke(chat, [*words, *trusting], input=QUESTION)
        assert said.exit_code == 0 and said.output.strip(), said.output
        refused = CliRunner().invoke(chat, words, input=QUESTION)
        assert refused.exit_code and "--tls-ca" in refused.output
        agent = AgentHello("x", "", [ServedModel("m", 1, 0, ["none"], 1)], 1)
        device = DeviceHello("x", "", "m", "d", 0, 1, 64, "float32")
        for url, hello in ((gateway, agent), (cloud, device)):
            assert "--tls-cert" in asyncio.run(told(url, shown(lab), hello))
            assert "its log says" in asyncio.run(told(url, shown(lab / "other", "kitchen", lab / "ca.crt"), hello))
            assert "has signed the certificate" in asyncio.run(told(url, shown(lab / "other"), hello))
        logs = [tmp_path / f"{name}.log" for name in ("gateway", "cloud_server")]
        wait_until(lambda: all("has signed the certificate" in log.read_text() for log in logs))


def test_a_group_by_certificates(lab: Path, tmp_path: Path) -> None:
    """Two devices without a key: the answer is transformers'. Somebody else's member is not let in, and told why."""
    port, joined = free_port(), free_port()
    gateway = ("--gateway", f"wss://127.0.0.1:{port}")
    shares = ("--model", str(DEMO), "--threads", "1")

    def begin(name: str, *words: str, of: Path = lab) -> Process:
        own = flags(of, name.partition("-")[0])
        return ForkedProcess("device_agent", *shares, *words, *gateway, *own, log=tmp_path / name, port=0)

    listens = ("--mode", "galaxy", "--devices", "2", "--shares", "even", "--group-listen", f"127.0.0.1:{joined}")
    join = ("--join", f"127.0.0.1:{joined}")
    server = ("--port", str(port), *flags(lab, "server"))
    with (
        ForkedProcess("gateway", *server, log=tmp_path / "gateway", port=port, scheme="https"),
        begin("portal", *listens),
        begin("portal-other", *join, of=lab / "other") as stranger,
        httpx.Client(base_url=f"https://127.0.0.1:{port}", verify=shown(lab).dialling(), timeout=60) as client,
    ):
        wait_until(lambda: "has signed the certificate shown" in stranger.output)
        assert client.get("/ready").status_code == 503
        with begin("study", *join):
            until_ready(client)
            body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 30, "temperature": 0}
            reply = client.post("/v1/chat/completions", json={**body, "ignore_eos": True}).json()
            text, _ = oracle_answer(DEMO, QUESTION, 30, whole=True)
            assert reply["choices"][0]["message"]["content"] == text


@pytest.mark.slow
def test_all_on_one_machine(lab: Path, tmp_path: Path) -> None:
    """`trilby serve` with a certificate: its own processes verify it too."""
    with Serving(tmp_path / "log", "--mode", "local", *flags(lab, "server")) as serving:
        base = f"https://127.0.0.1:{serving.port}"
        assert f"{base}/v1" in serving.log.read_text()
        body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 4}
        with httpx.Client(verify=shown(lab).dialling(), timeout=WITHIN_S, trust_env=False) as client:
            assert client.post(f"{base}/v1/chat/completions", json=body).status_code == 200
    with pytest.raises(AssertionError, match="cannot be dialled"):
        Serving(tmp_path / "other", "--mode", "local", *flags(lab, "kitchen")).__enter__()


@pytest.mark.slow
async def test_stages_by_certificates(lab: Path, tmp_path: Path) -> None:
    """A cloud server, a stage of its machine and one of another: without a token, and the tokens are transformers'. One
    whose certificate another CA has signed is not let in."""
    where, prompt = f"127.0.0.1:{free_port()}", prompt_for(DEMO, 40, seed=3)
    words = ("--join", where, "--model", str(DEMO), "--threads", "1")

    def stage(of: Path, name: str) -> Process:
        return ForkedProcess("cloud_server.stages.stage", *words, *flags(of, "study"), log=tmp_path / name)

    own = dict(zip(KINDS, ("portal.crt", "portal.key", "ca.crt"), strict=True))
    files = {f"tls_{kind}": str(lab / file) for kind, file in own.items()}
    with stage(lab / "other", "stranger") as stranger:
        wait_until(lambda: "dialling again" in stranger.output)
        with stage(lab, "stage"):
            settings: dict[str, Any] = {"stages": 3, "remote_stages": 1, "stage_address": where, "threads": 1, **files}
            async with cloud_here(DEMO, 2, **settings) as cloud:
                # Devices dial this one without TLS, and show nothing.
                cloud.server.engine.identity = dataclasses.replace(cloud.server.engine.identity, certificates=False)
                assert await tokens_through(cloud, DEMO, [prompt], 16) == [oracle_tokens(DEMO, prompt, 16)]
                assert "has signed the certificate" in stranger.output
