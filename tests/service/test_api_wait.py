"""A chat that is begun before there is somebody to answer waits, and says for whom."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest

from service import api_wait
from service.api_server import ServerError, model_of
from service.api_wait import NO_MODEL, missing, wait_until_there


def card(name: str, *groups: tuple[bool, list[str]]) -> dict[str, Any]:
    """As GET /v1/models has it. groups: whether each has formed, and its members' states."""
    shown = [
        {"name": "home", "formed": formed, "members": [{"name": "any", "state": state} for state in states]}
        for formed, states in groups
    ]
    return {"id": name} | ({"groups": shown} if groups else {})


FORMING = card("one", (False, ["measuring", "joining", "joining"]))


@pytest.mark.parametrize(
    ("cards", "model", "line"),
    [
        ([], "", NO_MODEL),
        ([], "named", ""),
        ([card("one")], "", ""),
        ([FORMING], "", "The group home forms: 1 measuring, 2 joining."),
        ([FORMING], "one", "The group home forms: 1 measuring, 2 joining."),
        ([card("one", (False, []))], "", "The group home forms: nobody has come yet."),
        ([FORMING], "other", ""),
        ([card("two"), FORMING], "", ""),
        ([card("one", (False, ["joining"]), (True, ["working"]))], "", ""),
    ],
)
def test_what_there_is_to_wait_for(cards: list[dict[str, Any]], model: str, line: str) -> None:
    """A model, or a group; of other servers, and of models that are not there, the first request says more."""
    assert missing(cards, model) == line


@contextmanager
def served(*bodies: Any) -> Iterator[httpx.Client]:
    """A server that answers with one after the other, the last again and again."""
    left = list(bodies)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(left.pop(0) if len(left) > 1 else left[0]).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        with httpx.Client(base_url=f"http://127.0.0.1:{server.server_port}", trust_env=False) as client:
            yield client
        server.shutdown()


def test_the_model_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a line whenever something is new."""
    said: list[str] = []
    monkeypatch.setattr(api_wait, "LOOK_EVERY_S", 0.01)
    with served(
        {"data": []}, {"data": []}, {"data": [FORMING]}, {"data": [card("one", (True, ["working"]))]}
    ) as client:
        assert model_of(client, "", said.append) == "one"
    assert [line.removesuffix(" Waiting; Ctrl-C ends it.") for line in said] == [NO_MODEL, missing([FORMING], "")]


@pytest.mark.parametrize("body", [[], {"data": 3}, {"data": [3]}, {"data": [{}]}, {"data": None}])
def test_what_is_no_list_of_models_is_told(body: Any) -> None:
    """Instead of being waited for."""
    with served(body) as client, pytest.raises(ServerError, match="does not speak the OpenAI API"):
        model_of(client, "", print)


def test_a_model_that_was_named_needs_no_list() -> None:
    """Some servers have none."""
    with served({"detail": "not found"}) as client:
        assert model_of(client, "named", print) == "named"


def test_a_wait_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what is still missing, which is said once."""
    monkeypatch.setattr(api_wait, "LOOK_EVERY_S", 0.01)
    said: list[str] = []
    assert wait_until_there(lambda: "all", said.append, within_s=0.05) == "all" and said == ["all"]
