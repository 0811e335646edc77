"""What a request says of its tokens and its end, beside transformers, drafted or not; and what it is refused for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from checkpoints import DEMO
from oracle import oracle_model, oracle_tokens
from served_chains import served
from transformers import AutoTokenizer

from device_agent.answering.answer import ServedChain, answer
from device_agent.answering.stops import StopScanner
from device_agent.answering.tokenizer import Tokenizer
from device_agent.speculative.drafters import Drafters
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import ChatTurn, Delta, Done, Finished, Generate, Rendering, Sampling

STORY = [ChatTurn("user", "Tell me a story about a fox who loses a key.")]
ENOUGH = 32


async def said_to(model: ServedChain, **asked: Any) -> list[AnyMessage]:
    """All that an agent says to a greedy request, unless it asks for something else."""
    request = Generate(1, "id", "demo", STORY, max_tokens=ENOUGH, logprobs=0, sampling=Sampling(temperature=0.0))
    said: list[AnyMessage] = []
    await answer(model, msgspec.structs.replace(request, **asked), said.append)
    return said


def text_of(said: list[AnyMessage]) -> str:
    return "".join(each.text for each in said if isinstance(each, Delta))


def tokens_of(said: list[AnyMessage]) -> list[int]:
    """The tokens of an answer but for one that ends it."""
    return [each.chosen.id for delta in said if isinstance(delta, Delta) for each in delta.logprobs or []]


def occurs(ids: Sequence[int], text: list[int]) -> bool:
    """Whether these tokens stand in a text, one behind the other."""
    return any(text[at : at + len(ids)] == list(ids) for at in range(len(text)))


def reason_of(said: list[AnyMessage]) -> str:
    [reason] = [each.reason for each in said if isinstance(each, Finished)]
    return reason


def by_transformers(ids: list[int], ends: list[int], **asked: Any) -> list[int]:
    """The greedy tokens of ``generate`` with its own processors, fp32."""
    with torch.inference_mode():
        output = oracle_model(DEMO).generate(
            torch.tensor([ids]),
            attention_mask=torch.ones(1, len(ids), dtype=torch.long),
            max_new_tokens=ENOUGH,
            do_sample=False,
            eos_token_id=ends,
            pad_token_id=0,
            **asked,
        )
    return list(output[0, len(ids) :].tolist())


async def test_sampling_fields_are_those_of_transformers(drafters: Drafters) -> None:
    """min_tokens, bad words, allowed ids and a repetition penalty, together, drafted or not."""
    async with served(None, drafters) as model:
        ids = model.tokenizer.chat(STORY)
        said = await said_to(model, ignore_eos=True)
        plain, spell = tokens_of(said), model.tokenizer.spellings
        there = [(word, len(ids)) for word in text_of(said).split() for ids in spell(word) if occurs(ids, plain)]
        short = next(word for word, length in there if length == 1)
        long = next(word for word, length in there if length > 1)
        common = max(set(plain), key=plain.count)
        few = sorted({*plain[: ENOUGH // 2], *model.tokenizer.end_ids})
        others = [each for each in range(model.chain.parts.spec.vocab_size) if each not in few]
        asked: list[tuple[dict[str, Any], dict[str, Any]]] = [
            (
                {"stop_token_ids": [common], "min_tokens": 20, "bad_words": [short, long]},
                {"ends": [common], "min_new_tokens": 20, "bad_words_ids": [*map(list, (*spell(short), *spell(long)))]},
            ),
            (
                {
                    "allowed_token_ids": few,
                    "bad_words": [long],
                    "min_tokens": 15,
                    "sampling": Sampling(temperature=0.0, repetition_penalty=1.2),
                },
                {
                    "suppress_tokens": others,
                    "bad_words_ids": [*map(list, spell(long))],
                    "min_new_tokens": 15,
                    "repetition_penalty": 1.2,
                },
            ),
        ]
        for ours, theirs in asked:
            ends = sorted({*model.tokenizer.end_ids, *theirs.pop("ends", [])})
            truth = by_transformers(ids, ends, **theirs)
            for draft in ("none", "itself"):
                said = await said_to(model, draft=draft, **ours)
                found, done = tokens_of(said), said[-1]
                assert isinstance(done, Done) and done.completion_tokens == len(truth)
                assert found == (truth[:-1] if reason_of(said) == "stop" else truth) != plain
                assert draft != "itself" or done.accepted > 0


async def test_bans_of_a_sampled_answer_are_the_same_when_drafted(drafters: Drafters) -> None:
    """The same text of a seed; and nothing in it is banned."""
    sampling = Sampling(temperature=0.9, seed=3)
    async with served(None, drafters) as model:
        banned = tokens_of(await said_to(model, sampling=sampling))[3]
        word = model.tokenizer.piece(banned)[0]
        found = []
        for draft in ("none", "lookup", "itself"):
            said = await said_to(model, draft=draft, sampling=sampling, bad_words=[word], min_tokens=ENOUGH)
            assert banned not in tokens_of(said) and len(tokens_of(said)) == ENOUGH
            found.append(text_of(said))
        assert len(set(found)) == 1


async def test_how_an_answer_ends(drafters: Drafters) -> None:
    """A stop text is shown where that is asked, a stop token's too; neither ends the answer before ``min_tokens``."""
    async with served(None, drafters) as model:
        plain = await said_to(model, ignore_eos=True)
        text, tokens = text_of(plain), tokens_of(plain)
        stop = text[10:14]
        first, second = text.index(stop), text.index(stop, text.index(stop) + 1) if text.count(stop) > 1 else -1
        assert text_of(await said_to(model, stop=[stop])) == text[:first]
        shown = await said_to(model, stop=[stop], include_stop_str_in_output=True)
        assert (text_of(shown), reason_of(shown)) == (text[:first] + stop, "stop")
        late = await said_to(model, stop=[stop], min_tokens=20, ignore_eos=True)
        assert text_of(late) == (text[:second] if second >= 0 else text)
        ended = await said_to(model, stop_token_ids=[tokens[9]])
        at = tokens.index(tokens[9])
        assert text_of(ended) == model.tokenizer.decode(tokens[:at])
        shown = await said_to(model, stop_token_ids=[tokens[9]], include_stop_str_in_output=True)
        assert (text_of(shown), reason_of(shown)) == (model.tokenizer.decode(tokens[: at + 1]), "stop")


