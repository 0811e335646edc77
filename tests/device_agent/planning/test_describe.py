"""Plans in words."""

from __future__ import annotations

import pytest
from group_plans import BERT_LARGE, GPT2, classifier, env_b, layer_of, profile, shape, task

from device_agent.planning.baselines import plan_local, plan_pipeline, plan_tensor
from device_agent.planning.describe import BAR, bound_by, description, drawing
from device_agent.planning.facts import plan_facts
from device_agent.planning.galaxy import plan_algorithm_1
from device_agent.planning.modes import fewer_devices, plan_for
from device_agent.planning.task import Task, Work
from device_agent.planning.voltage import plan_published, plan_voltage

BERT = classifier(layer_of(BERT_LARGE, 6))


def asked(rows: int = 200, mbit_s: float = 500, new: int = 0) -> Task:
    of = layer_of(GPT2, 4) if new else BERT
    return task(of, env_b(of, mbit_s), Work(rows, new))


def row_of(text: str, name: str) -> list[str]:
    return next(line.split() for line in text.splitlines() if line.startswith(f"{name} "))


def test_who_holds_what_against_its_budget() -> None:
    """One line a device: heads, columns, rows, layers, what it sends for the prompt, memory."""
    galaxy = asked()
    text = description(galaxy, plan_algorithm_1(galaxy))
    assert text.startswith("galaxy: 4 devices, portal a\n")
    held = galaxy.held(plan_algorithm_1(galaxy))["d"].total / 1e6
    sent = sum(row[3] for row in galaxy.prefill(plan_algorithm_1(galaxy)).sent) / 1e6
    assert row_of(text, "d") == ["d", "2", "4096", "19", "6", f"{sent:.1f}", "MB", f"{held:.0f}", "of", "1000", "MB"]
    assert "layers 0 to 5: attention by heads, MLP by rows (Scheme-2)" in text


def test_a_portal_that_computes_nothing_is_shown() -> None:
    """With its memory, for it has embedding and head."""
    measured = profile(BERT, [1e9] * 3, 1e7, memory=2e9)
    apart = task(BERT, measured, Work(50), members=["b", "c"], portal="a")
    text = description(apart, plan_tensor(apart))
    assert text.startswith("tensor: 2 devices, portal a\n")
    assert row_of(text, "a")[1:5] == ["-", "-", "-", "0"]


def test_layers_are_told_by_runs() -> None:
    """Where they differ."""
    piped = asked()
    text = description(piped, plan_pipeline(piped))
    runs = ["layers 0 to 1: whole, at a", "layer 2: whole, at b", "layer 3: whole, at c", "layers 4 to 5: whole, at d"]
    assert "\n".join(runs) in text
    assert [row_of(text, name)[4] for name in "abcd"] == ["2", "1", "1", "2"]


def test_what_bounds_it_is_said() -> None:
    """Links where they are slow, computing at the slowest device where they are not; for prompt and tokens apart."""
    slow, fast = asked(mbit_s=5), asked(mbit_s=50_000)
    found, why = bound_by(slow, plan_tensor(slow), slow.work.prefill)
    assert why.startswith("bound by links: ") and found == slow.prefill(plan_tensor(slow))
    assert bound_by(fast, plan_tensor(fast), fast.work.prefill)[1] == "bound by computing at d"
    text = description(slow, plan_tensor(slow))
    assert "prompt of 200 rows: " in text and "each new token" not in text
    assert "each new token: " in description(asked(new=5), plan_tensor(asked(new=5)))


def test_gamma_stands_beside_the_profile() -> None:
    """For each member of a plan that gathers hidden states: both counts, both times, what is taken."""
    measured = profile(BERT, [1e9] * 6, 5e8 / 8, memory=3e9)
    one_shot = task(BERT, measured, Work(200))
    text = description(one_shot, plan_published(one_shot))
    table = text[text.index("attention ") :]
    assert "Gamma Eq. 3" in table and "seconds Eq. 8" in table
    assert all(row_of(table, name)[-2:] == ["Eq.", "8"] for name in "abcdef")
    assert "Eq. 8 at a, b, c, d, e, f" in text
    alone = task(BERT, measured, Work(200), members=["a"])
    assert "Gamma" not in description(alone, plan_voltage(alone))


def test_fewer_devices_are_named() -> None:
    """With what they would take."""
    slow = asked(mbit_s=1, new=5)
    plan = plan_for("tensor", slow)
    text = description(slow, plan, fewer_devices("tensor", slow, plan))
    assert "fewer devices would be faster: " in text and "each new token" in text.splitlines()[-1]
    assert "fewer" not in description(slow, plan)


@pytest.mark.parametrize("planner", [plan_algorithm_1, plan_tensor, plan_pipeline, plan_local])
def test_bars_are_as_long_as_what_they_show(planner: object) -> None:
    """Two for each device; full where everything is taken."""
    of = asked()
    plan = planner(of)  # type: ignore[operator]
    lines = drawing(of, plan).splitlines()
    held, found = of.held(plan), of.prefill(plan)
    budgets = {device.name: device.memory_bytes for device in of.profile.devices}
    assert len(lines) == 2 * len(held)
    for number, name in enumerate(held):
        for line, part in (
            (lines[2 * number], found.busy[number] / found.seconds),
            (lines[2 * number + 1], held[name].total / budgets[name]),
        ):
            bar = next(word for word in line.split() if set(word) <= {"#", "."})
            assert len(bar) == BAR and abs(bar.count("#") - part * BAR) <= 0.5 + 1e-9


def test_what_is_read_while_it_is_used_is_said_and_drawn() -> None:
    """Segments, each member's units and ring, a token's time, what bounds it; a picture of one step; all as data."""
    of = shape(8, 64, 4, 256, 50, kv_heads=2, gated=True, causal=True, norm_first=True, rotary=True, positions=0)
    layer = 4 * of.layer_elements(0, range(2), range(256))
    measured = profile(of, [3e7] * 2, 1e8, memory=3.2 * layer + 60_000, disks=1e7)
    asked = task(of, measured, Work(16, 16))
    plan = plan_for("lime", asked)
    said = description(asked, plan)
    for words in ("segments", "a streams", "ring 0.", "at 10 MB/s", "one session: ", "bound by disks", "ms a token"):
        assert words in said
    drawn = drawing(asked, plan).splitlines()
    assert any(line.startswith("a") and "##" in line for line in drawn) and any("===" in line for line in drawn)
    facts = plan_facts(asked, plan)
    assert facts["segments"] >= 1 and len(facts["streamed"]) == len(facts["ring_bytes"]) == len(plan.members)
    assert facts["sporadic_token_s"] >= facts["bound_s"] * 0.999 and 0 <= facts["hidden"] <= 1
