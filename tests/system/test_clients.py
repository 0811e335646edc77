"""Used as users will: openai-python, curl and a websocket client against real processes; exact to transformers."""

from __future__ import annotations

import asyncio
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from checkpoints import DEMO
from decisions import oracle_chances
from installation import Installation
from openai import AsyncOpenAI, BadRequestError, OpenAI
from oracle import oracle_answer, oracle_model
from processes import printed_by
from reading_models import oracle_rows
from transformers import AutoTokenizer
from websockets.asyncio.client import connect

from gateway.decisions.parsing import parse_decision

pytestmark = pytest.mark.system

QUESTIONS = [
    "Tell me a story about a fox.",
    "How much is 12 plus 7?",
    "Hello! Who are you?",
    "What is the opposite of hot?",
    "Tell me a story about a lighthouse and a lost letter.",
    "Can you say this more politely: Give me the book.",
    "My name is Ada. Please remember it.",
    "How much is 9 times 4?",
]
TOKENS = 64


def expected_text(question: str) -> str:
    """What transformers answers, greedy, in fp32."""
    return oracle_answer(DEMO, question, TOKENS)[0]


def ask(question: str, **more: Any) -> dict[str, Any]:
    """A greedy chat request."""
    messages = [{"role": "user", "content": question}]
    return {"model": "trilby-demo", "messages": messages, "temperature": 0, "max_tokens": TOKENS, **more}


def client(installation: Installation) -> OpenAI:
    """The official client, pointed here."""
    return OpenAI(base_url=installation.base, api_key="none", max_retries=0)


def test_openai_client(installation: Installation) -> None:
    """Whole answers equal transformers'; usage adds up; the models are listed."""
    with client(installation) as openai:
        for question in QUESTIONS[:3]:
            answer = openai.chat.completions.create(**ask(question))
            assert answer.choices[0].message.content == expected_text(question)
            assert answer.usage is not None
            assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
        assert [model.id for model in openai.models.list()] == ["trilby-demo"]
        assert openai.models.retrieve("trilby-demo").id == "trilby-demo"


def test_other_apis(installation: Installation) -> None:
    """A response, streamed, and Anthropic's message equal transformers' too; the response is there afterwards."""
    asked: dict[str, Any] = {"model": "trilby-demo", "temperature": 0, "max_output_tokens": TOKENS}
    with client(installation) as openai:
        with openai.responses.stream(**asked, input=QUESTIONS[1]) as stream:
            said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
            response = stream.get_final_response()
        assert said == response.output_text == expected_text(QUESTIONS[1])
        assert openai.responses.retrieve(response.id).output_text == said
    message = httpx.post(f"{installation.base}/messages", json=ask(QUESTIONS[1]), trust_env=False, timeout=60).json()
    assert message["content"] == [{"type": "text", "text": said}]


def test_trilby_bench(installation: Installation, tmp_path: Path) -> None:
    """A load on real processes: every request is answered, with as many tokens as were asked for."""
    load = ("--rate", "3", "--seconds", "2", "--arrivals", "constant", "--max-tokens", "8", "--ignore-eos")
    printed, _ = printed_by("service.bench", installation.base, *load, "--json", str(tmp_path / "found"))
    (told,) = json.loads((tmp_path / "found").read_text())["rates"]
    assert told["due"] == told["answered"] == 6 and told["tokens"] == 48 and told["counted"]
    assert told["e2e"]["p50"] >= told["ttft"]["p50"] > 0 and "answers a second" in printed


def test_decisions(installation: Installation) -> None:
    """Answers in the order of the questions, as likely as transformers says; an error where there is nothing to ask."""
    asked: list[Any] = [{"type": "predicate", "instructions": f"The fox has {number} friends."} for number in range(20)]
    with client(installation) as openai:
        told = openai.decisions.create(model="trilby-demo", input=QUESTIONS[0], questions=asked)
        with pytest.raises(BadRequestError):
            openai.decisions.create(model="trilby-demo", input=QUESTIONS[0], questions=[])
    ask = parse_decision(json.dumps({"input": QUESTIONS[0], "questions": asked}).encode())
    wanted = [oracle_chances(DEMO, ask.turns, each)[0] for each in ask.asked]
    assert [each.type == "predicate" and each.probability for each in told.answers] == pytest.approx(wanted, abs=1e-4)


