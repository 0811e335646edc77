"""The text of an audit: what is attacked and what is learned from, never the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from checkpoints import DEMO

from device_agent.answering.tokenizer import Tokenizer
from device_agent.auditing.config import SAMPLE, AuditConfig
from device_agent.auditing.texts import LEAST_TOKENS, BadText, paragraphs, passages


def test_passages_do_not_overlap() -> None:
    """Each is drawn or known, begins as every text does, and is as long as it may be; the same seed draws the same."""
    tokenizer = Tokenizer.load(DEMO, ())
    found = passages(SAMPLE, tokenizer, 5, 32, 0)
    begin = tuple(tokenizer.text(""))
    assert len(found.attacked) == 5 and found.begins == len(begin)
    for each in (*found.attacked, *found.known):
        assert each[: len(begin)] == begin and len(begin) + LEAST_TOKENS <= len(each) <= 32
    assert found == passages(SAMPLE, tokenizer, 5, 32, 0) != passages(SAMPLE, tokenizer, 5, 32, 1)
    whole = sum(len(tokenizer.rendered(each)) for each in paragraphs(SAMPLE))
    kept = sum(len(each) - len(begin) for each in (*found.attacked, *found.known))
    assert 0.8 * whole < kept <= whole


def test_plain_text_and_json_lines(tmp_path: Path) -> None:
    """Paragraphs of one, what was said of the other."""
    plain = tmp_path / "plain.txt"
    plain.write_text("one\ntwo\n\n\n three\n\n")
    assert list(paragraphs(plain)) == ["one\ntwo", "three"]
    lines = tmp_path / "lines.jsonl"
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    lines.write_text("\n".join(map(json.dumps, [{"messages": turns, "answer": "c"}, {"text": "d"}, {"x": 1}])))
    assert list(paragraphs(lines)) == ["a\nb\nc", "d"]


@pytest.mark.parametrize(("content", "says"), [("{", "line 1 of .* is no JSON"), ("[1]", "no JSON object")])
def test_lines_that_are_none(content: str, says: str, tmp_path: Path) -> None:
    """Refused with the line."""
    path = tmp_path / "bad.jsonl"
    path.write_text(content)
    with pytest.raises(BadText, match=says):
        list(paragraphs(path))


def test_too_little_text(tmp_path: Path) -> None:
    """Said before anything is loaded; so is a file that is not there."""
    short, tokenizer = tmp_path / "short.txt", Tokenizer.load(DEMO, ())
    short.write_text("A short story about a fox who has lost a key and finds it behind the old mill.")
    with pytest.raises(BadText, match="has 1 passages"):
        passages(short, tokenizer, 3, 64, 0)
    with pytest.raises(BadText, match="cannot be read"):
        passages(tmp_path / "none.txt", tokenizer, 3, 64, 0)


def test_which_splits() -> None:
    """Those that are named, once each; else all that leave the cloud a layer, or some of them from first to last."""
    assert AuditConfig(split="4,2,4").splits(12) == [2, 4]
    assert AuditConfig().splits(12) == list(range(12))
    assert AuditConfig(tail=2).splits(12) == list(range(10))
    many = AuditConfig().splits(80)
    assert len(many) == 12 and (many[0], many[-1]) == (0, 79)
    for config, layers in ((AuditConfig(split="12"), 12), (AuditConfig(tail=12), 12)):
        with pytest.raises(ValueError, match="leaves the cloud no layer"):
            config.splits(layers)
    for bad in ("two", "-1", "1.5", "²", ",", " "):
        with pytest.raises(ValueError, match="--split"):
            AuditConfig(split=bad)
    with pytest.raises(ValueError, match="--pairs"):
        AuditConfig(pairs="1")
