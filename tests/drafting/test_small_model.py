"""A small model that drafts, held to transformers running the same model on the whole text."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import real_model
from drafted_nodes import extend
from drafter_conformance import ATOL, PARENTS, TEXT, TOKENS, Follower, Rows, check_drafter
from tiny_models import build_tiny

from drafting.errors import BadDrafter
from drafting.small_model import SmallModelDrafter
from split_model.checkpoint import Checkpoint

VOCAB = 97


def tokenizer(**changes: Any) -> dict[str, Any]:
    vocab = {f"piece{number}": number for number in range(40)}
    model = {"type": "BPE", "vocab": vocab, "merges": [["p", "i"], ["pi", "e c"]]}
    return {"version": "1.0", "added_tokens": [{"id": 40, "content": "<s>"}], "model": {**model, **changes}}


def folder_with_tokenizer(folder: Path, content: object) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(content))
    return folder


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer."""
    folder = build_tiny("llama-head-dim", tmp_path_factory.mktemp("small") / "tiny-draft")
    return folder_with_tokenizer(folder, tokenizer())


def load(small: Path, target: Path, vocab: int = VOCAB) -> SmallModelDrafter:
    return SmallModelDrafter.load(
        str(small), target, replace(Checkpoint.open(small).spec, vocab_size=vocab), torch.float32
    )


def said_by_transformers(folder: Path, text: Sequence[int]) -> torch.Tensor:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([list(text)])).logits[0, -1]
    return logits


def test_conforms(small: Path) -> None:
    """It does what every drafter does, and is called as its folder is."""
    drafter = load(small, small)
    assert (drafter.name, drafter.tree_nodes) == ("tiny-draft", 0)
    check_drafter(drafter, 4)


