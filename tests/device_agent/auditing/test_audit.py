"""An audit before anything is sent, and what it says afterwards."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import pytest
from checkpoints import DEMO
from rich.console import Console

from device_agent.auditing.audit import audit
from device_agent.auditing.config import AuditConfig
from device_agent.auditing.figures import Attacked, AuditFigures, Drafted, Onlooker, Share, SplitFigures
from device_agent.auditing.report import data, plot, tables
from service.bars import Bars


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"text": "short.txt"}, "has 0 passages"),
        ({"text": "nowhere.txt"}, "cannot be read"),
        ({"split": "12"}, "leaves the cloud no layer"),
        ({"tail": 12}, "leaves the cloud no layer"),
        ({"model": "/nowhere/at/all"}, "nowhere"),
        ({"new_tokens": 2040}, "leaves prompts no room"),
    ],
)
def test_what_cannot_be_audited(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    """Said before a process is started."""
    (tmp_path / "short.txt").write_text("Too short.")
    if "text" in settings:
        settings = {"text": str(tmp_path / settings["text"])}
    with Bars(Console(stderr=True)) as bars, pytest.raises(Exception, match=says) as refused:
        audit(AuditConfig(**{"model": str(DEMO), **settings}), bars)
    assert type(refused.value).__name__ in ("BadText", "ValueError", "ModelNotFound")


@pytest.mark.slow
def test_drafts_that_are_trees_cannot_be_audited() -> None:
    """Said as soon as they are loaded, and not when everything has been sent."""
    with Bars(Console(stderr=True)) as bars, pytest.raises(ValueError, match="--draft medusa drafts trees"):
        audit(AuditConfig(model=str(DEMO), draft=("medusa",), split="2"), bars)


def split(number: int, right: int, complete: bool = True) -> SplitFigures:
    """Made up."""
    attacks = (
        Attacked("the commonest token", Share(1, 10)),
        Attacked("black box, 1,000 pairs", Share(right, 10), complete),
    )
    onlooker = Onlooker(Share(2, 4), 0.25, Share(0, 0), 0.5, 1000, 3000, 500, 12.0)
    drafts = Drafted(40, 6, 6 if complete else 4, 4)
    return SplitFigures(number, attacks, Share(5, 5), drafts, onlooker)


def test_tables_plot_and_data() -> None:
    """All splits, each attack a column and a line; what was tried is said, and what took too long is marked."""
    found = AuditFigures(
        *("model", "sha256:00", 3, 97, 32, "float32", 1, True, "text.txt", "ab" * 32, 2, 500, 97, 0),
        (split(0, 9), split(1, 4, complete=False)),
    )
    said = tables(found)
    assert "| 0 | 10.0 % | 90.0 % | 100.0 % |" in said
    assert "| 1 | 10.0 % | 40.0 %* | 100.0 % |" in said and "before the time was over" in said
    assert "| 1 | 40 | 6 | 4 of 4* | 50.0 %" in said and "there was time for" in said
    assert "| 0 | 40 | 6 | 4 | 50.0 % | 25.0 % | – | 50.0 % | 1,000 | 2,000 | 500 |" in said
    assert "--tail 1, frames padded. 2 passages of text.txt" in said
    drawn = ElementTree.fromstring(plot(found))
    assert len(drawn.findall("{*}polyline")) == 3
    assert {each.text for each in drawn.findall("{*}text")} >= {"black box, 1,000", "commonest token", "answers, head"}
    facts = json.loads(data(found))
    assert facts["splits"][1]["attacks"][1]["tokens"] == {"right": 4, "tried": 10}
