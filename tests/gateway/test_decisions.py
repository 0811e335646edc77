"""POST /v1/decisions: from openai-python's ``decisions.create`` through gateway and agent to transformers' numbers."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from agents_here import Served
from checkpoints import DEMO
from decisions import oracle_chances
from openai.types import Decision
from tiny_models import build_tiny

from gateway.decisions.parsing import BETWEEN, MAX_JSON_BYTES, parse_decision
from gateway.decisions.wording import question_of
from wire.decision_messages import MAX_OPTIONS, MAX_QUESTIONS, Decided
from wire.request_messages import Accepted, Done, ServedModel

LETTER = "My order came late, and the box was torn. I want 12 dollars back."
ASKED: list[dict[str, Any]] = [
    {"type": "predicate", "name": "late", "instructions": "The order came late."},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "What is"}, {"type": "input_text", "text": "wanted?"}],
        "choices": [{"value": "money", "description": "a refund"}, {"value": True}, {"value": "true"}],
    },
    {"type": "score", "name": "anger", "instructions": "How angry?", "levels": [{"label": "not"}, {"label": "very"}]},
]
BODY: dict[str, Any] = {"model": "m", "input": LETTER, "questions": ASKED, "safety_identifier": "x"}


def with_the_demos_words(path: Path, name: str) -> Path:
    """A tiny random model with the demo model's tokenizer and chat template."""
    sizes = {"n_positions": 512} if name == "gpt2" else {"max_position_embeddings": 512}
    folder = build_tiny(name, path / name, vocab_size=2048, **sizes)
    for each in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(DEMO / each, folder)
    return folder


@pytest.mark.parametrize("name", ["demo", "gpt2"])
async def test_the_numbers_are_transformers(name: str, served: Served, tmp_path: Path) -> None:
    """Of each kind of question, in the order of the questions, in the shape that openai-python reads."""
    folder = DEMO if name == "demo" else with_the_demos_words(tmp_path, name)
    ask = parse_decision(json.dumps(BODY).encode())
    async with served(folder) as http:
        for path in ("/v1/decisions", "/decisions"):
            answer = await http.post(path, json=BODY)
            assert answer.status_code == 200, answer.text
        assert "decide" in (await http.get("/v1/models/m")).json()["tasks"]
    told = Decision.model_validate(answer.json(), strict=True)
    predicate, choice, score = told.answers
    yes, one_of, level = (oracle_chances(folder, ask.turns, each) for each in ask.asked)
    assert predicate.type == "predicate" and choice.type == "choice" and score.type == "score"
    assert (predicate.name, choice.name, score.name) == ("late", None, "anger")
    assert predicate.probability == pytest.approx(yes[0], abs=1e-4)
    assert [each.value for each in choice.probabilities] == ["money", True, "true"]
    assert [each.probability for each in choice.probabilities] == pytest.approx(one_of, abs=1e-4)
    assert choice.confidence == max(each.probability for each in choice.probabilities)
    assert choice.choice == choice.probabilities[one_of.index(max(one_of))].value
    assert [(each.label, each.value) for each in score.probabilities] == [("not", 0), ("very", 1)]
    assert [each.probability for each in score.probabilities] == pytest.approx(level, abs=1e-4)
    assert [score.score, score.confidence] == pytest.approx([level[1], max(level)], abs=1e-4)
    assert told.usage.total_tokens == told.usage.input_tokens > 0 == told.usage.output_tokens


def test_what_came_before_becomes_a_conversation() -> None:
    """Of all kinds of items; a question goes on in the user's last message, or begins one."""
    call = {"type": "function_call", "call_id": "1", "name": "find", "arguments": '{"id": 7}'}
    items: list[dict[str, Any]] = [
        {"role": "developer", "content": [{"type": "input_text", "text": "Be strict."}]},
        {"type": "message", "role": "user", "content": [{"type": "input_json", "data": {"a": [1, None]}}]},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        call,
        {"type": "function_call_output", "call_id": "1", "output": "lost"},
    ]
    ask = parse_decision(json.dumps(BODY | {"input": items}).encode())
    assert [(turn.role, turn.content) for turn in ask.turns] == [
        ("system", "Be strict."),
        ("user", '{"a":[1,null]}'),
        ("assistant", 'No.\n\nfind({"id": 7})'),
        ("user", f"find gave: lost{BETWEEN}"),
    ]
    assert parse_decision(json.dumps(BODY | {"input": items[:4]}).encode()).turns[-1].content == ""


def test_choices_that_read_the_same_are_told_apart() -> None:
    """A text and a boolean."""
    ask = parse_decision(json.dumps(BODY).encode())
    assert question_of(ask.questions[1], "").options == ["money", "true", '"true"']


def test_as_many_choices_as_there_may_be_are_told_apart_quickly() -> None:
    """In the time of a quick look, some 40 ms on an idle machine; each was once compared with all others."""
    choices = [{"value": f"{at:03}"} for at in range(MAX_OPTIONS)]
    body = {"input": "x", "questions": [{"type": "choice", "instructions": "y", "choices": choices}] * MAX_QUESTIONS}
    data, spent = json.dumps(body).encode(), []
    for _ in range(5):
        began = time.process_time()
        parse_decision(data)
        spent.append(time.process_time() - began)
    assert min(spent) < 0.15


