"""From tokens to text: characters whole, stop strings never shown, prompts refused before they cost anything."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import transformers
from checkpoints import DATA, DEMO
from hypothesis import given, settings
from hypothesis import strategies as st

from device_agent.answering.detokenizer import MAX_HELD_TOKENS, Detokenizer
from device_agent.answering.prompt import read_prompt
from device_agent.answering.stops import StopScanner
from device_agent.answering.tokenizer import AS_USUAL, CUT_TOKENS, SLICE, Tokenizer
from device_agent.cloud.chunks import chunk_sizes
from split_model.errors import BadCheckpoint
from wire.errors import Code, SessionFailed
from wire.request_messages import ChatTurn, Generate, Rendering


def decode_bytes(ids: Sequence[int]) -> str:
    """A tokenizer with one token for each byte: every character of more than one byte is split."""
    return bytes(ids).decode("utf-8", "replace")


@given(st.text(max_size=40), st.text(max_size=10))
def test_characters_are_never_split(text: str, before: str) -> None:
    """Each piece shown is whole characters, and together they are the text."""
    detokenizer = Detokenizer(decode_bytes, before.encode())
    pieces = [detokenizer.feed(byte) for byte in text.encode()]
    assert "".join(pieces) + detokenizer.flush() == text
    assert all("\ufffd" not in piece for piece in pieces) or "\ufffd" in text


@given(st.lists(st.integers(0, 255), max_size=80))
def test_bytes_that_are_no_text_come_out_too(ids: list[int]) -> None:
    """Invalid bytes are shown as replacement characters, at the latest when enough tokens wait."""
    detokenizer = Detokenizer(decode_bytes)
    shown, waited = "", 0
    for each in ids:
        piece = detokenizer.feed(each)
        waited = 0 if piece else waited + 1
        assert waited <= MAX_HELD_TOKENS
        shown += piece
    shown += detokenizer.flush()
    assert bool(shown) == bool(ids)


def tokenizers() -> list[Path]:
    """A byte-level and a sentencepiece tokenizer, where they are at hand, and our own."""
    return [DEMO, DATA / "tokenizers" / "llama2", DATA / "tokenizers" / "qwen", DATA / "models" / "stories-260k"]


@pytest.mark.parametrize("path", tokenizers(), ids=lambda path: path.name)
@pytest.mark.parametrize(
    "text", ["Once upon a time, ", "naïve café 日本語 🙂👍🏽 done\n\n  x", "  two  spaces ", "a" * 50]
)
def test_pieces_of_a_real_tokenizer_add_up(path: Path, text: str) -> None:
    """Shown piece by piece, text of any script is what the tokenizer decodes at once; token bytes add up too."""
    if not path.is_dir():
        pytest.skip(f"{path.name} is not at hand")
    tokenizer = Tokenizer.load(path, ())
    ids = tokenizer.text(text)
    detokenizer = Detokenizer(tokenizer.decode)
    pieces = [detokenizer.feed(each) for each in ids]
    assert "".join(pieces) + detokenizer.flush() == tokenizer.decode(ids)
    assert "\ufffd" not in "".join(pieces)
    raw = b"".join(tokenizer.piece(each)[1] for each in tokenizer._tokenizer.encode(text, add_special_tokens=False))
    assert raw.decode().strip() == text.strip()


def test_an_added_token_is_named_as_it_is_decoded() -> None:
    """In a byte-level tokenizer the mark of SentencePiece stands for no blank: DeepSeek's own tokens have it."""
    tokenizer = Tokenizer.load(DEMO, ())
    inner = copy.deepcopy(tokenizer._tokenizer)
    inner.add_tokens(["<tool\u2581calls>"])
    own, token = Tokenizer(inner, frozenset()), inner.convert_tokens_to_ids("<tool\u2581calls>")
    assert own.piece(token)[0] == own.decode([token]) == "<tool\u2581calls>"


@pytest.mark.parametrize("path", tokenizers()[:3], ids=lambda path: path.name)
def test_a_space_behind_many_tokens_without_text(path: Path) -> None:
    """As with ``ignore_eos``, where nothing ends an answer."""
    if not path.is_dir():
        pytest.skip(f"{path.name} is not at hand")
    tokenizer = Tokenizer.load(path, ())
    end = tokenizer._tokenizer.eos_token_id
    ids = [*tokenizer._tokenizer.encode("Hello", add_special_tokens=False), *[end] * 20]
    ids += tokenizer._tokenizer.encode("Hello world", add_special_tokens=False)[1:]
    detokenizer = Detokenizer(tokenizer.decode)
    assert "".join(map(detokenizer.feed, ids)) + detokenizer.flush() == tokenizer.decode(ids)


