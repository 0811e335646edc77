"""Who may drain a cloud server and see its state: nobody but an operator."""

from __future__ import annotations

import httpx
import pytest
from checkpoints import DEMO
from clouds import cloud_here

from cloud_server.config import CloudConfig


@pytest.mark.parametrize(("token", "state"), [("", 200), ("s", 403)])
async def test_without_an_operator_nobody_drains(token: str, state: int) -> None:
    """Whoever it is; and the state is seen only where there are no secrets at all."""
    async with cloud_here(DEMO, 2, cloud_token=token) as cloud, httpx.AsyncClient(trust_env=False) as client:
        http = cloud.url.replace("ws", "http", 1)
        for headers in ({}, {"Authorization": f"Bearer {token or 'x'}"}):
            refused = await client.post(http + "/drain", headers=headers)
            assert refused.status_code == 403 and "--operator-token" in refused.json()["detail"]
            assert (await client.get(http + "/state", headers=headers)).status_code == state
        page = {"Origin": "https://evil.example"}
        assert (await client.get(http + "/state", headers=page)).status_code == 403
        assert not cloud.server.engine.ledger.draining


def test_the_cloud_token_is_no_operators() -> None:
    """Every device has it."""
    with pytest.raises(ValueError, match="--operator-token"):
        CloudConfig(model="m", cloud_token="x", operator_token="x")
