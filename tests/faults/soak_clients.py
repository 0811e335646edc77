"""What clients of a soak do, one thing after another: each is what it has to be, or an AssertionError."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
from faults.chaos_run import ASKED, FIRST_TOKENS
from faults.shapes import Turn, body_of, wanted
from streamed import stream_answer
from websockets.sync.client import connect

TOKENS: Final = 48
WITHIN_S: Final = 120.0
FORM: Final = {
    "type": "object",
    "properties": {"kind": {"enum": ["fox", "owl"]}, "legs": {"type": "integer", "minimum": 2, "maximum": 4}},
    "required": ["kind", "legs"],
    "additionalProperties": False,
}


class Left(Exception):
    """The client hangs up."""


def _asked(base: str, path: str, body: Mapping[str, Any], status: int = 200) -> Any:
    reply = httpx.post(f"{base}/{path}", json=body, timeout=WITHIN_S, trust_env=False, verify=False)
    assert reply.status_code == status, (path, reply.status_code, reply.text[:300])
    return reply.json()


def know_answers() -> None:
    """Ask transformers for all that clients compare with."""
    for first, second in ASKED:
        turns: tuple[Turn, ...] = (("user", first),)
        wanted(turns, TOKENS)
        wanted((*turns, ("assistant", wanted(turns, FIRST_TOKENS)), ("user", second)), TOKENS)


def chat(base: str, rng: random.Random) -> None:
    """A streamed answer, drafted or not."""
    turns = (("user", rng.choice(ASKED)[0]),)
    answer = stream_answer(base, body_of(turns, TOKENS, rng.choice(("none", ""))))
    assert answer.done and answer.text == wanted(turns, TOKENS), (answer.error, answer.text)


def second_turn(base: str, rng: random.Random) -> None:
    """Two turns of a conversation."""
    first, second = rng.choice(ASKED)
    turns: tuple[Turn, ...] = (("user", first),)
    said = _asked(base, "chat/completions", body_of(turns, FIRST_TOKENS))["choices"][0]["message"]["content"]
    assert said == wanted(turns, FIRST_TOKENS)
    turns += (("assistant", said), ("user", second))
    said = _asked(base, "chat/completions", body_of(turns, TOKENS))["choices"][0]["message"]["content"]
    assert said == wanted(turns, TOKENS)


def sampled(base: str, rng: random.Random) -> None:
    """Two choices by a seed, twice the same."""
    body = {**body_of((("user", rng.choice(ASKED)[0]),), 16, ""), "temperature": 0.9, "seed": rng.randrange(5), "n": 2}
    texts = [[each["message"]["content"] for each in _asked(base, "chat/completions", body)["choices"]] for _ in "12"]
    assert texts[0] == texts[1]


def formed(base: str, rng: random.Random) -> None:
    """An answer held to a schema."""
    body = {**body_of((("user", "Tell me of an animal."),), 60, ""), "ignore_eos": False, "guided_json": FORM}
    found = json.loads(_asked(base, "chat/completions", body)["choices"][0]["message"]["content"])
    assert found["kind"] in ("fox", "owl") and 2 <= found["legs"] <= 4


def read(base: str, rng: random.Random) -> None:
    """Vectors."""
    texts = [each[0] for each in rng.sample(ASKED, 2)]
    assert len(_asked(base, "embeddings", {"input": texts})["data"]) == 2


def scored(base: str, rng: random.Random) -> None:
    """How likely a text is."""
    body = {"prompt": rng.choice(ASKED)[0], "max_tokens": 0, "echo": True, "logprobs": 1}
    assert _asked(base, "completions", body)["choices"][0]["logprobs"]["token_logprobs"]


def refused(base: str, rng: random.Random) -> None:
    """Requests that are none."""
    bodies: list[dict[str, Any]] = [{"messages": []}, {"messages": "x"}]
    bodies.append({"messages": [{"role": "user", "content": "x"}], "n": 10**9})
    assert _asked(base, "chat/completions", rng.choice(bodies), 400)["error"]["message"]


def leaves(base: str, rng: random.Random) -> None:
    """A client that hangs up."""
    after = rng.randint(1, 20)

    def seen(count: int) -> None:
        if count == after:
            raise Left

    try:
        stream_answer(base, body_of((("user", rng.choice(ASKED)[0]),), 400, ""), seen)
    except Left:
        return
    raise AssertionError("it was over before the client left")


def socket(base: str, rng: random.Random) -> None:
    """The token websocket: an answer to its end, and one that is cancelled."""
    with connect(base.replace("http", "ws") + "/stream", proxy=None) as websocket:
        websocket.send(json.dumps({"prompt": "Once there was", "max_tokens": 8, "ignore_eos": True, "temperature": 0}))
        while json.loads(websocket.recv(WITHIN_S))["type"] != "done":
            pass
        websocket.send(json.dumps({"prompt": "Once there was", "max_tokens": 900, "ignore_eos": True}))
        websocket.recv(WITHIN_S)
        websocket.send(json.dumps({"type": "cancel"}))


KINDS: Final[Mapping[str, Callable[[str, random.Random], None]]] = {
    each.__name__.replace("_", " "): each
    for each in (chat, second_turn, sampled, formed, read, scored, refused, leaves, socket)
}
NEAR: Final = ("socket",)
"""What only a gateway serves that the device is connected to."""
