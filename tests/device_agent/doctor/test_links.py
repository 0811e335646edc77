"""Links as the doctor looks at them: real clouds, gateways and portals, with the right secrets and with wrong ones."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from clouds import Cloud, cloud_here, until
from quick_server import QuickServer, eventually
from safetensors.torch import load_file, save_file
from slow_relay import slow_relay

from device_agent.doctor.cloud import look_at_cloud
from device_agent.doctor.gateway import look_at_gateway
from device_agent.doctor.group import look_at_group
from device_agent.doctor.model import opened
from gateway.app import create_app
from gateway.config import GatewayConfig
from peers.rendezvous import listening as meeting
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding
from service.doctor.place import Place, place_of
from service.lifecycle import listening
from service.version import VERSION

TOKEN = "a-token-of-devices"
KEY = "a key of this very group"


def by_check(found: list[Finding]) -> dict[str, Finding]:
    """Findings by their check, of which each comes once."""
    assert len({each.check for each in found}) == len(found), found
    return {each.check: each for each in found}


async def cloud_found(cloud: Cloud, model: Path | None, url: str = "", **settings: Any) -> dict[str, Finding]:
    """What is found of a cloud server by who has this model."""
    place = place_of("--cloud", url or cloud.url)
    config = DoctorConfig(model=str(model or ""), cloud=(place.websocket,), **settings)
    here = opened(config, lambda finding: None) if model is not None else None
    found: list[Finding] = []
    await look_at_cloud(place, config, here.hello if here is not None else None, found.append)
    await until(lambda: not cloud.server.links)
    assert not cloud.server.engine.ledger.entries and not cloud.server.engine.ledger.pages.used
    assert TOKEN not in str(found)
    return by_check(found)


async def test_a_cloud_that_fits(tiny: Path) -> None:
    """Token, release and model are right, round trip and bandwidth are measured, and nothing stays behind."""
    async with cloud_here(tiny, 1, cloud_token=TOKEN) as cloud:
        found = await cloud_found(cloud, tiny, split=1, cloud_token=TOKEN)
    assert {each.status for each in found.values()} == {"ok"}, found
    assert "accepted" in found["token"].seen and VERSION in found["release"].seen
    assert "layers 1 to 3" in found["model"].seen
    assert 0 < found["round trip"].figures["median_s"] < 5 and found["round trip"].figures["pings"] > 1
    assert found["bandwidth"].figures["up_bytes_s"] > 0 and found["bandwidth"].figures["down_bytes_s"] > 0


async def test_bandwidth_may_be_left_out(tiny: Path) -> None:
    """Then no session is opened."""
    async with cloud_here(tiny, 1) as cloud:
        found = await cloud_found(cloud, tiny, split=1, bandwidth=False)
    assert "bandwidth" not in found and "without a token" in found["token"].seen


@pytest.mark.parametrize(("given", "word"), [("another-token", "is refused"), ("", "none was given")])
async def test_a_wrong_token(given: str, word: str, tiny: Path) -> None:
    """It is said which to give; the model is nobody's business then."""
    async with cloud_here(tiny, 1, cloud_token=TOKEN) as cloud:
        found = await cloud_found(cloud, tiny, split=1, cloud_token=given)
    assert found["token"].status == "fail" and word in found["token"].seen
    assert "TRILBY_CLOUD_TOKEN" in found["token"].todo and "model" not in found
    assert found["round trip"].status == "ok"


async def test_other_weights(tiny: Path, tmp_path: Path) -> None:
    """A model of the same name, of which one tensor is another."""
    other = tmp_path / tiny.name
    shutil.copytree(tiny, other)
    tensors = {name: each.clone() for name, each in load_file(other / "model.safetensors").items()}
    tensors["model.norm.weight"] += 1
    save_file(tensors, other / "model.safetensors")
    async with cloud_here(tiny, 1) as cloud:
        found = await cloud_found(cloud, other, split=1)
    assert found["token"].status == "ok" and found["model"].status == "fail"
    assert "weights" in found["model"].seen and "same revision" in found["model"].todo


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"split": 2}, "--split"),
        ({"split": 1, "dtype": "bfloat16"}, "--dtype"),
        ({"split": 1, "served_model_name": ("x",)}, "--model"),
    ],
)
async def test_settings_that_differ(settings: dict[str, Any], word: str, tiny: Path) -> None:
    """Which to make the same is said."""
    async with cloud_here(tiny, 1) as cloud:
        found = await cloud_found(cloud, tiny, **settings)
    assert found["model"].status == "fail" and word in found["model"].todo


async def test_a_cloud_without_a_model_to_compare(tiny: Path) -> None:
    """The token is looked at all the same."""
    async with cloud_here(tiny, 1, cloud_token=TOKEN) as cloud:
        found = await cloud_found(cloud, None, cloud_token=TOKEN)
    assert found["token"].status == "ok" and "not compared" in found["model"].seen and "bandwidth" not in found


