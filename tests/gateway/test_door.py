"""What every request passes: ids, keys, origins, times, and the last resort."""

from __future__ import annotations

from typing import Any

import pytest
from structlog.testing import capture_logs

from gateway.app import EXPOSED
from gateway.config import GatewayConfig
from gateway.door import accepted_id
from service.ration import BURST


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
        for path in ("/health", "/metrics"):
            assert (await gateway.http.get(path)).status_code == 200
        for key, status in (("one", 200), ("two", 200), ("three", 401), ("one,two", 401), ("ONE", 401)):
            headers = {"authorization": f"Bearer {key}"}
            response = await gateway.http.post("/v1/chat/completions", json=chat, headers=headers)
            assert response.status_code == status
        assert (await gateway.http.get("/models", headers={"authorization": "Basic one"})).status_code == 401


async def test_only_an_operator_drains(serving: Any) -> None:
    """No client, with whichever key and from wherever; an operator needs no key, and sees the state too."""
    async with serving(GatewayConfig(api_keys="one", operator_token="boss")) as gateway:
        for authorization, status in ((None, 401), ("Bearer one", 401), ("Bearer boss2", 401), ("Basic boss", 401)):
            headers = {"authorization": authorization} if authorization else {}
            response = await gateway.http.post("/drain", headers=headers)
            assert response.status_code == status and "operator token" in response.json()["error"]["message"]
        for authorization, status in (("Bearer one", 200), ("Bearer boss", 200), ("Bearer two", 401)):
            response = await gateway.http.get("/state", headers={"authorization": authorization})
            assert response.status_code == status
        assert (await gateway.http.get("/v1/models", headers={"authorization": "Bearer boss"})).status_code == 401
        assert not gateway.dispatcher.draining
        assert (await gateway.http.post("/drain", headers={"authorization": "Bearer boss"})).status_code == 202
        assert gateway.dispatcher.draining


@pytest.mark.parametrize("keys", ["", "one"])
async def test_where_there_is_no_operator_nobody_drains(serving: Any, keys: Any) -> None:
    """This machine's own user included, who is told what to do; what a supervisor does is send a signal."""
    async with serving(GatewayConfig(api_keys=keys)) as gateway:
        for authorization in ("Bearer one", "Bearer", "Basic boss"):
            response = await gateway.http.post("/drain", headers={"authorization": authorization})
            assert response.status_code == 403
        assert (await gateway.http.post("/drain")).status_code == 403
        message = response.json()["error"]["message"]
        assert "--operator-token" in message and "SIGTERM" in message
        assert not gateway.dispatcher.draining


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


async def test_pages_of_allowed_origins_can_read_every_answer(serving: Any, connected: Any, chat: Any) -> None:
    """Refusals of the door and its last resort too, with the headers that say when to come back; others read none."""

    async def broken(request: Any) -> None:
        raise ValueError

    async with serving(GatewayConfig(api_keys="one", allowed_origins="http://app.test")) as gateway:
        gateway.app.add_route("/broken", broken)
        key = {"authorization": "Bearer one"}
        for path, headers, status in (
            ("/v1/models", {}, 401),
            ("/v1/models", {"host": "evil.test"}, 403),
            ("/broken", key, 500),
            ("/nothing", key, 404),
            ("/v1/models", key, 200),
        ):
            response = await gateway.http.get(path, headers=headers | {"origin": "http://app.test"})
            assert response.status_code == status
            assert response.headers["access-control-allow-origin"] == "http://app.test"
            exposed = response.headers["access-control-expose-headers"].lower()
            assert {each.strip() for each in exposed.split(",")} == set(EXPOSED)
            foreign = await gateway.http.get(path, headers=headers | {"origin": "http://evil.test"})
            assert foreign.status_code == 403
            assert "access-control-allow-origin" not in foreign.headers


async def test_what_never_became_a_request_is_counted_and_logged(serving: Any, chat: Any) -> None:
    """Each once, without its content."""
    async with serving(GatewayConfig(api_keys="one", max_body_bytes=1000)) as gateway:
        http, key = gateway.http, {"authorization": "Bearer one"}
        with capture_logs() as logs:
            await http.get("/v1/models")
            await http.get("/health", headers={"origin": "http://evil.test"})
            await http.get("/nothing", headers=key)
            await http.put("/health")
            await http.get("/v1/models/none", headers=key)
            await http.post("/v1/completions", json={"prompt": "SECRET", "n": 0}, headers=key)
            await http.post("/v1/completions", json={"prompt": "SECRET" * 1000}, headers=key)
            await http.post("/v1/completions", json={"prompt": "SECRET"}, headers=key)
        codes = [
            "invalid_api_key", "forbidden_origin", "not_found", "method_not_allowed", "model_not_found",
            "invalid_value", "body_too_large",
        ]  # fmt: skip
        assert [each["outcome"] for each in logs] == [*codes, "no_agent"]
        assert [each["event"] for each in logs] == ["refused"] * len(codes) + ["request"]
        assert "SECRET" not in str(logs)
        text = (await http.get("/metrics")).text
        for code in (*codes, "no_agent"):
            assert f'trilby_request_failures_total{{code="{code}"}} 1.0' in text


async def test_a_flood_of_refusals_is_counted_and_hardly_logged(serving: Any) -> None:
    """Any stranger can send what is refused: each is counted, and a few are lines in the log."""
    async with serving(GatewayConfig(api_keys="one")) as gateway:
        with capture_logs() as logs:
            for _ in range(200):
                assert (await gateway.http.get("/nothing")).status_code == 401
        assert BURST <= len(logs) < 50
        text = (await gateway.http.get("/metrics")).text
        assert 'trilby_request_failures_total{code="invalid_api_key"} 200.0' in text
        assert "trilby_gateway_log_lines_dropped_total 0.0" in text
