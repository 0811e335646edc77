"""`trilby audit` as people call it, on the demo model: a cloud server of its own, real rows, all attacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from processes import printed_by

pytestmark = pytest.mark.system


@pytest.mark.slow
def test_the_demo_model_is_audited(tmp_path: Path) -> None:
    """Whoever has the weights reads everything; the head reads the answers; lengths say how long prompts are; table,
    plot and data are written."""
    text = Path(__file__).parents[2] / "models" / "demo" / "heldout.jsonl"
    few = ("--texts", "2", "--prompt-tokens", "24", "--new-tokens", "12", "--pairs", "200", "--pack-rows", "off")
    shown, bars = printed_by(
        *("service.command", "audit", "--split", "2", *few, "--text", str(text), "--out", str(tmp_path)), within_s=150
    )
    assert "| split | the commonest token | nearest embedding | trained inversion | vocabulary matching |" in shown
    assert "split 2" in bars and "passages sent" in bars
    assert (tmp_path / "audit.md").read_text() == shown and "<svg" in (tmp_path / "audit.svg").read_text()
    found = json.loads((tmp_path / "audit.json").read_text())
    [split] = found["splits"]
    shares = {each["name"]: each["tokens"]["right"] / each["tokens"]["tried"] for each in split["attacks"]}
    assert shares["vocabulary matching"] == 1.0
    assert shares["trained inversion"] > 0.9 > shares["black box, 200 pairs"] > shares["the commonest token"]
    assert split["output"]["right"] == split["output"]["tried"] > 0
    assert split["onlooker"]["prompts"] == {"right": 2, "tried": 2}
    assert "--tail 0. 2 passages of heldout.jsonl were sent" in shown
