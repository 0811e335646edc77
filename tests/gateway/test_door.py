"""What every request passes: ids, keys, origins, times, and the last resort."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config import GatewayConfig
from gateway.door import accepted_id


async def test_request_ids_go_in_and_out(gateway: Any, agent: Any, chat: Any) -> None:
    """Into the reply's id and to the agent; a long or odd one is replaced."""
    response = await gateway.http.post("/v1/chat/completions", json=chat, headers={"x-request-id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"] == "chatcmpl-mine-1"
    assert agent.asked[0].request_id == "mine-1"
    assert int(response.headers["openai-processing-ms"]) >= 0
    for bad in ("a" * 129, "a b", "a;b", ""):
        response = await gateway.http.get("/health", headers={"x-request-id": bad})
        assert response.headers["x-request-id"] != bad


@pytest.mark.parametrize("given", ["x\n", "ä", "%0a", None, "a/b"])
def test_only_plain_ids_are_accepted(given: Any) -> None:
    """Nothing that could break a header or a log line."""
    assert accepted_id(given) != given


async def test_keys_guard_everything_but_probes(serving: Any, connected: Any, chat: Any) -> None:
    """401 with what to send; any of the keys will do."""
    async with serving(GatewayConfig(api_keys="one, two")) as gateway, connected(gateway):
        for path in ("/v1/models", "/models", "/state", "/v1/nothing", "/v1/chat/completions"):
            response = await gateway.http.get(path)
            assert response.status_code == 401, path
            assert response.headers["www-authenticate"] == "Bearer"
            assert response.json()["error"]["code"] == "invalid_api_key"
            assert response.headers["x-request-id"]
        assert (await gateway.http.post("/drain")).status_code == 401
        for path in ("/health", "/metrics"):
            assert (await gateway.http.get(path)).status_code == 200
        for key, status in (("one", 200), ("two", 200), ("three", 401), ("one,two", 401), ("ONE", 401)):
            headers = {"authorization": f"Bearer {key}"}
            response = await gateway.http.post("/v1/chat/completions", json=chat, headers=headers)
            assert response.status_code == status
        assert (await gateway.http.get("/models", headers={"authorization": "Basic one"})).status_code == 401


async def test_foreign_pages_are_refused(serving: Any) -> None:
    """By origin, and by the name they gave this machine."""
    async with serving(GatewayConfig(allowed_origins="http://app.test")) as gateway:
        for headers, status in (
            ({"origin": "http://evil.test"}, 403),
            ({"origin": "null"}, 403),
            ({"host": "evil.test"}, 403),
            ({"origin": "http://evil.test", "host": "evil.test"}, 403),
            ({"origin": gateway.url}, 200),
            ({"origin": "http://app.test"}, 200),
            ({"host": "localhost:1"}, 200),
            ({"host": "[::1]:1"}, 200),
        ):
            assert (await gateway.http.get("/health", headers=headers)).status_code == status, headers
        refused = await gateway.http.post("/drain", headers={"origin": "http://evil.test"})
        assert refused.json()["error"]["code"] == "forbidden_origin"
        assert (await gateway.http.get("/health")).json() == {"status": "ok"}


async def test_a_preflight_needs_no_key(serving: Any) -> None:
    """The page's own request does."""
    async with serving(GatewayConfig(api_keys="one", allowed_origins="http://app.test")) as gateway:
        ask = {"origin": "http://app.test", "access-control-request-method": "POST"}
        response = await gateway.http.options("/v1/chat/completions", headers=ask)
        assert response.status_code == 200
        assert response.headers["access-control-allow-origin"] == "http://app.test"


async def test_a_bug_is_500_without_details(gateway: Any) -> None:
    """And with an id under which the log has them."""

    async def broken(request: Any) -> None:
        raise ValueError("/secret/path of a prompt")

    gateway.app.add_route("/broken", broken)
    response = await gateway.http.get("/broken")
    assert response.status_code == 500
    assert response.json()["error"] == {
        "message": "internal error; the log has more under this x-request-id",
        "type": "server_error",
        "param": None,
        "code": "internal_error",
    }
    assert "secret" not in response.text