def test_a_stop_text_that_began_before_it_counts() -> None:
    """It ends the text once it is complete where it counts; what was complete before does not."""
    scanner = StopScanner(["aba"])
    assert [scanner.feed("xaba", looks=False), scanner.feed("ba")] == [("xab", False), ("", True)]
    shown = StopScanner(["ab", "abc"], shows=True)
    assert shown.feed("xxabcd") == ("xxab", True)


@pytest.mark.parametrize(
    ("asked", "param"),
    [
        ({"stop_token_ids": [10**6]}, "stop_token_ids"),
        ({"allowed_token_ids": [3, 10**6]}, "allowed_token_ids"),
        ({"bad_words": ["fox", "  "]}, "bad_words[1]"),
        ({"sampling": Sampling(logit_bias={10**6: 1.0})}, "logit_bias"),
        ({"allowed_token_ids": [300], "bad_words": ["WORD"]}, "allowed_token_ids"),
    ],
)
async def test_what_cannot_be_is_refused_and_nothing_is_left_open(
    asked: dict[str, Any], param: str, drafters: Drafters
) -> None:
    """By a typed error that names the field; the next request is served."""
    async with served(None, drafters, permits=1) as model:
        if asked.get("bad_words") == ["WORD"]:
            asked = asked | {"bad_words": [model.tokenizer.piece(300)[0]]}
        with pytest.raises(SessionFailed) as caught:
            await said_to(model, **asked)
        assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, param)
        assert len(tokens_of(await said_to(model, max_tokens=3))) == 3


async def test_nothing_is_kept_across_salts(drafters: Drafters) -> None:
    """A conversation is gone on with by requests of its own salt alone; the answers are the same."""
    async with served(None, drafters) as model:
        cached = []
        for salt in ("", "", "a", "b", "a"):
            said = await said_to(model, cache_salt=salt, max_tokens=8)
            assert isinstance(said[-1], Done)
            cached.append(said[-1].cached_tokens > 0)
        assert cached == [False, True, False, False, True]