def test_says_what_the_model_says(small: Path) -> None:
    """Of the text and of every path of a tree behind it."""
    drafter = load(small, small)
    follower = Follower(drafter, Rows(4)).observe(TEXT)
    paths: list[tuple[int, ...]] = []
    for parent, token in zip(PARENTS, TOKENS, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    said = [follower.session.guess(), *follower.extend(PARENTS, TOKENS)]
    for guess, path in zip(said, [(), *paths], strict=True):
        assert guess is not None and guess.logits is not None and guess.source == drafter.name
        torch.testing.assert_close(guess.logits, said_by_transformers(small, TEXT + path), atol=ATOL, rtol=0)


def test_a_long_prompt_is_read_in_batches(tmp_path: Path) -> None:
    """More tokens than one batch takes."""
    folder = folder_with_tokenizer(
        build_tiny("llama", tmp_path / "long", max_position_embeddings=1200, num_hidden_layers=1), tokenizer()
    )
    text = [(each * each) % VOCAB for each in range(1100)]
    session = load(folder, folder).open(1100)
    session.observe(text, torch.zeros((1100, 1)), None)
    guess = session.guess()
    assert guess is not None and guess.logits is not None
    torch.testing.assert_close(guess.logits, said_by_transformers(folder, text), atol=ATOL, rtol=0)


def test_padded_vocabularies_are_cut_or_filled(small: Path) -> None:
    """Logits have the target's width: less is cut off, what the small model lacks cannot be drafted, yet observed."""
    wanted = said_by_transformers(small, TEXT)
    for vocab in (90, 100):
        session = load(small, small, vocab).open(40)
        session.observe(TEXT, torch.zeros((len(TEXT), 1)), None)
        guess = session.guess()
        assert guess is not None and guess.logits is not None and guess.logits.shape == (vocab,)
        shared = min(vocab, VOCAB)
        torch.testing.assert_close(guess.logits[:shared], wanted[:shared], atol=ATOL, rtol=0)
        assert guess.logits[shared:].isneginf().all()
        session.observe([vocab - 1], torch.zeros((1, 1)), None)
        assert session.guess() is not None


def test_behind_its_last_position_it_says_nothing(small: Path) -> None:
    """The tiny model was made for 256 positions; truncated to where it can, it goes on."""
    session = load(small, small).open(400)
    text = [each % VOCAB for each in range(256)]
    session.observe(text, torch.zeros((256, 1)), None)
    assert session.guess() is not None
    extend(session, (-1, 0), (1, 2), torch.zeros((2, 1)))
    session.observe((1, 2, 3), torch.zeros((3, 1)), None)
    assert session.position == 259
    assert session.guess() is None
    assert extend(session, (-1, 0), (1, 2), torch.zeros((2, 1))) == [None, None]
    session.truncate(200)
    guess = session.guess()
    assert guess is not None and guess.logits is not None
    torch.testing.assert_close(guess.logits, said_by_transformers(small, text[:200]), atol=ATOL, rtol=0)


def test_what_does_not_fit_is_refused(small: Path) -> None:
    """A full text, positions and parents that are not there, another number of rows."""
    session = load(small, small).open(3)
    session.observe((1, 2), torch.zeros((2, 1)), None)
    with pytest.raises(ValueError, match="do not fit"):
        session.observe((1, 2), torch.zeros((2, 1)), None)
    with pytest.raises(ValueError, match="cannot truncate"):
        session.truncate(3)
    for parents, tokens, rows in (((0,), (1,), 1), ((-1,), (1, 2), 1), ((-1,), (1,), 2)):
        with pytest.raises(ValueError):
            extend(session, parents, tokens, torch.zeros((rows, 1)))
    assert session.position == 2 and session.guess() is not None


def test_models_with_other_tokens_are_refused(small: Path, tmp_path: Path) -> None:
    """Another vocabulary, other merges, another added token: which part differs is named."""
    other_vocab = {**tokenizer()["model"]["vocab"], "piece3": 39, "piece39": 3}
    for changed, part in (
        (tokenizer(vocab=other_vocab), "vocab"),
        (tokenizer(merges=[["p", "i"]]), "merges"),
        (tokenizer(type="Unigram"), "type"),
        ({**tokenizer(), "added_tokens": [{"id": 40, "content": "</s>"}]}, "token 40 is '<s>'"),
    ):
        target = folder_with_tokenizer(tmp_path / "target", changed)
        with pytest.raises(BadDrafter, match=f"tiny-draft cannot draft for .*target: .*{part}"):
            load(small, target)


def test_merges_may_be_written_in_either_way(small: Path, tmp_path: Path) -> None:
    """As pairs or as strings; and a target may have added tokens of its own."""
    same = tokenizer(merges=["p i", "pi e c"])
    same["added_tokens"].append({"id": 41, "content": "<tool>"})
    load(small, folder_with_tokenizer(tmp_path / "target", same))


def test_damaged_or_missing_tokenizers_are_refused(small: Path, tmp_path: Path) -> None:
    """Without both files nobody knows what a token means."""
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(BadDrafter, match=r"tokenizer\.json"):
        load(small, target)
    added: tuple[object, ...] = ([3], 3)
    contents: list[object] = [[], {"model": 3}, *({**tokenizer(), "added_tokens": each} for each in added)]
    for content in contents:
        with pytest.raises(BadDrafter, match=r"tokenizer\.json"):
            load(small, folder_with_tokenizer(target, content))
    (target / "tokenizer.json").write_bytes(b"[" * 100_000)
    with pytest.raises(BadDrafter, match=r"tokenizer\.json"):
        load(small, target)


def test_models_that_cannot_be_read_are_refused(small: Path, tmp_path: Path) -> None:
    """No such model, and one without weights."""
    spec = Checkpoint.open(small).spec
    with pytest.raises(BadDrafter, match="neither a folder"):
        SmallModelDrafter.load("no such/model/any/where", small, spec, torch.float32)
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(small / name, bare / name)
    with pytest.raises(BadDrafter, match=r"cannot draft: .*has neither"):
        SmallModelDrafter.load(str(bare), small, spec, torch.float32)


def test_a_real_small_model_drafts_for_a_real_one() -> None:
    """The independent draft of 180k parameters reads the same tokens as its target and says what transformers says."""
    draft, target = real_model("draft-180k"), real_model("tinystories-656k")
    spec = Checkpoint.open(target).spec
    drafter = SmallModelDrafter.load(str(draft), target, spec, torch.float32)
    assert drafter.name == "draft-180k"
    assert 170_000 < drafter.parameters < 190_000
    follower = Follower(drafter, Rows(1)).observe(TEXT)
    guess = follower.session.guess()
    assert guess is not None and guess.logits is not None
    torch.testing.assert_close(guess.logits, said_by_transformers(draft, TEXT), atol=1e-3, rtol=0)
    check_drafter(drafter, 1)
