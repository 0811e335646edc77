"""Answers that are held to a form: as transformers with the same masks, drafted or not; and forms that are bad."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import AbstractAsyncContextManager
from functools import lru_cache, partial
from typing import Any

import msgspec
import numpy
import pytest
import torch
from checkpoints import DEMO
from clouds import cloud_here, device_hello, local_middle, remote_middle
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from oracle import oracle_model
from samples import named_sample
from served_chains import served
from transformers import AutoTokenizer, LogitsProcessor, LogitsProcessorList

from device_agent.answering import form_probe, grammar_masks, grammars
from device_agent.answering.answer import ServedChain, answer
from device_agent.answering.form import Form, grammar_of
from device_agent.answering.grammar_masks import GrammarMasks
from device_agent.answering.grammars import Grammars
from device_agent.answering.tokenizer import Tokenizer
from device_agent.sharing.compute import Compute
from device_agent.speculative.drafters import Drafters
from drafting.choosing import Chooser
from drafting.continuing import Continuing
from drafting.drafter import Guess
from split_model.checkpoint import Checkpoint
from split_model.sampling import SamplingParams
from split_model.submodel import Submodel
from wire.errors import Code, SessionFailed
from wire.messages import AnyMessage
from wire.request_messages import ChatTurn, Delta, Done, Finished, Generate, Grammar, Sampling

SPLIT, TOKENS = 2, 48
STORY = [ChatTurn("user", "Tell me of a fox as JSON.")]
PERSON = {
    "type": "object",
    "properties": {
        "full name": {"type": "string", "maxLength": 8},
        "age in years": {"type": "integer", "minimum": 0, "maximum": 150},
        "likes": {"type": "array", "items": {"enum": ["trees", "rivers", "the moon"]}, "maxItems": 2},
    },
    "required": ["full name", "age in years", "likes"],
    "additionalProperties": False,
}
FORMS = {
    "schema": Grammar("json", json.dumps(PERSON), "response_format"),
    "object": Grammar("json", '{"type":"object"}', "response_format"),
    "regex": Grammar("regex", r"[A-Z][a-z]+ (saw|found) (a|the) [a-z]{3,9}\.", "guided_regex"),
    "choice": Grammar("choice", '["yes, \\u00e9t\\u00e9", "no \\"way\\"", "yes, perhaps"]', "guided_choice"),
    "grammar": Grammar("grammar", 'root ::= item+ "."\nitem ::= "fox " | "key " | "a "', "guided_grammar"),
}


SLOW = {"object": pytest.mark.slow, "grammar": pytest.mark.slow}
"""Of several that are alike, those that take longest."""


@lru_cache
def tokens_known() -> tuple[Any, LLTokenizer]:
    """The demo model's tokenizer, and as llguidance has it."""
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    vocabulary = Checkpoint.open(DEMO).spec.vocab_size
    return tokenizer, LLTokenizer(
        tokenizer.backend_tokenizer.to_str(), n_vocab=vocabulary, eos_token=tokenizer.eos_token_id
    )


class Held(LogitsProcessor):  # type: ignore[misc]  # transformers has no types
    """The same masks for transformers: a parser from its beginning at each token."""

    def __init__(self, made: str, prompt: int) -> None:
        self._made = made
        self._prompt = prompt
        self._tokenizer = tokens_known()[1]

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        matcher = LLMatcher(self._tokenizer, self._made)
        assert matcher.consume_tokens(input_ids[0, self._prompt :].tolist())
        bits = numpy.unpackbits(numpy.frombuffer(matcher.compute_bitmask(), numpy.uint8), bitorder="little")
        return scores.masked_fill(torch.from_numpy(bits[: scores.shape[1]] == 0), -torch.inf)


def oracle_text(made: str, tokens: int, **how: Any) -> str:
    """What transformers says in a form, greedy unless told otherwise."""
    tokenizer, _ = tokens_known()
    turns = [{"role": turn.role, "content": turn.content} for turn in STORY]
    inputs = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    length = inputs["input_ids"].shape[1]
    processors = LogitsProcessorList([Held(made, length)])
    with torch.inference_mode():
        found = oracle_model(DEMO).generate(
            **inputs, max_new_tokens=tokens, do_sample=False, logits_processor=processors, **how
        )
    return str(tokenizer.decode(found[0, length:], skip_special_tokens=True, clean_up_tokenization_spaces=False))