async def test_text_that_is_held_is_counted_with_the_tokens_it_is_of(drafters: Drafters) -> None:
    """Where a stop text might begin in the middle of a token: with the offsets that deltas say, each token begins where
    its text does."""
    async with served(None, drafters) as model:
        wanted = await said_to(model, max_tokens=40, ignore_eos=True)
        text = "".join(each.text for each in wanted if isinstance(each, Delta))
        stops = sorted({letter + "§" for letter in text})
        said = await said_to(model, max_tokens=40, ignore_eos=True, stop=stops, logprobs=0)
        told, held, shown = 0, 0, ""
        for delta in (each for each in said if isinstance(each, Delta)):
            begins = len(shown) + delta.held
            shown, held = shown + delta.text, held + delta.held
            for each in delta.logprobs or ():
                assert begins == told
                told += len(each.chosen.text)
                begins += len(each.chosen.text)
        assert shown == text and held > 10


async def test_a_thought_that_is_gone_on_with_is_one(drafters: Drafters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until its tag comes, which ends it; behind a thought that is over the answer is text."""
    async with served(None, drafters) as model:
        monkeypatch.setattr(model.tokenizer, "dialect", replace(model.tokenizer.dialect, thinks=True))
        on = Rendering(continue_final_message=True, add_generation_prompt=False)
        for begun, open_yet in (("<think>\nA fox is", True), ("<think>\nHm.\n</think>\n\nA fox is", False)):
            turns = [*STORY, ChatTurn("assistant", begun)]
            said = await said_to(model, prompt=turns, rendering=on, max_tokens=8, ignore_eos=True, thoughts=True)
            deltas = [each for each in said if isinstance(each, Delta)]
            assert any(each.reasoning for each in deltas) is open_yet
            assert any(each.text for each in deltas) is not open_yet


FOX = [*STORY, ChatTurn("assistant", "Once upon a time there was a fox named")]
RENDERED: list[dict[str, Any]] = [
    {},
    {"add_generation_prompt": False},
    {"continue_final_message": True, "add_generation_prompt": False},
    {"chat_template_kwargs": {"unknown": {"deep": [1, None, "x"]}}},
]


@pytest.mark.parametrize("asked", RENDERED, ids=str)
async def test_conversations_become_text_as_with_transformers(asked: dict[str, Any], drafters: Drafters) -> None:
    """The ids of the prompt, and so the answer: it goes on with the last message where that is asked."""
    async with served(None, drafters) as model:
        turns = [{"role": turn.role, "content": turn.content} for turn in FOX]
        told = {"add_generation_prompt": True, **asked, **asked.get("chat_template_kwargs", {})}
        told.pop("chat_template_kwargs", None)
        ids = AutoTokenizer.from_pretrained(DEMO).apply_chat_template(turns, return_dict=False, **told)
        assert model.tokenizer.chat(FOX, Rendering(**asked)) == ids
        said = await said_to(model, prompt=FOX, rendering=Rendering(**asked), max_tokens=12, ignore_eos=True)
        assert tokens_of(said) == oracle_tokens(DEMO, tuple(ids), 12)


@pytest.mark.parametrize(
    ("template", "told", "param"),
    [
        ("{{ messages[0].content }}{% if thinks %} hm{% endif %}", {"thinks": True}, None),
        ("{{ messages[0].content }}", {"chat_template": "{{ 1 }}"}, "chat_template_kwargs"),
        ("{{ messages[0].content }}", {"tokenize": True}, "chat_template_kwargs"),
        ("{{ messages[0].content }}", {"tools": []}, "chat_template_kwargs"),
        ("{% for each in range(count) %}x{% endfor %}", {"count": 10**9}, "messages"),
        ("{{ 1 / count }}", {"count": 0}, "messages"),
        ("{{ count + 'x' }}", {"count": 0}, "messages"),
        ("{{ raise_exception('no') }}", {}, "messages"),
        ("{{ ''.__class__.__mro__ }}", {}, "messages"),
    ],
)
def test_what_a_template_is_told(template: str, told: dict[str, Any], param: str | None) -> None:
    """Whatever is no way to run it; one that fails is a typed error, never another."""
    tokenizer = Tokenizer.load(DEMO, ())
    tokenizer._tokenizer.chat_template = template
    if param is None:
        assert tokenizer.render(FOX, Rendering(chat_template_kwargs=told)) == FOX[0].content + " hm"
        return
    with pytest.raises(SessionFailed) as caught:
        tokenizer.render(FOX, Rendering(chat_template_kwargs=told))
    assert (caught.value.code, caught.value.param) == (Code.INVALID_REQUEST, param)
