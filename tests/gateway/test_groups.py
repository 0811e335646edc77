"""What a gateway says of groups of devices, and to whom."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import GatewayConfig
from wire.group_messages import GroupReport, ReportedMember
from wire.request_messages import AgentState

MEMBERS = [
    ReportedMember("one", "working", "0-5", "4", 0.5, 20),
    ReportedMember("two", "lost", why="nobody answers"),
]
REPORT = GroupReport("home", "galaxy", 3, True, "10.0.0.1:8003", MEMBERS)


async def test_people_see_members(gateway: Any, agent: Any) -> None:
    """The state has all that the portal said but where to join; models say which groups there are, and an agent without
    one is as it was."""
    assert "group" not in (await gateway.http.get("/state")).json()["agents"][0]
    assert "groups" not in (await gateway.http.get("/v1/models")).json()["data"][0]
    agent.post(AgentState(0, True, REPORT))
    await gateway.until(lambda: gateway.roster.links[0].group is not None)
    [shown] = [each["group"] for each in (await gateway.http.get("/state")).json()["agents"]]
    assert "10.0.0.1" not in str(shown)
    assert (shown["name"], shown["mode"], shown["epoch"], shown["formed"]) == ("home", "galaxy", 3, True)
    assert shown["members"][0] == {
        "name": "one", "state": "working", "layers": "0-5", "heads": "4", "rows_share": 0.5, "memory_mb": 20, "why": "",
        "streamed": "", "streamed_mb": 0, "hidden": None, "step_ms": 0.0,
    }  # fmt: skip
    assert shown["members"][1]["why"] == "nobody answers"
    card = (await gateway.http.get("/v1/models/demo/model")).json()
    states = [{"name": "one", "state": "working"}, {"name": "two", "state": "lost"}]
    assert card["groups"] == [{"name": "home", "mode": "galaxy", "formed": True, "members": states}]


async def test_devices_ask_where_to_join(serving: Any, connected: Any) -> None:
    """With the device token, and no other; a group that listens nowhere yet is left out."""
    config = GatewayConfig(device_token="devices", api_keys="client", operator_token="boss")
    async with serving(config) as gateway, connected(gateway, credential="devices") as agent:
        agent.post(AgentState(0, True, REPORT))
        await gateway.until(lambda: gateway.roster.links[0].group is not None)
        for token, status in (("devices", 200), ("client", 401), ("boss", 401), (None, 401)):
            headers = {"authorization": f"Bearer {token}"} if token else {}
            reply = await gateway.http.get("/groups", headers=headers)
            assert reply.status_code == status
            if status == 200:
                assert reply.json() == {"groups": [{"name": "home", "address": "10.0.0.1:8003"}]}
            else:
                assert "device token" in reply.json()["error"]["message"] and "home" not in reply.text
        agent.post(AgentState(0, True, GroupReport("home", "", 0, False, "", [])))
        await gateway.until(lambda: not gateway.roster.links[0].group.members)
        reply = await gateway.http.get("/groups", headers={"authorization": "Bearer devices"})
        assert reply.json() == {"groups": []}


@pytest.mark.parametrize("path", ["/v1/groups", "/groups/home"])
async def test_nothing_else_is_there(path: str, gateway: Any) -> None:
    """One path, asked for one thing."""
    assert (await gateway.http.get(path)).status_code == 404