def test_embeddings_of_a_chat_model(installation: Installation) -> None:
    """The last hidden states are transformers', also of what is long and of many texts, while an answer is streamed;
    the client asks for base64 by itself. What the model can be asked to do is listed."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    texts = [*QUESTIONS, "A long story about a fox. " * 60]
    wanted = torch.stack([oracle_rows(DEMO, tokenizer(text)["input_ids"])[-1] for text in texts])
    with client(installation) as openai:
        stream = openai.chat.completions.create(**ask(QUESTIONS[0], stream=True))
        next(stream)
        answer = openai.embeddings.create(model="trilby-demo", input=texts)
        torch.testing.assert_close(torch.tensor([each.embedding for each in answer.data]), wanted, rtol=0, atol=1e-4)
        assert answer.usage.prompt_tokens == sum(len(tokenizer(text)["input_ids"]) for text in texts)
        said = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
        assert said == expected_text(QUESTIONS[0])
        assert openai.models.retrieve("trilby-demo").model_dump()["tasks"] == ["generate", "embed", "decide"]


DRAFTED_WITHIN = 8
"""Answers."""


def test_drafting_is_the_clients_choice(installation: Installation) -> None:
    """The device drafts by itself and usage says what it brought; a request may draft with something else or not at
    all, and gets the same text; a drafter that is not there is refused with the names of those that are."""
    with client(installation) as openai:
        for draft in (None, "none", "fused", "lookup"):
            body = None if draft is None else {"draft": draft}
            # Where a busy machine makes drafts cost more than they bring, an answer may have none, or a short one that
            # is not accepted: one of several has.
            for _ in range(1 if draft == "none" else DRAFTED_WITHIN):
                answer = openai.chat.completions.create(**ask(QUESTIONS[0]), extra_body=body)
                assert answer.choices[0].message.content == expected_text(QUESTIONS[0])
                assert answer.usage is not None
                details = answer.usage.completion_tokens_details
                if details is not None and (draft == "lookup" or details.accepted_prediction_tokens):
                    break
            else:
                assert draft == "none" and details is None
        with pytest.raises(BadRequestError, match="hybrid") as refused:
            openai.chat.completions.create(**ask(QUESTIONS[0]), extra_body={"draft": "crystal ball"})
        assert refused.value.param == "draft"


def test_openai_client_streaming(installation: Installation) -> None:
    """The pieces add up to the whole, the reason comes last, usage when asked for."""
    with client(installation) as openai:
        chunks = list(
            openai.chat.completions.create(**ask(QUESTIONS[0], stream=True, stream_options={"include_usage": True}))
        )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == expected_text(QUESTIONS[0])
    assert len(chunks) > 10, "tokens come one by one"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens > 0
    assert chunks[-2].choices[0].finish_reason in ("stop", "length")


async def test_eight_requests_together_as_alone(installation: Installation) -> None:
    """Eight at once, streamed by the async client, give what each gives alone."""

    async def one(openai: AsyncOpenAI, question: str) -> str:
        stream = await openai.chat.completions.create(**ask(question, stream=True))
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async with AsyncOpenAI(base_url=installation.base, api_key="none", max_retries=0) as openai:
        answers = await asyncio.gather(*(one(openai, question) for question in QUESTIONS))
    assert answers == [expected_text(question) for question in QUESTIONS]


def test_completions(installation: Installation) -> None:
    """Plain prompts go on as transformers goes on; echo puts the prompt before."""
    tokenizer: Any = AutoTokenizer.from_pretrained(DEMO)
    prompt = "Once there was a small boat"
    inputs = tokenizer(prompt, return_tensors="pt")
    output = oracle_model(DEMO).generate(**inputs, max_new_tokens=24, do_sample=False)
    expected = tokenizer.decode(output[0], skip_special_tokens=True)[len(prompt) :]
    with client(installation) as openai:
        answer = openai.completions.create(model="trilby-demo", prompt=prompt, temperature=0, max_tokens=24)
        echoed = openai.completions.create(model="trilby-demo", prompt=prompt, temperature=0, max_tokens=24, echo=True)
        ids = openai.completions.create(
            model="trilby-demo", prompt=inputs.input_ids[0].tolist(), temperature=0, max_tokens=24
        )
    assert answer.choices[0].text == ids.choices[0].text == expected
    assert echoed.choices[0].text == prompt + expected


def test_same_seed_same_text(installation: Installation) -> None:
    """A seed repeats all choices of a request; the choices differ; another seed differs."""
    sampled = {**ask(QUESTIONS[0]), "temperature": 1.5, "n": 3, "max_tokens": 24}
    with client(installation) as openai:
        first, second, other = (
            [choice.message.content for choice in openai.chat.completions.create(**sampled, seed=seed).choices]
            for seed in (7, 7, 8)
        )
    assert first == second != other
    assert len(set(first)) == 3


def test_stop_strings_and_logprobs(installation: Installation) -> None:
    """The text ends before the stop string; log-probabilities describe the tokens that were chosen."""
    whole = expected_text(QUESTIONS[0])
    stop = whole[20:24]
    with client(installation) as openai:
        stopped = openai.chat.completions.create(**ask(QUESTIONS[0], stop=stop)).choices[0]
        scored = openai.chat.completions.create(**ask(QUESTIONS[0], logprobs=True, top_logprobs=3)).choices[0]
    assert stopped.message.content == whole[: whole.index(stop)] and stopped.finish_reason == "stop"
    assert scored.logprobs is not None and scored.logprobs.content is not None
    assert "".join(token.token for token in scored.logprobs.content) == whole
    for token in scored.logprobs.content:
        assert token.logprob <= 0 and len(token.top_logprobs) == 3
        assert token.top_logprobs[0].token == token.token, "greedy chooses the likeliest"


def test_curl(installation: Installation) -> None:
    """What the README shows works as it stands."""
    command = ["curl", "-sS", f"{installation.base}/chat/completions", "-H", "Content-Type: application/json"]
    command += ["-d", json.dumps(ask(QUESTIONS[1]))]
    reply = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=60).stdout)
    assert reply["choices"][0]["message"]["content"] == expected_text(QUESTIONS[1])
    streamed = subprocess.run(
        [*command[:-1], json.dumps(ask(QUESTIONS[1], stream=True))], capture_output=True, check=True, timeout=60
    ).stdout.decode()
    assert streamed.endswith("data: [DONE]\n\n")


def test_open_webui(installation: Installation) -> None:
    """The requests of its backend: the models, a streamed chat with members of its own and content in parts, the title
    it asks for behind it, and vectors for its documents."""
    own = {
        "chat_id": "c",
        "session_id": "s",
        "id": "m",
        "features": {"web_search": False},
        "metadata": {"a": {"b": [1]}},
    }
    headers = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "Ada", "X-OpenWebUI-User-Role": "user"}
    with httpx.Client(base_url=installation.base, headers=headers, trust_env=False, timeout=60) as http:
        assert [each["id"] for each in http.get("/models").json()["data"]] == ["trilby-demo"]
        content = [{"type": "text", "text": QUESTIONS[0]}]
        body = {**ask(QUESTIONS[0]), **own, "messages": [{"role": "user", "content": content}], "stream": True}
        with http.stream(
            "POST", "/chat/completions", json={**body, "stream_options": {"include_usage": True}}
        ) as reply:
            assert reply.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in reply.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line[6:]) for line in lines[:-1]]
        said = "".join(each["choices"][0]["delta"].get("content") or "" for each in chunks if each["choices"])
        assert said == expected_text(QUESTIONS[0])
        assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
        asked = {
            "messages": [{"role": "user", "content": "Give a title."}],
            "stream": False,
            "max_completion_tokens": 8,
        }
        title = http.post("/chat/completions", json={"model": "trilby-demo", **asked, **own})
        assert title.status_code == 200 and title.json()["choices"][0]["message"]["content"]
        vectors = http.post("/embeddings", json={"model": "trilby-demo", "input": QUESTIONS[:2], "user": "ada"}).json()
        assert [len(each["embedding"]) for each in vectors["data"]] == [256, 256]


async def test_token_websocket(installation: Installation) -> None:
    """Tokens without SSE: accepted, deltas that add up, finished, done; and the socket serves the next request."""
    async with connect(installation.base.replace("http", "ws") + "/stream", proxy=None) as socket:
        for question in QUESTIONS[:2]:
            asked_at = time.monotonic()
            await socket.send(json.dumps(ask(question)))
            messages: list[dict[str, Any]] = []
            while not messages or messages[-1]["type"] not in ("done", "error"):
                messages.append(json.loads(await asyncio.wait_for(socket.recv(), 60)))
            assert messages[0]["type"] == "accepted" and messages[-1]["type"] == "done"
            text = "".join(message["text"] for message in messages if message["type"] == "delta")
            assert text == expected_text(question)
            waited_ms = (time.monotonic() - asked_at) * 1e3
            timings = next(message["timings"] for message in messages if message["type"] == "finished")
            assert timings["decode"].pop("rounds") > 0
            spent = [*timings["prompt"].values(), *timings["decode"].values()]
            assert len(spent) == 8 and min(spent) >= 0 and 0 < sum(spent) <= waited_ms


def test_trilby_chat(installation: Installation) -> None:
    """The terminal chat answers what is piped in, keeps the conversation, and says what is wrong."""
    import sys

    command = [sys.executable, "-m", "service.command", "chat", "--max-tokens", str(TOKENS)]
    result = subprocess.run(
        [*command, "--url", installation.base], input=f"{QUESTIONS[2]}\n", capture_output=True, text=True, timeout=60
    )
    assert result.stdout == expected_text(QUESTIONS[2]) + "\n", result.stderr
    nobody = subprocess.run(
        [*command, "--url", "http://127.0.0.1:9/v1"], input="hi\n", capture_output=True, text=True, timeout=60
    )
    assert nobody.returncode == 1 and "trilby serve" in nobody.stderr