def questions(**changed: Any) -> dict[str, Any]:
    """A body with one question, a choice."""
    choices = [{"value": "a"}, {"value": "b"}]
    return {"questions": [{"type": "choice", "instructions": "q", "choices": choices, **changed}]}


def parts(*given: dict[str, Any]) -> dict[str, Any]:
    """A body with one message of these parts."""
    return {"input": [{"role": "user", "content": [*given]}]}


def deep(levels: int) -> Any:
    """JSON of so many levels."""
    return {"a": deep(levels - 1)} if levels else 1


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"questions": []}, "questions"),
    ({"questions": ASKED * 134}, "questions"),
    ({"questions": [{"type": "poll", "instructions": "q"}]}, "questions[0].type"),
    ({"questions": [{"type": "predicate"}]}, "questions[0].instructions"),
    (questions(instructions=""), "questions[0].instructions"),
    (questions(instructions=7), "questions[0].instructions"),
    (questions(choices=[{"value": "a"}]), "questions[0].choices"),
    (questions(choices=[{"value": str(at)} for at in range(256)]), "questions[0].choices"),
    (questions(choices=[{"value": "a"}, {"value": "a"}]), "questions[0].choices"),
    (questions(choices=[{"value": "a"}, {"value": 1}]), "questions[0].choices[1].value"),
    (questions(choices=[{"value": "a"}, {"value": ""}]), "questions[0].choices[1].value"),
    ({"questions": [{"type": "score", "instructions": "q", "levels": [{"label": "x"}]}]}, "questions[0].levels"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 7}, "input"),
    ({"input": [{"role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"type": "function_call_output", "call_id": "1", "output": "x"}]}, "input[0].call_id"),
    ({"input": [{"type": "function_call", "call_id": "1"}]}, "input[0].name"),
    ({"input": [{"type": "reasoning"}]}, "input[0].type"),
    (parts({"type": "input_image", "image_url": "data:"}), "input[0].content[0].type"),
    (parts({"type": "input_text"}), "input[0].content[0].text"),
    (parts({"type": "input_json", "data": 3}), "input[0].content[0].data"),
    (parts({"type": "input_json", "data": deep(33)}), "input[0].content[0].data"),
    (parts({"type": "input_json", "data": [{"a": 1}] * 5000}), "input[0].content[0].data"),
    (parts({"type": "input_json", "data": {"a": "x" * MAX_JSON_BYTES}}), "input[0].content[0].data"),
    ({"input": "\ud800"}, None),
]


@pytest.mark.parametrize(("changed", "param"), BAD, ids=range(len(BAD)))
async def test_bad_bodies_never_reach_an_agent(gateway: Any, agent: Any, changed: Any, param: str | None) -> None:
    """400 that names the member, where there is one."""
    body = json.dumps(BODY | {"model": None} | changed).encode()
    reply = await gateway.http.post("/v1/decisions", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    assert not agent.asked


async def test_who_hangs_up_ends_it_at_the_agent(gateway: Any, connected: Any) -> None:
    """The agent is told, and its room is free."""

    async def slow(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        agent.post(Decided(asked.request, 1, [0.5, 0.5]))

    async with connected(gateway, slow) as agent:
        asking = asyncio.ensure_future(gateway.http.post("/v1/decisions", json=BODY | {"model": None}))
        await gateway.until(lambda: agent.asked and gateway.roster.running)
        assert agent.asked[0].at_once == len(ASKED)
        asking.cancel()
        await gateway.until(lambda: agent.cancelled == [agent.asked[0].request])
        await gateway.until(lambda: not gateway.roster.running)


async def test_an_agent_that_answers_another_question_breaks_the_protocol(gateway: Any, connected: Any) -> None:
    """One that there is not, one twice, or of other options: an error of ours, not of the client."""

    async def wrong(agent: Any, asked: Any) -> None:
        agent.post(Accepted(asked.request, 5))
        for index in tried[len(agent.asked) - 1]:
            agent.post(Decided(asked.request, index, [0.5, 0.5]))
        agent.post(Done(asked.request, 5, 0))

    tried = ((0, 7), (0, 0), (0, 1, 2))
    async with connected(gateway, wrong):
        for _ in tried:
            reply = await gateway.http.post("/v1/decisions", json=BODY | {"model": None})
            assert (reply.status_code, reply.json()["error"]["code"]) == (502, "upstream_error")


async def test_agents_that_do_not_decide_are_not_asked(gateway: Any, connected: Any) -> None:
    """An older one would not understand: the client is told, whoever else serves the model."""
    old, new = ServedModel("m", 4096, 0), ServedModel("m", 4096, 0, decides=True)
    async with connected(gateway, models=(new,), name="new"), connected(gateway, models=(old,), name="old") as agent:
        reply = await gateway.http.post("/v1/decisions", json=BODY)
        assert (reply.status_code, reply.json()["error"]["code"]) == (400, "unsupported_value")
        assert not agent.asked