def served_by(
    drafters: Drafters, middle: Submodel | None = None, tail: int = 0
) -> AbstractAsyncContextManager[ServedChain]:
    """The demo model; its middle layers here where nobody else has them."""
    compute = Compute()
    rest = middle if middle is not None else local_middle(DEMO, SPLIT, tail, compute)
    return served(rest, drafters, tail=tail, compute=compute)


async def ask(
    model: ServedChain, form: Grammar | None, draft: str = "none", **changed: Any
) -> tuple[list[str], list[str], Done]:
    """The text and reason of each choice, and the last message."""
    request = Generate(1, "id", "demo", STORY, max_tokens=TOKENS, sampling=Sampling(temperature=0.0), draft=draft)
    request = msgspec.structs.replace(request, grammar=form, **changed)
    said: list[AnyMessage] = []
    await answer(model, request, said.append)
    texts, reasons = [""] * request.n, [""] * request.n
    for message in said:
        if isinstance(message, Delta):
            texts[message.index] += message.text
        elif isinstance(message, Finished):
            reasons[message.index] = message.reason
    assert isinstance(said[-1], Done)
    return texts, reasons, said[-1]


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=SLOW.get(name, ()), id=name) for name, form in FORMS.items()]
)
async def test_it_is_what_transformers_says_with_the_same_masks(form: Grammar, drafters: Drafters) -> None:
    """Greedy, token for token: without drafts, with drafts of the text, and with drafts that are all accepted."""
    made = grammar_of(form.kind, form.text)
    wanted = oracle_text(made, TOKENS)
    async with served_by(drafters) as model:
        for draft in ("none", "lookup", "itself"):
            texts, _, _ = await ask(model, form, draft)
            assert texts == [wanted]
        short, reasons, _ = await ask(model, form, "itself", max_tokens=3)
        assert wanted.startswith(short[0]) and reasons == ["length"]


SAMPLED = Sampling(temperature=1.0, top_p=0.95, seed=7)
ASKED: dict[str, dict[str, Any]] = {
    "choices": {"n": 3, "sampling": SAMPLED},
    "log-probabilities and penalties": {
        "logprobs": 2,
        "sampling": Sampling(temperature=0.7, seed=3, repetition_penalty=1.2, frequency_penalty=0.3),
    },
    "stop": {"stop": ["age"]},
    "no end token": {"ignore_eos": True},
}


@pytest.mark.parametrize("asked", named_sample(ASKED, ["choices", "stop"]))
async def test_drafts_and_places_change_nothing(asked: dict[str, Any], drafters: Drafters) -> None:
    """Whatever else is asked, with the middle layers in a cloud and rows on their way while masks are looked up."""
    form = FORMS["schema"]
    async with (
        cloud_here(DEMO, SPLIT, 1) as cloud,
        remote_middle(cloud.url, device_hello(DEMO, SPLIT, 1)) as remote,
        served_by(drafters, remote, tail=1) as model,
    ):
        texts, reasons, done = await ask(model, form, **asked)
        assert done.accepted == 0
        for text, reason in zip(texts, reasons, strict=True):
            if not asked.get("stop"):
                assert reason == "stop"
                assert list(json.loads(text)) == PERSON["required"]
        for draft in ("lookup", "itself"):
            found = await ask(model, form, draft, **asked)
            assert found[:2] == (texts, reasons)
            assert found[2].accepted > 0, "what the form leaves no choice about is drafted"


async def test_a_conversation_goes_on_behind_a_form(drafters: Drafters) -> None:
    """What was kept of an answer in a form serves the next turn, which has another form, or none."""
    async with served_by(drafters) as model:
        for draft in ("none", "lookup"):
            [first], _, _ = await ask(model, FORMS["schema"], draft, tenant=draft)
            turns = [*STORY, ChatTurn("assistant", first), ChatTurn("user", "And another?")]
            for form in (FORMS["choice"], None):
                again = await ask(model, form, draft, prompt=turns, tenant=draft, max_tokens=12)
                alone = await ask(model, form, "none", prompt=turns, tenant="alone", max_tokens=12)
                assert again[:2] == alone[:2] and again[2].cached_tokens > 0


