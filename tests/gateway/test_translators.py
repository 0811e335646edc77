"""T5 through /v1/completions: the prompt is read, and what is written of it is what transformers writes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import transformers
from agents_here import Served
from reading_models import text_model, translated, translator
from tiny_models import TRANSLATOR_NAMES

from device_agent.build import build
from device_agent.config import DeviceConfig

PROMPTS = ["the quick brown fox", "42 dogs"]


async def completion(http: httpx.AsyncClient, **members: Any) -> dict[str, Any]:
    answer = await http.post("/v1/completions", json={"model": "m", "temperature": 0, **members})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize("name", TRANSLATOR_NAMES)
async def test_what_is_written_is_what_transformers_writes(tmp_path: Path, served: Served, name: str) -> None:
    """64 greedy tokens, of two prompts and two choices each; prompt tokens are counted; a stream says the same."""
    folder = translator(name, tmp_path, n_positions=128)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    async with served(folder) as http:
        found = await completion(http, prompt=PROMPTS, max_tokens=64, n=2)
        wanted = [translated(folder, prompt, 64) for prompt in PROMPTS for _ in range(2)]
        assert [each["text"] for each in found["choices"]] == wanted and len(set(wanted)) == 2
        tokens = sum(len(tokenizer(prompt)["input_ids"]) for prompt in PROMPTS)
        assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (tokens, 4 * 64)
        body = {"model": "m", "temperature": 0, "prompt": PROMPTS[0], "max_tokens": 64, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as answer:
            lines = [line async for line in answer.aiter_lines() if line.startswith("data: {")]
        streamed = [json.loads(line.removeprefix("data: "))["choices"][0]["text"] for line in lines]
        assert len(streamed) > 30 and "".join(streamed) == wanted[0]


async def test_sampling_seeds_stops_and_logprobs_are_as_for_other_models(tmp_path: Path, served: Served) -> None:
    """One seed one text, another another; a stop text ends it; each token has its log-probability, but the prompt's,
    which it does not say; ids are a prompt."""
    folder = translator("t5", tmp_path)
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
    async with served(folder) as http:
        drawn = [
            (await completion(http, prompt="fox", max_tokens=32, temperature=1, seed=seed))["choices"][0]["text"]
            for seed in (1, 1, 2)
        ]
        assert drawn[0] == drawn[1] != drawn[2]
        [whole] = (await completion(http, prompt="fox", max_tokens=32, logprobs=1))["choices"]
        assert len(whole["logprobs"]["token_logprobs"]) == 32 and max(whole["logprobs"]["token_logprobs"]) <= 0
        body = {"model": "m", "prompt": "fox", "prompt_logprobs": 1}
        refused = (await http.post("/v1/completions", json=body)).json()["error"]
        assert (refused["param"], refused["code"]) == ("prompt_logprobs", "unsupported_value")
        stop = whole["text"][6:9]
        [ended] = (await completion(http, prompt="fox", max_tokens=32, stop=stop))["choices"]
        assert (ended["text"], ended["finish_reason"]) == (whole["text"][: whole["text"].index(stop)], "stop")
        by_ids = await completion(http, prompt=tokenizer("fox")["input_ids"], max_tokens=32)
        assert by_ids["choices"][0]["text"] == whole["text"]


async def test_prompt_and_answer_have_all_positions_each(tmp_path: Path, served: Served) -> None:
    """A prompt of as many as there are but one, and an answer as long; one token more is refused. It does not chat."""
    async with served(translator("t5", tmp_path, n_positions=40)) as http:
        found = await completion(http, prompt=[7] * 39, max_tokens=100)
        assert found["usage"]["completion_tokens"] == 39
        for path, body, why in (
            ("completions", {"prompt": [7] * 40}, "of which 39 fit"),
            ("completions", {"prompt": "a " * 50}, "the prompt has 52: shorten it"),
            ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}, "use /v1/completions"),
            ("embeddings", {"input": "Hi"}, "it serves /v1/completions"),
        ):
            answer = await http.post(f"/v1/{path}", json={"model": "m", **body})
            assert answer.status_code == 400 and why in answer.json()["error"]["message"], answer.text


@pytest.mark.parametrize(
    "settings",
    [{"mode": "hat"}, {"mode": "ushape"}, {"mode": "local", "draft": ("lookup",)}, {"mode": "local", "t_max": 1.0}],
)
def test_where_it_cannot_run_it_says_so(tmp_path: Path, settings: dict[str, Any]) -> None:
    """What to do instead; the same for a model that reads."""
    for name in ("t5", "bert"):
        folder = text_model(name, tmp_path / name)
        with pytest.raises(ValueError, match=r"--mode local|leave --draft out|--t-max"):
            build(DeviceConfig(model=str(folder), **settings))
