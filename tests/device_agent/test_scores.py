"""The scores of a prompt's own tokens are transformers', wherever the layers are and whatever is drafted or kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import DEMO
from clouds import cloud_here, device_hello, remote_middle, rows_in
from oracle import prompt_for
from scores import check_scores, said_to, scored_in
from served_chains import expected, served

from device_agent.answering.prompt import read_prompt
from device_agent.answering.tokenizer import Tokenizer
from device_agent.build import build
from device_agent.config import DeviceConfig
from device_agent.speculative import scoring
from device_agent.speculative.drafters import Drafters
from split_model.checkpoint import Checkpoint
from split_model.slices import slice_bytes, whole
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import Delta, Done, Finished, Generate, Sampling, Scored

PROMPT = prompt_for(DEMO, 300)


def tokens_of(said: list[Any], choice: int = 0) -> list[int]:
    """The tokens of an answer."""
    deltas = [each for each in said if isinstance(each, Delta) and each.index == choice]
    return [each.chosen.id for delta in deltas for each in delta.logprobs or []]


@pytest.mark.parametrize(("where", "tail"), [("here", 0), ("cloud", 0), ("cloud", 2)])
async def test_scores_are_transformers(where: str, tail: int, drafters: Drafters) -> None:
    """A prompt of several chunks, scored in several pieces, with layers behind the cloud too; every choice is told,
    and goes on as it would without scores, drafted or not."""
    async with (
        cloud_here(DEMO, 2, tail) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, tail)) as remote,
        served(remote if where == "cloud" else None, drafters, tail=tail) as model,
    ):
        for draft in ("none", "itself"):
            said = await said_to(model, PROMPT, n=2, max_tokens=8, draft=draft, ignore_eos=True)
            assert len([each for each in said if isinstance(each, Scored) and each.index == 0]) > 2
            for choice in range(2):
                check_scores(scored_in(said, choice), DEMO, PROMPT)
                text = b"".join(model.tokenizer.piece(token)[1] for token in tokens_of(said, choice))
                assert text == expected(model, PROMPT, 8)


async def test_nothing_is_taken_from_a_conversation_or_left_of_it(
    drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of rows that are kept there is nothing to score: all rows run anew, once, and the conversation stays kept."""
    async with (
        cloud_here(DEMO, 2, 0) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters) as model,
    ):
        await said_to(model, PROMPT[:290], prompt_logprobs=None, echo=False)
        assert len(model.conversations) == 1
        rows = rows_in(cloud, monkeypatch)
        said = await said_to(model, PROMPT, max_tokens=0)
        check_scores(scored_in(said), DEMO, PROMPT)
        assert sum(rows) == len(PROMPT) and len(model.conversations) == 1
        done = said[-1]
        assert isinstance(done, Done) and (done.cached_tokens, done.completion_tokens) == (0, 0)
        said = await said_to(model, PROMPT, prompt_logprobs=None, echo=False)
        assert isinstance(said[-1], Done) and said[-1].cached_tokens == 290


async def test_a_cloud_that_dies_costs_no_score(drafters: Drafters) -> None:
    """A session that is lost in the middle of a prompt is replayed, and its scores are told once and are right."""
    async with (
        cloud_here(DEMO, 2, 0) as first,
        cloud_here(DEMO, 2, 0) as second,
        remote_middle([first.url, second.url], device_hello(DEMO, 2, 0)) as remote,
        served(remote, drafters) as model,
    ):
        link, cut = remote.clouds.links[0], list[AnyMessage]()

        def heard(message: AnyMessage) -> None:
            if isinstance(message, Scored) and len(message.tokens) > 1 and not cut:
                cut.append(message)
                link.url = "ws://127.0.0.1:9/device"
                link.stream._transport._websocket.transport.abort()  # type: ignore[union-attr]

        check_scores(scored_in(await said_to(model, PROMPT, heard)), DEMO, PROMPT)
        assert cut


