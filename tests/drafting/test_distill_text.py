"""Text files become token ids, with the model's own tokens marked."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from checkpoints import DEMO

from drafting.distill.corpus import Renewal, Source
from drafting.distill.passages import Passage
from drafting.distill.text import BadText, Document, Writer, samples

TURNS = [
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Good day!"},
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "2 + 3 = 5."},
]


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer.load(DEMO, 64)


def said(writer: Writer, document: Document) -> list[str]:
    """The text of each run of own tokens."""
    runs: list[list[int]] = []
    before = False
    for token, own in zip(document.ids.tolist(), document.own.tolist(), strict=True):
        if own and not before:
            runs.append([])
        if own:
            runs[-1].append(token)
        before = own
    return [str(writer._tokenizer.decode(run)) for run in runs]


def test_conversation_is_what_a_device_would_see(writer: Writer) -> None:
    """The ids are the chat template's, and own is each answer with what ends it."""
    document = writer.conversation(TURNS)
    assert document is not None
    text = "<|begin|><|user|>Hello<|end|><|assistant|>Good day!<|end|><|user|>What is 2 + 3?<|end|><|assistant|>"
    assert writer._tokenizer.decode(document.ids) == text + "2 + 3 = 5.<|end|>"
    assert said(writer, document) == ["Good day!<|end|>", "2 + 3 = 5.<|end|>"]
    asked = writer._tokenizer.apply_chat_template(TURNS[:3], add_generation_prompt=True, return_dict=False)
    assert document.ids[: document.prompt].tolist() == list(asked)


def test_every_form_of_a_line(writer: Writer, tmp_path: Path) -> None:
    """messages, messages and answer, prompt and answer, and text are all read."""
    path = tmp_path / "text.jsonl"
    lines = [
        {"messages": TURNS},
        {"messages": TURNS[:1], "answer": "Hi!"},
        {"prompt": "Hello", "answer": "Hi!"},
        {"text": "Once upon a time."},
    ]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n\n")
    found = list(samples(path, writer))
    spoken = [each for each in found if isinstance(each, Document)]
    assert [said(writer, each)[-1] for each in spoken] == ["2 + 3 = 5.<|end|>", "Hi!<|end|>", "Hi!<|end|>"]
    assert np.array_equal(spoken[1].ids, spoken[2].ids)
    assert found[3] == Passage(("Once upon a time.",))


def test_plain_text_becomes_passages(writer: Writer, tmp_path: Path) -> None:
    """A long plain file becomes several passages of about the longest, with every word in one of them; a prompt that is
    cut from one is what a device would be sent, and the text goes on behind it."""
    path = tmp_path / "story.txt"
    path.write_text("There was once a small fox who lost a key.\n" * 20)
    found = [each for each in samples(path, writer) if isinstance(each, Passage)]
    assert len(found) > 2 and "".join(each.text for each in found) == path.read_text()
    for number, passage in enumerate(found):
        whole, cut = writer.whole(passage), writer.cut(passage, random.Random(number))
        assert whole is not None and cut is not None and len(whole.ids) <= 64
        assert whole.ids.tolist() == writer._tokenizer.encode(passage.text)[:64]
        assert 0 < cut.prompt < len(cut.ids) and cut.own[cut.prompt :].all()
        assert passage.text.endswith(writer._tokenizer.decode(cut.ids, skip_special_tokens=True))
        again = writer.cut(passage, random.Random(number))
        assert again is not None and np.array_equal(again.ids, cut.ids) and np.array_equal(again.own, cut.own)
    assert writer.whole(Passage(("",))) is None


def test_too_long_or_without_answer_is_left_out(writer: Writer) -> None:
    """Such conversations give no document."""
    assert writer.conversation(TURNS[:1]) is None
    assert writer.conversation([TURNS[0], {"role": "assistant", "content": "word " * 100}]) is None


@pytest.mark.parametrize(
    "line",
    ["{", "[1]", '{"messages": [{"role": "user"}]}', '{"messages": 3}', '{"answer": "x"}', '{"text": 1}', "null"],
)
def test_bad_line_is_named(line: str, writer: Writer, tmp_path: Path) -> None:
    """A line that is none of them is refused with its number."""
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps({"messages": TURNS}) + "\n" + line + "\n")
    with pytest.raises(BadText, match=r"bad\.jsonl:2"):
        list(samples(path, writer))


def test_bytes_that_are_no_text(writer: Writer, tmp_path: Path) -> None:
    """A file that is not UTF-8 is refused by name."""
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(BadText, match=r"bad\.txt"):
        list(samples(path, writer))


def test_template_that_rewrites_earlier_answers() -> None:
    """Where the template writes earlier turns otherwise, only the last answer is the model's own."""

    class Rewriting:
        chat_template = "yes"

        def apply_chat_template(
            self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
        ) -> str:
            last = len(messages) - 1
            parts = [
                f"<{each['content']}>" if number == last or each["role"] == "user" else "<old>"
                for number, each in enumerate(messages)
            ]
            return "".join(parts) + ("|" if add_generation_prompt else "")

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return list(text.encode())

    class Barred(Rewriting):
        def apply_chat_template(
            self, messages: list[dict[str, str]], tokenize: bool, add_generation_prompt: bool
        ) -> str:
            text = super().apply_chat_template(messages, tokenize, add_generation_prompt)
            return (
                text.replace("<" + messages[-1]["content"], "|<" + messages[-1]["content"], 1)
                if (messages[-1]["role"] == "assistant")
                else text
            )

    document = Writer(Barred(), 999).conversation(TURNS)
    assert document is not None
    assert bytes(document.ids[document.own].tolist()) == b"<2 + 3 = 5.>"
    with pytest.raises(BadText, match="otherwise"):
        Writer(Rewriting(), 999).conversation(TURNS)


def test_answers_said_anew_are_the_models_own(tmp_path: Path) -> None:
    """Greedy answers equal those of the model alone, whatever else is in the batch; the second time they are read."""
    from rich.console import Console

    from service.bars import Bars

    source = Source(DEMO)
    model = source.exact_model()
    asked = ["What is 12 + 7?", "Tell me a story about a fox who loses a key.", "Hello!", "Tell me a story."]
    texts = []
    for each in asked:
        document = source.writer.conversation([{"role": "user", "content": each}, TURNS[1]])
        assert document is not None
        texts.append(document)
    with Bars(Console(quiet=True)) as bars:
        new = source.answered(texts, Renewal((0.0,), 40), tmp_path, bars, model)
        again = source.answered(texts, Renewal((0.0,), 40), tmp_path, bars, model)
        warm = source.answered(texts, Renewal((0.0, 1.5), 40, seed=1), tmp_path, bars, model)
    for before, after, kept in zip(texts, new, again, strict=True):
        prompt = before.ids[: before.prompt].tolist()
        assert after.ids.tolist() == prompt + model.generate(prompt, 40)
        assert after.prompt == before.prompt and after.own[before.prompt :].all()
        assert np.array_equal(after.ids, kept.ids) and np.array_equal(after.own, kept.own)
    assert [np.array_equal(a.ids, b.ids) for a, b in zip(new, warm, strict=True)][::2] == [True, True]
    assert not all(np.array_equal(a.ids, b.ids) for a, b in zip(new, warm, strict=True))