async def test_what_was_said_in_a_form_is_drafted_when_it_is_asked_for_again(drafters: Drafters) -> None:
    """More of the answer than at first, and the same answer; not for another tenant or salt, nor in another form."""

    async def asked(about: str, **changed: Any) -> tuple[str, int]:
        turns = [ChatTurn("user", f"Tell me of {about} as JSON.")]
        [text], _, done = await ask(model, FORMS["schema"], "lookup", prompt=turns, **changed)
        return text, done.accepted

    async with served_by(drafters) as model:
        first = await asked("a fox", tenant="a")
        other = await asked("a fox", tenant="b")
        salted = await asked("a fox", tenant="a", cache_salt="x")
        assert first == other == salted
        again, accepted = await asked("a fox", tenant="a")
        assert again == first[0] and accepted > first[1]
        here, alone = [await ask(model, FORMS["choice"], "lookup", tenant=tenant) for tenant in "ac"]
        assert here[0] == alone[0] and here[2].accepted == alone[2].accepted


BAD = {
    "a type": ("json", '{"properties":{"a":{"type":"objekt"}}}', ".properties.a"),
    "a pattern": ("json", '{"type":"array","items":{"anyOf":[{"type":"null"},{"pattern":"("}]}}', ".items.anyOf[1]"),
    "a keyword": ("json", '{"not":{"type":"string"}}', ""),
    "nothing": ("json", '{"$ref":"#"}', ""),
    "never": ("json", "false", ""),
    "elsewhere": ("json", '{"$ref":"http://127.0.0.1:9/schema.json"}', ""),
    "a file": ("json", '{"$ref":"file:///etc/hostname"}', ""),
    "a surrogate": ("json", '{"const":"\\ud800"}', ""),
    "too deep": ("json", '{"items":' * 500 + "{}" + "}" * 500, ""),
    "properties": ("json", json.dumps({"properties": {f"p{at}": {} for at in range(501)}}), ""),
    "patterns": ("json", json.dumps({"patternProperties": {f"^{at}$": {} for at in range(51)}}), ""),
    "allOf": ("json", json.dumps({"allOf": [{"pattern": f".*{at}.*"} for at in range(51)]}), ""),
    "an expression": ("regex", "a(b", ""),
    "a long one": ("regex", "a" * 10_000, ""),
    "nested": ("regex", "(" * 4000 + "a" + ")" * 4000, ""),
    "a grammar": ("grammar", "root ::= nowhere", ""),
    "nested grammar": ("grammar", "root ::= " + "(" * 2000 + '"a"' + ")" * 2000, ""),
    "no grammar": ("grammar", "{{{", ""),
}


async def test_a_form_that_cannot_be_compiled_is_refused_and_says_where(drafters: Drafters) -> None:
    """An invalid request, soon, with the part that is at fault; and the next request is answered."""
    async with served_by(drafters) as model:
        found = {}
        for name, (kind, text, _) in BAD.items():
            try:
                await ask(model, Grammar(kind, text, "form"), max_tokens=1)  # type: ignore[arg-type]
                found[name] = "answered"
            except SessionFailed as failure:
                found[name] = failure.code.value + str(failure.param)
        assert found == {name: f"{Code.INVALID_REQUEST.value}form{where}" for name, (_, _, where) in BAD.items()}
        texts, _, _ = await ask(model, FORMS["choice"])
        assert texts[0] in json.loads(FORMS["choice"].text)


