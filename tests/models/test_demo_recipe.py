"""The recipe of the demo model: its grammars, its test set, its batches, and a whole tiny run."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest
import torch

from models.demo.recipe import checkpoint, corpus, questions, rephrase, stories, summaries, sums
from models.demo.recipe.batches import batches
from models.demo.recipe.judge import has, right
from models.demo.recipe.sample import Sample, is_heldout
from models.demo.recipe.tokenizer import encode_chat, train_tokenizer
from models.demo.recipe.train import DECAY_FROM, rate_factor

ROOT = Path(__file__).resolve().parents[2]
SKILLS = list(corpus.MAKERS)
PRIVATE = {"old", "song", "sister", "dream", "tall", "last", "middle", "swim", "breakfast", "money"}


def samples(skill: str, count: int, seed: int = 0) -> list[Sample]:
    """Some samples of one skill."""
    return [corpus.MAKERS[skill](random.Random(f"{seed}-{number}")) for number in range(count)]


@pytest.fixture(scope="module")
def training() -> list[Sample]:
    """A stretch of the training text."""
    return list(islice(corpus.training_stream(0), 6000))


@pytest.mark.parametrize("skill", SKILLS)
def test_the_same_seed_gives_the_same_text(skill: str) -> None:
    """Two draws with one seed are equal in every word, and another seed gives other text."""
    assert samples(skill, 40) == samples(skill, 40)
    assert samples(skill, 40) != samples(skill, 40, seed=1)


@pytest.mark.parametrize("skill", SKILLS)
def test_the_reference_answer_passes_its_own_check(skill: str) -> None:
    """Every reference answer is judged right, so that a perfect model would score 100 %."""
    for sample in samples(skill, 300):
        assert right(sample.answer, sample.check, sample.want), sample


@pytest.mark.parametrize("skill", SKILLS)
def test_no_template_slot_is_left_open(skill: str) -> None:
    """No text has an unfilled slot, a doubled space or a wrong article before a vowel."""
    for sample in samples(skill, 300):
        for message in sample.messages:
            text = message["content"]
            assert text.strip() == text and text
            assert "{" not in text and "}" not in text and "  " not in text, text
            assert not re.search(r"\b[Aa] (apple|orange|owl|otter|elephant|umbrella|ant|old|astronaut)\b", text), text


def value_of(step: str) -> int:
    """The value of digits and signs, from left to right."""
    first, *rest = step.split()
    value = int(first)
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        value = {"+": value + int(number), "-": value - int(number), "x": value * int(number)}[sign]
    return value


def test_sums_are_right() -> None:
    """Each sum, worked out anew from the digits in the question, has the answer that is taught."""
    for sample in samples("sums", 600):
        for asked, said in zip(sample.messages[::2], sample.messages[1::2], strict=True):
            steps = re.findall(r"(\d+(?: [-+x] \d+)+) = (\d+)", said["content"])
            assert all(value_of(step) == int(value) for step, value in steps)
            a, sign, b, value = re.findall(r"(\d+) ([-+x]) (\d+) = (\d+)", said["content"])[-1]
            assert {"+": int(a) + int(b), "-": int(a) - int(b), "x": int(a) * int(b)}[sign] == int(value)
            assert sorted(re.findall(r"\d+", asked["content"])) == sorted([a, b])


def test_answers_about_a_text_stand_in_the_text() -> None:
    """What a right answer must contain is in the passage, unless the passage does not say it."""
    for sample in samples("questions", 600):
        text = next(message["content"] for message in sample.messages if message["role"] == "user")
        if sample.answer == questions.UNKNOWN:
            question = re.findall(r"[A-Z][^.?\n]*\?", sample.messages[-2]["content"])[-1]
            name = re.findall(r"\b[A-Z]\w+", question)[1]
            asked = set(re.findall(r"\b[a-z]+", question))
            passage = " ".join(part for part in re.split(r"(?<=[.?])\s", text) if not part.endswith("?"))
            passage = passage.replace("old mill", "mill").replace(
                "Last ", ""
            )  # a place and a day, nobody's age or name
            assert not has(passage, name) or not any(has(passage, one) for one in asked & PRIVATE), text
            assert not has(passage, name) or asked & PRIVATE
        else:
            assert has(text, sample.want[0]), (text, sample.want)


def test_a_question_has_one_answer() -> None:
    """Within one passage no wording of a question belongs to two answers."""
    for number in range(200):
        _, asked, _ = questions.paragraph(random.Random(number), 4)
        wordings = [wording for one in asked for wording in one.wordings]
        assert len(wordings) == len(set(wordings))


def test_summaries_say_only_what_the_passage_says() -> None:
    """Every name, place and day of a summary is in its passage, and the summary is much shorter."""
    for sample in samples("summaries", 200):
        text = " ".join(message["content"] for message in sample.prompt)
        for word in re.findall(r"[A-Z][a-z]+", sample.answer):
            assert word.lower() in text.lower()
        assert len(sample.answer) < 0.5 * len(text)
        assert 1 <= sample.answer.count(". ") + 1 <= 2


def test_stories_use_what_was_asked_for() -> None:
    """The animal, person or thing of the request is in the story, and a story has a middle and an end."""
    for sample in samples("stories", 300):
        assert all(has(sample.answer, one) for one in sample.want)
        assert len(re.findall(r"[.!?]", sample.answer)) >= 4


def test_active_and_passive_are_each_other_s_mirror() -> None:
    """Active to passive and back gives the first sentence again; the words but for "was" and "by" are the same."""
    for number in range(100):
        said, passive = rephrase.passive(random.Random(number))
        again, active = rephrase.active(random.Random(number))
        assert (again, active) == (passive, said)
        words = passive.strip(".").split()
        assert words.count("was") == 1 and "by" in words[words.index("was") :]
        assert len(words) == len(said.split()) + 2


def test_heldout_prompts_are_not_in_the_training_text(training: list[Sample]) -> None:
    """No training conversation has a prompt of the frozen test set, and no training sum a held-out pair."""
    frozen = {json.dumps(sample.prompt) for sample in corpus.heldout_set()}
    last = {sample.prompt[-1]["content"] for sample in corpus.heldout_set() if len(sample.prompt) == 1}
    for sample in training:
        for spot, message in enumerate(sample.messages):
            if message["role"] == "user":
                assert json.dumps(sample.messages[: spot + 1]) not in frozen
                assert message["content"] not in last
            elif message["role"] == "assistant":
                for a, sign, b in re.findall(r"(\d+) ([-+x]) (\d+) =", message["content"]):
                    assert not sums.heldout_pair(int(a), "*" if sign == "x" else sign, int(b))


def test_a_tenth_of_all_sums_is_held_out() -> None:
    """About one pair in ten is kept from training, and of each product one order is always taught."""
    pairs = [(a, b) for a in range(100) for b in range(100)]
    assert 0.08 < sum(sums.heldout_pair(a, "+", b) for a, b in pairs) / len(pairs) < 0.12
    small = [(a, b) for a in range(1, 13) for b in range(1, 13)]
    assert all(not (sums.heldout_pair(a, "*", b) and sums.heldout_pair(b, "*", a)) for a, b in small)
    assert any(sums.heldout_pair(a, "*", b) for a, b in small)


def test_all_skills_are_in_the_training_text(training: list[Sample]) -> None:
    """Each skill has its part of the text."""
    assert {sample.skill for sample in training} == set(SKILLS)
    assert all(not is_heldout(sample.key) for sample in training if sample.skill != "sums")


def test_any_text_survives_the_tokenizer() -> None:
    """A tokenizer trained on little text still gives back any text unchanged, and cuts numbers into digits."""
    tokenizer = train_tokenizer(0, 200, 600)
    for text in ("naïve Ærø 你好 🙂\t\n x", "  two  spaces ", "\u0000\u00ff", "1024 + 7"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert [tokenizer.id_to_token(one) for one in tokenizer.encode("1024").ids] == ["1", "0", "2", "4"]


def test_only_the_assistant_s_words_carry_full_loss() -> None:
    """In an encoded conversation the marked tokens are the assistant's text and the end of its turn."""
    tokenizer = train_tokenizer(0, 200, 600)
    ids, own = encode_chat(
        tokenizer, [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello you"}]
    )
    marked = [one for one, mine in zip(ids, own, strict=True) if mine]
    assert tokenizer.decode(marked, skip_special_tokens=False) == "Hello you<|end|>"


def test_batches_hold_whole_conversations() -> None:
    """Rows begin with the mark of a conversation, are filled for the most part, and weights add up to one."""
    tokenizer = train_tokenizer(0, 200, 600)
    batch = next(batches(tokenizer, 0, 0, 1, 0, rows=4, length=512))
    assert batch.rows.shape == (4, 512)
    assert set(batch.rows[:, 0].tolist()) == {tokenizer.token_to_id("<|begin|>")}
    flat = batch.rows.reshape(-1).tolist()
    assert flat.count(tokenizer.token_to_id("<|pad|>")) < 0.15 * len(flat)
    assert torch.isclose(batch.weights.sum(), torch.tensor(1.0))


def test_workers_read_different_samples() -> None:
    """Two workers never train on the same batch."""
    tokenizer = train_tokenizer(0, 200, 600)
    first, second = (next(batches(tokenizer, 0, rank, 2, 0, rows=2, length=512)) for rank in (0, 1))
    assert not torch.equal(first.rows, second.rows)


def test_the_learning_rate_follows_the_clock() -> None:
    """It rises at first, stays level, and is zero when the time is over."""
    assert rate_factor(0, 0.0) < 0.1
    assert rate_factor(5000, DECAY_FROM - 0.01) == 1.0
    assert 0.0 < rate_factor(5000, 0.9) < 0.5
    assert rate_factor(5000, 1.0) == 0.0


def recipe(*arguments: str) -> str:
    """Run the recipe as a user would, on one thread; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "models.demo.recipe", *arguments],
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_whole_recipe_runs_small_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    """A tiny run writes every published file, and a second one goes on from its checkpoint without pickle."""
    table = recipe("--smoke", "--minutes", "0.05", "--out", str(tmp_path))
    assert "questions" in table
    names = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert names | {"heldout.jsonl"} <= {path.name for path in tmp_path.iterdir()}
    _, _, first = checkpoint.load(tmp_path / "run")
    recipe("--smoke", "--minutes", "0.1", "--resume", "--out", str(tmp_path))
    _, _, second = checkpoint.load(tmp_path / "run")
    assert second.step > first.step > 0
    assert second.runs == 2
    assert {path.suffix for path in (tmp_path / "run").iterdir()} <= {".json", ".safetensors"}


def test_summaries_are_long_enough_to_need_a_summary() -> None:
    """Passages have between about 80 and 250 words."""
    counts = [
        len(" ".join(message["content"] for message in sample.prompt).split())
        for sample in samples(summaries.SKILL, 100)
    ]
    assert min(counts) > 55 and max(counts) < 250


def test_a_story_can_be_gone_on_with() -> None:
    """A begun story is continued with the same hero and not told again."""
    begun = [sample for sample in samples(stories.SKILL, 400) if "story" in sample.want or len(sample.want) == 1]
    assert begun
    assert all(sample.answer not in sample.messages[0]["content"] for sample in begun)