@given(st.text("ab ", max_size=30), st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3), st.data())
def test_stop_strings(text: str, stops: list[str], data: st.DataObject) -> None:
    """However the text is cut up, what is shown ends where the first complete stop string begins."""
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    expected = text[: min(ends)[1]] if ends else text
    scanner, shown, stopped, rest = StopScanner(stops), "", False, text
    while rest and not stopped:
        size = data.draw(st.integers(1, len(rest)))
        piece, stopped = scanner.feed(rest[:size])
        shown, rest = shown + piece, rest[size:]
    shown += "" if stopped else scanner.flush()
    assert (shown, stopped) == (expected, bool(ends))


def test_a_stop_string_that_came_too_early_never_ends_the_text() -> None:
    """Nor where it is held back as the beginning of another; one that is complete later does."""
    scanner = StopScanner(["ab", "abc"])
    assert scanner.feed("ab", looks=False) == ("", False)
    assert scanner.feed("d") == ("abd", False)
    assert scanner.feed("xa", looks=False) == ("x", False)
    assert scanner.feed("bc") == ("", True)


@given(st.integers(0, 5000), st.integers(1, 600))
def test_chunks(tokens: int, chunk: int) -> None:
    """Chunks add up, none is too long, and they differ by one token at most."""
    sizes = chunk_sizes(tokens, chunk)
    assert sum(sizes) == tokens
    assert len(sizes) == -(-tokens // chunk)
    assert not sizes or (max(sizes) <= chunk and max(sizes) - min(sizes) <= 1)


@lru_cache
def loaded(name: str) -> Tokenizer:
    """One of the tokenizers that are at hand."""
    path = DATA / name if name else DEMO
    if not path.is_dir():
        pytest.skip(f"{name} is not at hand")
    return Tokenizer.load(path, ())


ALL = ["", *(f"tokenizers/{name}" for name in ("llama2", "qwen", "gpt2", "opt"))]
ALL += [f"models/{name}" for name in ("stories-260k", "tinystories-656k")]

stretches = st.one_of(
    st.text(max_size=200),
    st.text(" \n\t\r", max_size=200),
    st.builds(str.__mul__, st.characters(exclude_categories=["Cs"]), st.integers(1, 500)),
    st.builds(str.__mul__, st.text("abcde =-.", min_size=1, max_size=6), st.integers(1, 100)),
    st.text(st.characters(min_codepoint=0x4E00, max_codepoint=0x9FFF), max_size=100),
    st.text("🙂👍🏽👩\u200d👧\ufe0f🇩🇪e\u0301\u0327각", max_size=100),
    st.lists(st.sampled_from(["<|im_start|>", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|start_story|>"])).map(
        "".join
    ),
    st.sampled_from(["The quick brown fox, ", "def f(x):\n    return x\n", "1234567890", "<|im_end|>\n"]).map(
        lambda each: each * 9
    ),
)


@pytest.mark.parametrize("name", ALL)
@given(st.lists(stretches, min_size=1, max_size=5).map("".join), st.data())
def test_a_cut_makes_few_tokens_more(name: str, text: str, data: st.DataObject) -> None:
    """Wherever any text is cut in two: what is counted slice by slice, less ``CUT_TOKENS`` each, is never too much."""
    tokenizer, cut = loaded(name), data.draw(st.integers(0, len(text)))
    first, second, whole = (len(tokenizer.rendered(part)) for part in (text[:cut], text[cut:], text))
    assert first + second - whole <= CUT_TOKENS // 2


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=15, deadline=None)
@given(st.lists(stretches.filter(len), min_size=1, max_size=5).map("".join), st.integers(1, 4 * SLICE))
def test_what_fits_is_never_refused(name: str, text: str, length: int) -> None:
    """A long text of any kind, in a context that it just fits; and one token less is too little, always."""
    tokenizer, text = loaded(name), (text * (length // len(text) + 1))[:length]
    tokens = len(tokenizer.text(text))
    if tokens:
        assert len(read_prompt(Generate(1, "", "", text), tokenizer, tokens + 1, 4096, 10**6).ids) == tokens
        with pytest.raises(SessionFailed) as refused:
            read_prompt(Generate(1, "", "", text), tokenizer, tokens, 4096, 10**6)
        assert refused.value.code is Code.CONTEXT_LENGTH_EXCEEDED


class Counting(Tokenizer):
    """Counts the characters that are made tokens of, and the turns that a template is run on."""

    def __init__(self, of: Tokenizer) -> None:
        self.__dict__.update(of.__dict__)
        self.characters = self.turns = 0
        encode = of._tokenizer.encode

        def counted(text: str, **how: Any) -> list[int]:
            self.characters += len(text)
            return list(encode(text, **how))

        self._tokenizer = SimpleNamespace(encode=counted, decode=of._tokenizer.decode)
        self._of = of

    def render(self, turns: Sequence[ChatTurn], how: Rendering = AS_USUAL) -> str:
        self.turns += len(turns)
        return self._of.render(turns, how)


@pytest.mark.parametrize("name", ["", "tokenizers/qwen"])
@pytest.mark.parametrize("kind", ["the quick brown fox jumps over ", "a", "🙂", "日本語", "\n x"])
def test_far_too_long_is_refused_early(name: str, kind: str) -> None:
    """Four megabytes, as completion or as chat, for a context of 4096: no more is tokenised than a context's worth of
    text or two. A million turns are not even rendered."""
    text = kind * (4 * 2**20 // len(kind.encode()))
    for prompt in (text, [ChatTurn("user", text)]):
        if isinstance(prompt, list) and name:
            continue  # That tokenizer has no template here.
        tokenizer = Counting(loaded(name))
        with pytest.raises(SessionFailed, match="at least"):
            read_prompt(Generate(1, "", "", prompt), tokenizer, 4096, 4096, 10**6)
        assert tokenizer.characters <= 2 * 8 * 4096
    tokenizer = Counting(loaded(name))
    with pytest.raises(SessionFailed, match="at least") as refused:
        read_prompt(Generate(1, "", "", [ChatTurn("user", "")] * 10**6), tokenizer, 4096, 4096, 10**6)
    assert refused.value.param == "messages" and not tokenizer.turns and not tokenizer.characters


def refusal(request: Generate, max_positions: int = 50) -> SessionFailed:
    """Why a request is refused."""
    with pytest.raises(SessionFailed) as failed:
        read_prompt(request, Tokenizer.load(DEMO, ()), max_positions, 4096, 100)
    return failed.value


def test_prompts_that_cannot_be_served() -> None:
    """Too long, far too long, empty, or with ids outside the vocabulary: each a typed error that names the field."""
    assert refusal(Generate(1, "", "", "word " * 60)).code is Code.CONTEXT_LENGTH_EXCEEDED
    assert refusal(Generate(1, "", "", "word " * 1_000_000)).code is Code.CONTEXT_LENGTH_EXCEEDED
    assert refusal(Generate(1, "", "", "", [1] * 50)).code is Code.CONTEXT_LENGTH_EXCEEDED
    for ids in ([], [100], [-1]):
        failure = refusal(Generate(1, "", "", "", ids))
        assert (failure.code, failure.param) == (Code.INVALID_REQUEST, "prompt")


def test_a_token_that_only_the_tokenizer_knows_is_refused() -> None:
    """As text or in a conversation, and not when the model has no row for it: some tokenizers know more tokens."""
    tokenizer = Tokenizer.load(DEMO, ())
    for prompt, member in (("fox", "prompt"), ([ChatTurn("user", "fox")], "messages")):
        request = Generate(1, "", "", prompt)
        most = max(read_prompt(request, tokenizer, 50, 4096, 10**6).ids)
        assert read_prompt(request, tokenizer, 50, 4096, most + 1).ids
        with pytest.raises(SessionFailed, match=f"number {most}") as failed:
            read_prompt(request, tokenizer, 50, 4096, most)
        assert (failed.value.code, failed.value.param) == (Code.INVALID_REQUEST, member)


def test_max_tokens_is_what_fits() -> None:
    """Left out it is what the agent allows; in any case at most the rest of the context."""
    tokenizer = Tokenizer.load(DEMO, ())
    for asked, expected in ((None, 40), (7, 7), (500, 40)):
        request = Generate(1, "", "", "", [5] * 10, max_tokens=asked)
        assert read_prompt(request, tokenizer, 50, 4096, 100).max_tokens == expected
    assert read_prompt(Generate(1, "", "", "", [5] * 10), tokenizer, 50, 20, 100).max_tokens == 20


def test_a_model_without_a_chat_template_says_so() -> None:
    """The error tells which endpoint to use."""
    path = DATA / "models" / "stories-260k"
    if not path.is_dir():
        pytest.skip("the model is not at hand")
    with pytest.raises(SessionFailed, match="/v1/completions"):
        Tokenizer.load(path, ()).chat([ChatTurn("user", "hello")])


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("tokenizer.json", '{"model": {"type": "of the future"}}', "newer release"),
        ("tokenizer.model", "no model", "pip install sentencepiece"),
        ("nothing", "", "it needs tokenizer.json or tokenizer.model"),
    ],
)
def test_a_tokenizer_that_cannot_be_read_says_what_to_do(tmp_path: Path, name: str, content: str, says: str) -> None:
    """Whatever the libraries raise."""
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / name).write_text(content)
    with pytest.raises(BadCheckpoint, match=says):
        Tokenizer.load(tmp_path, ())


def test_a_tokenizer_in_python_is_one() -> None:
    """It has no backend to look into; of its texts nobody knows how few tokens they have."""
    theirs = transformers.ByT5Tokenizer()
    tokenizer = Tokenizer(theirs, frozenset((1,)))
    assert tokenizer.longest_piece == 0 and tokenizer.text("Grüße") == theirs.encode("Grüße")