EXPLODING = {
    "repeated": ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "long": ("regex", "a{100000}"),
    "backwards": ("regex", "(a|b)*a(a|b){500}"),
    "lists": ("json", '{"type":"array","minItems":100,"items":' * 6 + '{"type":"integer"}' + "}" * 6),
    "numbers": ("json", '{"type":"integer","multipleOf":7919,"minimum":3,"maximum":1000000000000}'),
    "references": (
        "json",
        json.dumps(
            {
                "$defs": {f"a{at}": {"anyOf": [{"$ref": f"#/$defs/a{at + 1}"}, {"type": "null"}]} for at in range(40)}
                | {"a40": {"$ref": "#/$defs/a0"}},
                "$ref": "#/$defs/a0",
            }
        ),
    ),
    "ambiguous": ("grammar", 'root ::= root root | "a" | "ab" | "b"'),
}


@pytest.mark.parametrize("form", EXPLODING.values(), ids=EXPLODING.keys())
async def test_what_explodes_ends_and_others_go_on(form: tuple[Any, str], drafters: Drafters) -> None:
    """It is answered or refused within bounds; meanwhile another tenant's answer comes, and the loop is never held."""
    async with served_by(drafters) as model:
        hard = asyncio.create_task(ask(model, Grammar(*form, "form"), max_tokens=12, tenant="a"))
        other = asyncio.create_task(ask(model, FORMS["choice"], tenant="b"))
        texts, _, _ = await asyncio.wait_for(other, 60)
        assert texts[0] in json.loads(FORMS["choice"].text)
        try:
            _, reasons, _ = await asyncio.wait_for(hard, 60)
            assert reasons[0] in ("stop", "length")
        except SessionFailed as failure:
            assert (failure.code, failure.param) == (Code.INVALID_REQUEST, "form")


