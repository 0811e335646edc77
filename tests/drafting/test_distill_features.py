"""Features on disk are what the model computes, and are computed once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny_models import build_tiny

from drafting.distill import features
from drafting.distill.features import Key, cached, compute, parts, states, token_bytes, within
from drafting.distill.text import Document
from split_model.checkpoint import Checkpoint
from split_model.reference import Reference
from split_model.stack import Span

SPLIT = 2


def some_documents(count: int = 5) -> list[Document]:
    chance = np.random.default_rng(3)
    found = []
    for number in range(count):
        length = 4 + 7 * number
        own = np.arange(length) >= 2
        found.append(Document(chance.integers(0, 97, length).astype(np.int32), own))
    return found


def loaded(name: str, folder: Path) -> tuple[str, Reference]:
    path = folder / name
    if not path.exists():
        build_tiny(name, path)
    checkpoint = Checkpoint.open(path)
    return checkpoint.digest(), Reference.load(checkpoint)


@pytest.mark.parametrize("name", ["llama", "mistral-window", "qwen2-windows", "qwen3"])
def test_states_are_the_models(name: str, tiny_folder: Path) -> None:
    """Texts side by side get the rows that each gets alone, also with windows."""
    _, model = loaded(name, tiny_folder)
    front, rest = parts(model, SPLIT)
    texts = [each.ids for each in some_documents()]
    shallow, deep = states(model, front, rest, texts)
    for lane, ids in enumerate(texts):
        alone = front.forward(model.embedding.forward(ids.tolist()), [Span(front.new_cache(len(ids)), len(ids))])
        torch.testing.assert_close(shallow[lane, : len(ids)], alone, atol=1e-5, rtol=1e-4)
        after = rest.forward(alone, [Span(rest.new_cache(len(ids)), len(ids))])
        torch.testing.assert_close(deep[lane, : len(ids)], after, atol=1e-5, rtol=1e-4)


def test_kept_on_disk_and_used_again(tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back is what was computed, over several shards; the same key finds it, another does not."""
    monkeypatch.setattr(features, "SHARD_TOKENS", 30)
    digest, model = loaded("llama", tiny_folder)
    texts = some_documents()
    key = Key.of(digest, SPLIT, texts)
    counted: list[int] = []
    assert cached(tmp_path / "features", key) is None
    compute(tmp_path / "features", key, model, texts, counted.append)
    assert len(list((tmp_path / "features").glob("*.deep"))) > 1
    files = cached(tmp_path / "features", key)
    assert files is not None and len(files) == len(texts)
    assert sum(counted) == files.tokens == sum(len(each.ids) for each in texts)
    on_disk = sum(each.stat().st_size for each in (tmp_path / "features").iterdir() if each.suffix != ".json")
    assert on_disk == files.nbytes
    front, rest = parts(model, SPLIT)
    for number, text in enumerate(texts):
        one = files[number]
        shallow, deep = states(model, front, rest, [text.ids])
        assert one.ids.tolist() == text.ids.tolist() and one.own.tolist() == text.own.tolist()
        torch.testing.assert_close(one.shallow.float(), shallow[0], atol=1e-2, rtol=1e-2)
        torch.testing.assert_close(one.deep.float(), deep[0], atol=1e-2, rtol=1e-2)
    other = [*texts[:-1], Document(texts[-1].ids, ~texts[-1].own)]
    for wrong in (Key.of(digest, 1, texts), Key.of("sha256:0", SPLIT, texts), Key.of(digest, SPLIT, other)):
        assert cached(tmp_path / "features", wrong) is None


def test_half_written_is_not_used(tiny_folder: Path, tmp_path: Path) -> None:
    """A shard that is cut off, or a missing index, is as good as nothing."""
    digest, model = loaded("llama", tiny_folder)
    texts = some_documents()
    key = Key.of(digest, SPLIT, texts)
    compute(tmp_path / "a", key, model, texts, lambda _: None)
    with (tmp_path / "a" / "0000.deep").open("r+b") as file:
        file.truncate(100)
    assert cached(tmp_path / "a", key) is None
    compute(tmp_path / "b", key, model, texts, lambda _: None)
    (tmp_path / "b" / "index.json").unlink()
    assert cached(tmp_path / "b", key) is None


def test_disk_budget() -> None:
    """Documents are taken while their features fit, and none after the first that does not."""
    texts = some_documents()
    each = token_bytes(32)
    assert each == 2 * 2 * 32 + 5
    assert len(within(texts, 32, each * (4 + 11 + 18))) == 3
    assert len(within(texts, 32, each * (4 + 11 + 18) - 1)) == 2