async def test_a_cloud_that_drains(tiny: Path) -> None:
    """It takes nobody, which passes."""
    async with cloud_here(tiny, 1, drain_within_s=0.0) as cloud:
        await cloud.server.drain()
        found = await cloud_found(cloud, tiny, split=1)
    assert found["hello"].status == "warn" and "stopping" in found["hello"].seen


async def test_a_slow_link_is_measured(tiny: Path) -> None:
    """A relay that passes so many bytes a second each way: that is what is found, and no more than the time allows is
    sent."""
    async with cloud_here(tiny, 1) as cloud, slow_relay(place_of("", cloud.url).port, 200_000) as port:
        found = await cloud_found(cloud, tiny, f"ws://127.0.0.1:{port}", split=1)
    figures = found["bandwidth"].figures
    assert 100_000 < figures["up_bytes_s"] < 400_000 and 80_000 < figures["down_bytes_s"] < 500_000, found


@asynccontextmanager
async def gateway_here(**settings: Any) -> AsyncIterator[tuple[Any, Place]]:
    """A real gateway in this event loop: its insides, and where it is."""
    app, listener = create_app(GatewayConfig(**settings)), listening("127.0.0.1", 0)
    server = QuickServer(uvicorn.Config(app, log_config=None, access_log=False, ws="websockets-sansio"))
    task = asyncio.create_task(server._serve([listener]))
    await eventually(lambda: server.started)
    try:
        yield app.state.desk.roster, Place("127.0.0.1", listener.getsockname()[1])
    finally:
        server.stop.set()
        await task
        listener.close()


async def gateway_found(place: Place, token: str) -> dict[str, Finding]:
    """What is found of a gateway by who has this token."""
    found: list[Finding] = []
    await look_at_gateway(place, DoctorConfig(device_token=token), found.append)
    return by_check(found)


async def test_a_gateway_and_its_token() -> None:
    """The right one is accepted, others are refused; nobody becomes an agent by being asked."""
    async with gateway_here(device_token=TOKEN) as (roster, place):
        joined: list[Any] = []
        roster.join = joined.append
        right, wrong, none = [await gateway_found(place, token) for token in (TOKEN, "another", "")]
    assert not joined
    assert right["token"].status == "ok" and right["round trip"].status == "ok"
    assert "not measured" in right["bandwidth"].seen
    assert wrong["token"].status == none["token"].status == "fail"
    assert "refused" in wrong["token"].seen and "none was given" in none["token"].seen
    assert "TRILBY_DEVICE_TOKEN" in wrong["token"].todo


async def test_servers_that_are_taken_for_one_another(tiny: Path) -> None:
    """A gateway where a cloud should be, the reverse, and nobody at all."""
    async with gateway_here() as (_, place):
        found: list[Finding] = []
        await look_at_cloud(place, DoctorConfig(), None, found.append)
        assert by_check(found)["hello"].status == "fail" and "Dial the cloud server" in found[0].todo
    async with cloud_here(tiny, 1) as cloud:
        found = list((await gateway_found(place_of("", cloud.url), "")).values())
        assert found[0].status == "fail" and "Dial the gateway" in found[0].todo
    found = list((await gateway_found(place, "")).values())
    assert len(found) == 1 and found[0].status == "fail" and "nobody answers" in found[0].seen


async def group_found(port: int, key: str) -> dict[str, Finding]:
    """What is found of a portal by who has this key."""
    found: list[Finding] = []
    config = DoctorConfig(group_key=key, join=f"127.0.0.1:{port}")
    await look_at_group(Place("127.0.0.1", port), config, found.append)
    return by_check(found)


async def test_a_group_and_its_key() -> None:
    """The right one is accepted; who only looks takes no place, also where one is free, and is gone again."""
    async with meeting("127.0.0.1", 0, KEY) as rendezvous:
        group = rendezvous.open(1, {1: b"a place that anybody may have"})
        right = await group_found(rendezvous.port, KEY)
        wrong = await group_found(rendezvous.port, "another key of 16 characters")
        await until(lambda: not rendezvous.guests)
        assert group.missing == [1] and not group.ended.done()
    assert right["key"].status == "ok" and right["dialled"].status == "ok" and right["round trip"].status == "ok"
    assert wrong["key"].status == "fail" and "TRILBY_GROUP_KEY" in wrong["key"].todo
    gone = await group_found(rendezvous.port, KEY)
    assert gone["dialled"].status == "fail" and set(gone) == {"dialled"}


@pytest.mark.parametrize("key", ["", "short"])
async def test_a_key_that_is_none(key: str) -> None:
    """Nobody is dialled with it."""
    found = await group_found(1, key)
    assert set(found) == {"key"} and found["key"].status == "fail" and "TRILBY_GROUP_KEY" in found["key"].todo