async def test_a_form_that_takes_too_long_ends_the_answer(drafters: Drafters, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has a text in many ways takes longer with each token: its answer ends with an error that says so, before
    the time of all its tokens is spent; the next one is answered."""
    monkeypatch.setattr(grammars, "breaks_off", lambda *_: None)
    monkeypatch.setattr(grammar_masks, "FIRST_S", 0.02)
    monkeypatch.setattr(grammar_masks, "EACH_S", 0.0002)
    async with served_by(drafters) as model:
        many = Grammar("grammar", 'root ::= root root | "a" |', "guided_grammar")
        with pytest.raises(SessionFailed, match="takes too long") as failure:
            await ask(model, many, max_tokens=400, min_tokens=400)
        assert (failure.value.code, failure.value.param) == (Code.INVALID_REQUEST, "guided_grammar")
        monkeypatch.undo()
        texts, _, _ = await ask(model, FORMS["choice"])
        assert texts[0] in json.loads(FORMS["choice"].text)


def test_what_drafts_ask_is_counted_with_their_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer does not end because much was drafted for it: there is time for each text that is looked up."""
    ticks = iter(range(1 << 20))
    monkeypatch.setattr(grammar_masks, "thread_time", lambda: 1e-3 * next(ticks))
    monkeypatch.setattr(grammar_masks, "FIRST_S", 0.0)
    masks = masks_of(Grammar("grammar", "root ::= [a-z]+", "form"))
    for letter in "abcdefghijklmnopqrstuvwxyz":
        assert masks.barred(tokens_known()[1].tokenize_str(letter)) is not None


def limited() -> LLMatcher:
    """A form with texts that take more than it may, of which "noo" is none."""
    form = grammar_of("regex", "(no+|b(.*a.{60}){3}c)")
    return LLMatcher(tokens_known()[1], form, log_level=0, limits=LLParserLimits(step_lexer_fuel=5000))


def test_a_text_that_takes_too_much_costs_no_other_answer() -> None:
    """Neither one that was only a draft of it, nor an answer that is in the same form: llguidance's states are the
    same for all of them."""
    shared, known = limited(), tokens_known()[1]
    one, other = (GrammarMasks(shared, limited, 2048, "form", lambda look: look()) for _ in range(2))
    long, short = known.tokenize_str("baaaaaaaaaaa"), known.tokenize_str("noo")
    wanted = one.barred(short)
    behind = Continuing(Chooser(SamplingParams(), [1], 0, max_tokens=8, masks=one), "keyed")
    guess = Guess("test", torch.zeros(2048))
    for _ in range(2):
        with pytest.raises(SessionFailed, match="lexer"):
            one.barred(long)
        assert not behind.candidates(guess, long, 1) and not behind.forced(long)
        asked = other.barred(short)
        assert wanted is not None and asked is not None and not other.ended(short)
        one._known.clear()
        assert behind.candidates(guess, short[:1], 1) and behind.candidates(guess, short, 1)
        barred = one.barred(short)
        assert barred is not None and torch.equal(barred, wanted) and torch.equal(asked, wanted)
        other._known.clear()
        assert other.barred([*short, *long]) is None and other.barred(short) is not None


async def test_nothing_is_kept_of_a_choice_that_is_over(drafters: Drafters, monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are large, and others of the same request may go on for long: they go when theirs ends, and nobody looks
    ahead for it any more."""
    made = list[GrammarMasks]()

    def begun(*given: Any) -> GrammarMasks:
        made.append(GrammarMasks(*given))
        return made[-1]

    monkeypatch.setattr(grammars, "GrammarMasks", begun)
    async with served_by(drafters) as model:
        await ask(model, FORMS["choice"], n=3)
    assert len(made) == 3 and not any(each._known for each in made)
    with pytest.raises(SessionFailed, match="is over"):
        made[0].barred([])


def test_an_answer_that_ends_waits_for_nobody_who_looks_ahead() -> None:
    """Whoever has the parser then lets go of what it has found."""
    masks = masks_of(FORMS["choice"])
    with masks._parser([]):
        masks._known[1, 2] = grammar_masks._After(None)
        masks.close()
        assert masks._known
    assert not masks._known


async def test_a_form_that_has_come_to_a_limit_is_compiled_anew(drafters: Drafters) -> None:
    """A request with many tokens is refused, for what was tried of it; a short one in the same form is answered."""
    asked = Grammar("grammar", 'root ::= root root | "a" |', "guided")
    async with served_by(drafters) as model:
        wanted = await ask(model, asked, max_tokens=2)
        for _ in range(2):
            with pytest.raises(SessionFailed, match="break off"):
                await ask(model, asked, max_tokens=400)
            assert await ask(model, asked, max_tokens=2) == wanted


BREAK_OFF = {
    "a text in many ways": ("grammar", 'root ::= root root | "a" |'),
    "a part of one": ("grammar", 'root ::= "x" root | many\nmany ::= many many | "a" | "b"'),
    "many states": ("regex", "((a{1,1000}){1,1000}){1,1000}"),
    "sums in any order": ("grammar", 'root ::= root "+" root | root "*" root | [0-9]'),
}


@pytest.mark.parametrize("form", BREAK_OFF.values(), ids=BREAK_OFF.keys())
async def test_a_form_that_would_break_off_is_refused_at_the_door(form: tuple[Any, str], drafters: Drafters) -> None:
    """Before anything is said, with the member that has it, where the answer may become so long; a short one is told,
    and compiling it once does not let a long one in."""
    async with served_by(drafters) as model:
        asked = Grammar(*form, "guided")
        for _ in range(2):
            if asked.kind == "grammar":
                await ask(model, asked, max_tokens=2)
            with pytest.raises(SessionFailed, match="break off") as failure:
                await ask(model, asked, max_tokens=400)
            assert (failure.value.code, failure.value.param) == (Code.INVALID_REQUEST, "guided")


async def test_what_can_be_held_is_let_in(drafters: Drafters) -> None:
    """For answers of any length: grammars that have each text in one way, of many words too, and expressions."""
    async with served_by(drafters) as model:
        assert model.grammars is not None
        for good in (*GOOD_GRAMMARS, FORMS["regex"]):
            masks = await model.grammars.compiled(Form.of(good), "", 100_000)
            assert masks().barred([]) is not None


JSON_GRAMMAR = r"""
root ::= value
value ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" (pair ("," pair)*)? "}"
pair ::= string ":" value
array ::= "[" (value ("," value)*)? "]"
string ::= "\"" [a-z ]* "\""
number ::= "-"? [0-9]+
"""
GOOD_GRAMMARS = [
    Grammar("grammar", JSON_GRAMMAR, "g"),
    Grammar("grammar", 'root ::= sum\nsum ::= part (("+" | "-") part)*\npart ::= [0-9]+ | "(" sum ")"', "g"),
    Grammar("grammar", "root ::= " + " | ".join(f'"word{at}" root' for at in range(200)) + ' | "."', "g"),
]


def test_no_mask_holds_others_up() -> None:
    """Of a grammar that has each text in many ways, to where it breaks off: neither reading a token nor looking up what
    may follow takes long, and all of it no more than an answer may take."""
    matcher = LLMatcher(tokens_known()[1], grammar_of("grammar", 'root ::= root root | "a" |'), limits=grammars.WRITTEN)
    a, times = tokens_known()[1].tokenize_str("a")[0], list[float]()
    while not matcher.is_error() and len(times) < 2000:
        began = time.thread_time()
        matcher.consume_token(a)
        matcher.compute_bitmask()
        times.append(time.thread_time() - began)
    assert matcher.is_error() and max(times) < 0.1 and sum(times) < grammar_masks.FIRST_S


def test_what_is_tried_leaves_the_form_as_it_is_and_takes_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form begins where it did; an end is never tried; it gives up where time is up."""
    tokenizer, tokens = tokens_known()
    form = LLMatcher(tokens, grammar_of("grammar", 'root ::= "a"* "b"'), limits=grammars.WRITTEN)
    before = form.compute_bitmask()
    assert form_probe.breaks_off(form, [tokenizer.eos_token_id]) is None and form.compute_bitmask() == before
    many = LLMatcher(tokens, grammar_of("grammar", 'root ::= root root | "a" |'), limits=grammars.WRITTEN)
    assert form_probe.breaks_off(many, [tokenizer.eos_token_id], 4) is None
    monkeypatch.setattr(form_probe, "PROBE_S", 0.0)
    assert form_probe.breaks_off(many, [tokenizer.eos_token_id]) is None


async def test_compiled_forms_are_kept_by_tenant_and_bounded(
    drafters: Drafters, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked again a form is not compiled again; another tenant's is its own; the oldest goes first."""
    monkeypatch.setattr("device_agent.answering.grammars.MOST_KEPT", 2)
    async with served_by(drafters) as model:
        grammars = model.grammars
        assert grammars is not None
        for tenant, name in (("a", "regex"), ("a", "regex"), ("b", "regex"), ("b", "choice")):
            await grammars.compiled(Form.of(FORMS[name]), tenant)
        kept = [tenant for tenant, _ in grammars._kept]
        assert kept == ["b", "b"]


def test_a_tokenizer_that_cannot_be_used_is_seen_at_once() -> None:
    """Without an end token nothing can be held to a form."""
    tokenizer = Tokenizer.load(DEMO, ())
    assert Grammars.of(tokenizer, 2048) is None


def masks_of(form: Grammar) -> GrammarMasks:
    """Of a form for the demo model's tokens, looked up when they are asked for."""
    compiled = partial(LLMatcher, tokens_known()[1], grammar_of(form.kind, form.text))
    return GrammarMasks(compiled(), compiled, 2048, "form", lambda look: None)


@settings(max_examples=15)
@given(st.randoms(use_true_random=False))
def test_masks_depend_on_nothing_but_the_text(random: Any) -> None:
    """Asked in any order, forwards, back and aside: as a parser from its beginning says it; and what is said to be
    forced may follow."""
    form = FORMS["schema"]
    asked, texts = masks_of(form), list[list[int]]([[]])
    for _ in range(16):
        text = list(random.choice(texts))
        barred, fresh = asked.barred(text), masks_of(form)
        again = fresh.barred(text)
        assert (barred is None) == (again is None) and asked.ended(text) == fresh.ended(text)
        if barred is None or again is None:
            continue
        assert torch.equal(barred, again)
        forced = list(asked.forced(text))
        assert forced == list(fresh.forced(text))
        for at, token in enumerate(forced):
            held = fresh.barred([*text, *forced[:at]])
            assert held is None or not held[token]
        free = (~barred).nonzero().squeeze(1).tolist()
        texts.append([*text, *(forced or [random.choice(free)])])
