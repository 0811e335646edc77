"""What servers tell by HTTP: real gateways, and servers that are none."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from service.doctor import ask
from service.doctor.ask import Asker, NoAnswer
from service.doctor.finding import Finding
from service.doctor.place import Place
from service.doctor.served import CLOUD, GATEWAY, looked_at, same_release, who_answers
from service.version import VERSION

OK = b'{"status": "ok"}'


async def told(port: int, wanted: str = GATEWAY, api_key: str = "") -> dict[str, Finding]:
    """What is found, by its check."""
    found: list[Finding] = []
    await looked_at(Asker(Place("127.0.0.1", port), None, api_key), wanted, found.append)
    assert {each.about for each in found} == {f"ws://127.0.0.1:{port}"}
    return {each.check: each for each in found}


async def test_a_gateway_without_devices(gateway: Any) -> None:
    """It is well, of this release, and can answer nobody yet."""
    async with gateway() as port:
        found = await told(port)
    assert found["health"].status == "ok" and VERSION in found["release"].seen
    assert found["devices"].status == "warn" and "trilby device" in found["devices"].todo
    assert found["clock"].status == "ok" and "API key" not in found


async def test_a_gateway_that_asks_for_keys(gateway: Any) -> None:
    """The right one is accepted, a wrong one refused, and without one less is known."""
    async with gateway(api_keys="the-right-key") as port:
        right, wrong, none = await told(port, api_key="the-right-key"), await told(port, api_key="no"), await told(port)
    assert right["API key"].status == "ok" and right["release"].status == "ok"
    assert wrong["API key"].status == "fail" and "TRILBY_API_KEY" in wrong["API key"].todo
    assert none["API key"].status == "warn" and "release" not in none
    assert none["devices"].seen.endswith("why is not told")


async def test_a_gateway_that_drains(gateway: Any) -> None:
    """It says so."""
    async with gateway(operator_token="operators-only") as port:
        async with httpx.AsyncClient(trust_env=False, verify=False) as operator:
            headers = {"Authorization": "Bearer operators-only"}
            await operator.post(f"http://127.0.0.1:{port}/drain", headers=headers)
        found = await told(port)
    assert found["health"].status == "warn" and "stopping" in found["health"].seen


async def test_a_cloud_that_loads_its_layers(answering: Any) -> None:
    """It is to be waited for: to start it again would begin it all anew."""
    async with answering({"/health": b'{"status": "starting"}'}) as port:
        found = await told(port, CLOUD)
    assert found["health"].status == "warn" and found["health"].todo.startswith("Wait")


async def test_a_gateway_of_another_release(answering: Any) -> None:
    """Both releases are named."""
    answers = {"/health": OK, "/version": b'{"version": "9.9.9"}', "/ready": b"{}", "/state": b'{"agents": []}'}
    async with answering(answers) as port:
        found = await told(port)
    assert found["release"].status == "warn" and "9.9.9, and here it is" in found["release"].seen
    assert found["devices"].status == "ok"


async def test_devices_that_do_not_reach_their_cloud(answering: Any) -> None:
    """Each is named with what it lacks."""
    state = b'{"agents": [{"name": "kitchen", "models": ["m"], "cloud_connected": false}, 7]}'
    answers = {"/health": OK, "/version": b'{"version": "0"}', "/state": state}
    async with answering(answers) as port:
        found = await told(port)
    assert found["devices"].status == "warn" and found["devices"].figures == {"devices": 1}
    assert "kitchen with m, does not reach its cloud" in found["devices"].seen


async def test_a_clock_that_is_an_hour_ahead(answering: Any) -> None:
    """By the Date of what it answers."""
    async with answering({"/health": OK}, ahead_s=3600.0) as port:
        found = await told(port, CLOUD)
    assert found["clock"].status == "fail" and found["clock"].figures["ahead_s"] > 3590
    assert "60 minutes ahead" in found["clock"].seen and found["health"].status == "ok"


async def test_somebody_else_answers(answering: Any, gateway: Any) -> None:
    """A web server, and the other one of Trilby's."""
    async with answering({"/": b"<html>"}) as port:
        found = await told(port)
        assert (await who_answers(Asker(Place("127.0.0.1", port))))[0] == ""
    assert found["health"].status == "warn" and "404" in found["health"].seen
    async with gateway() as port:
        found = await told(port, CLOUD)
    assert found["health"].status == "fail" and "a gateway answers there" in found["health"].seen
    async with answering({"/health": OK}) as port:
        found = await told(port, GATEWAY)
    assert found["health"].status == "fail" and "a cloud server answers there" in found["health"].seen


async def test_what_does_not_answer_http(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hangs up, says nothing, or says nothing that is HTTP."""
    monkeypatch.setattr(ask, "WITHIN_S", 0.3)
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readline()
        if b"/silent" in first:
            await over.wait()
        writer.write(b"" if b"/closed" in first else b"SSH-2.0-OpenSSH\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    words = {"/closed": "does not answer HTTP", "/silent": "answers nothing within", "/ssh": "does not answer HTTP"}
    for path, word in words.items():
        with pytest.raises(NoAnswer) as failed:
            await Asker(Place("127.0.0.1", port)).get(path)
        assert word in failed.value.seen and failed.value.todo
    over.set()
    server.close()
    await server.wait_closed()


async def test_a_long_answer_is_cut(answering: Any) -> None:
    """Nobody's answer fills the memory; cut it is no object any more."""
    async with answering({"/health": b'{"status": "' + b"x" * (3 * ask.MAX_ANSWER_BYTES) + b'"}'}) as port:
        answer = await Asker(Place("127.0.0.1", port)).get("/health")
    assert len(answer.body) < 2 * ask.MAX_ANSWER_BYTES and answer.facts == {}


def test_releases() -> None:
    """The same, another, and one that is not told."""
    assert same_release("", VERSION).status == "ok" and same_release("", "").status == "ok"
    assert same_release("", "0.0.1").status == "warn"