async def test_no_prompt_s_logits_are_there_at_once(drafters: Drafters, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the prompt is, and though it goes as one chunk: what is scored at once is bounded by its logits."""
    vocabulary, sizes = Checkpoint.open(DEMO).spec.vocab_size, []
    scored = scoring.scored

    def watched(head: Any, deep: Any, tokens: Any, top: int) -> Any:
        sizes.append(len(deep))
        return scored(head, deep, tokens, top)

    monkeypatch.setattr(scoring, "MAX_LOGITS", 10 * vocabulary)
    monkeypatch.setattr(scoring, "scored", watched)
    async with served(None, drafters) as model:
        model.chain.chunk = 1024
        check_scores(scored_in(await said_to(model, PROMPT)), DEMO, PROMPT)
    assert max(sizes) == 10 and sum(sizes) == len(PROMPT) - 1


@pytest.mark.parametrize("length", [1, 2, 1024])
async def test_prompts_of_any_length(length: int, drafters: Drafters) -> None:
    """One token, which has no score, and as many as the context has, where nothing is to follow."""
    ids = prompt_for(DEMO, length)
    async with served(None, drafters) as model:
        said = await said_to(model, ids, max_tokens=0)
        check_scores(scored_in(said), DEMO, ids)
        assert [each.reason for each in said if isinstance(each, Finished)] == ["length"]
        assert not tokens_of(said)
        if length == 1024:
            with pytest.raises(SessionFailed) as refused:
                await said_to(model, ids, max_tokens=1)
            assert refused.value.code is Code.CONTEXT_LENGTH_EXCEEDED


async def test_rows_that_are_no_numbers_are_a_failure_of_their_own(
    drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its code, and the next request is served."""
    async with served(None, drafters) as model:
        final = model.chain.parts.head.forward
        with monkeypatch.context() as patched:
            patched.setattr(model.chain.parts.head, "forward", lambda rows: final(rows) * float("nan"))
            with pytest.raises(SessionFailed, match="no numbers") as failed:
                await said_to(model, PROMPT)
        assert failed.value.code is Code.NOT_FINITE
        check_scores(scored_in(await said_to(model, PROMPT)), DEMO, PROMPT)


async def test_an_end_token_is_told_where_a_prompt_is_scored(drafters: Drafters) -> None:
    """Who takes the answer's tokens off by counting finds as many as were generated, though the end has no text."""
    [end] = Checkpoint.open(DEMO).spec.eos_token_ids[:1]
    async with served(None, drafters) as model:
        for scores, told in ((0, [end]), (None, [])):
            sampling = Sampling(temperature=0.0, logit_bias={end: 100.0})
            assert tokens_of(await said_to(model, PROMPT[:20], prompt_logprobs=scores, sampling=sampling)) == told


async def test_weights_that_are_streamed_score_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With less memory than the weights take."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    spec = Checkpoint.open(DEMO).spec
    budget = slice_bytes(spec, whole(spec), torch.float32) * 2 // 3
    device = build(DeviceConfig(model=str(DEMO), mode="local", memory=f"{budget / 1000:.3f}kB", max_model_len=64))
    try:
        assert device.loader is not None and device.loader.units
        check_scores(scored_in(await said_to(device.writer, PROMPT[:60])), DEMO, PROMPT[:60])
    finally:
        device.stop()


def test_a_model_that_does_not_say_its_prompt_has_no_scores_of_it() -> None:
    """It is refused by the name of what was asked."""
    tokenizer = Tokenizer.load(DEMO, [])
    for echo, param in ((True, "echo"), (False, "prompt_logprobs")):
        asked = Generate(1, "id", "t5", "Hi", echo=echo, logprobs=1, prompt_logprobs=1)
        with pytest.raises(SessionFailed, match="reads its prompt") as refused:
            read_prompt(asked, tokenizer, 64, 16, 2048, start=0)
        assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, param)


async def test_a_text_that_is_not_echoed_is_not_told(drafters: Drafters) -> None:
    """Its scores are told, and no piece of it comes with them."""
    async with served(None, drafters) as model:
        said = await said_to(model, (), prompt=TEXTS[0], prompt_ids=None, echo=False)
        check_scores(scored_in(said), DEMO, tuple(model.tokenizer.text(TEXTS[0])))
        assert not any(each.text for each in said if isinstance(each, Scored))


TEXTS = ("Once there was a small boat. ", "naïve café, 日本 🦊\n\n  two", " x")


@pytest.mark.parametrize("text", TEXTS)
async def test_text_comes_with_its_tokens(text: str, drafters: Drafters) -> None:
    """The pieces of an echoed prompt add up to it, and each token's text begins at its offset; the same for ids."""
    async with served(None, drafters) as model:
        ids = tuple(model.tokenizer.text(text))
        prompts: tuple[dict[str, Any], ...] = ({"prompt": text, "prompt_ids": None}, {})
        for prompt in prompts:
            said = await said_to(model, ids, max_tokens=0, **prompt)
            told = scored_in(said)
            assert "".join(each.text for each in said if isinstance(each, Scored)) == text
            assert [each.token.id for each in told] == list(ids)
            ends = [each.offset for each in told[1:]] + [len(text)]
            for token, end in zip(told, ends, strict=True):
                whole = token.token.raw.decode("utf-8", "ignore")
                assert token.offset <= end and (token.token.text != whole or text[token.offset : end] == whole)
