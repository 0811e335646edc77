"""What a device takes is measured on it, of every kind of model, and kept."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from group_plans import TINY
from group_plans import profile as made_up
from tiny_models import build_tiny, built

from device_agent.planning.baselines import plan_local
from device_agent.planning.profile import AXES, DeviceProfile, Profile, read
from device_agent.planning.shape import ModelShape
from device_agent.planning.task import Task, Work
from device_agent.profiling import compute, disk, kept_profiles
from device_agent.profiling.assembled import assembled
from device_agent.profiling.compute import measured_seconds
from device_agent.profiling.kept_profiles import folder, keep, kept_or_measured
from split_model.checkpoint import Checkpoint
from split_model.free_memory import free_bytes

KINDS = (
    "llama",
    "qwen3",
    "mistral-window",
    "gpt2",
    "opt-post-norm",
    "bert-classifier",
    "distilbert",
    "vit-classifier",
    "t5-encoder",
    "t5",
    "t5-gated",
)
"""Models of all families, and of all that differs within one."""


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty place for profiles, and little time spent on each."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(compute, "QUICK_SPEND_S", 0.0)
    monkeypatch.setattr(kept_profiles, "measured_cost", lambda: 1e-9)
    monkeypatch.setattr(disk, "SECONDS", 0.01)
    return tmp_path


def opened(name: str, tiny_folder: Path) -> Checkpoint:
    """A tiny model."""
    return Checkpoint.open(built(name, tiny_folder), None)


def measured(checkpoint: Checkpoint, **more: Any) -> DeviceProfile:
    """Its quick profile here."""
    return kept_or_measured(checkpoint, torch.float32, "here", quick=True, **more)


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_model_is_measured(name: str, tiny_folder: Path) -> None:
    """Every part takes some time at every size; only Eq. 8 is left out, where it would be wrong; and what was measured
    is enough to plan by."""
    checkpoint = opened(name, tiny_folder)
    device = measured(checkpoint)
    spec = checkpoint.spec
    without = set() if spec.positions == "learned" and not spec.qk_norm else {"reordered"}
    assert set(device.seconds) == set(AXES) - without
    assert all(seconds > 0 for table in device.seconds.values() for seconds in table.seconds)
    assert device.seconds["query"].axes[1][-1] == spec.num_kv_heads
    assert device.seconds["up"].axes[1][-1] == spec.intermediate_size
    assert device.memory_bytes <= free_bytes() * 1.5 and device.disk_bytes > 0
    task = Task(
        ModelShape.of(spec, "float32"),
        assembled("any", "float32", [device]),
        ("here",),
        "here",
        Work(spec.max_positions or 32),
    )
    assert task.prefill(plan_local(task)).seconds > 0


def test_it_is_told_how_far_it_is(tiny: Path) -> None:
    """What is done never becomes less, and is all in the end."""
    told: list[tuple[int, int]] = []
    measured(Checkpoint.open(tiny), progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told) and told[-1][0] == told[-1][1]


def test_what_was_measured_is_not_measured_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For whatever name and memory; but for another dtype, another number of threads, and where it is asked for."""
    counted = []

    def counting(*arguments: Any, **more: Any) -> Any:
        counted.append(arguments)
        return first.seconds

    checkpoint = Checkpoint.open(tiny)
    first = measured(checkpoint)
    monkeypatch.setattr(kept_profiles, "measured_seconds", counting)
    second = kept_or_measured(checkpoint, "float32", "other", 12345, quick=True)
    assert (second.seconds, second.name, second.memory_bytes) == (first.seconds, "other", 12345) and not counted
    kept_or_measured(checkpoint, torch.bfloat16, "here", quick=True)
    assert len(counted) == 1
    measured(checkpoint, again=True)
    assert len(counted) == 2
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    measured(checkpoint)
    assert len(counted) == 3


def test_a_thorough_profile_serves_who_wants_a_quick_one(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And not the other way round."""
    checkpoint = Checkpoint.open(tiny)
    quick = measured(checkpoint)
    more = {**quick.seconds, "norm": quick.seconds["head"]}
    monkeypatch.setattr(kept_profiles, "measured_seconds", lambda *arguments, **_: more)
    assert measured(checkpoint).seconds == quick.seconds
    assert kept_or_measured(checkpoint, torch.float32, "here").seconds == more
    assert measured(checkpoint).seconds == more


def _lie(*path: Any, to: Any) -> Callable[[str], str]:
    def change(text: str) -> str:
        found = whole = json.loads(text)
        for step in path[:-1]:
            found = found[step]
        found[path[-1]] = to
        return json.dumps(whole)

    return change


@pytest.mark.parametrize(
    "change",
    [
        lambda text: "",
        lambda text: text[:-20],
        lambda text: "[" * 100_000,
        _lie("of", "digest", to="sha256:" + "0" * 64),
        _lie("of", "where", "cpu", to="another"),
        _lie("of", "more", to=1),
        _lie("seconds", "up", "seconds", to=[0.1]),
        _lie("seconds", "up", "seconds", 0, to=-1.0),
        _lie("seconds", "up", to=None),
        _lie("seconds", "flying", to={"axes": [[1]], "seconds": [1.0]}),
        _lie("seconds", to={}),
        _lie("byte_cost_s", to=-1.0),
        _lie("read_bytes_s", to=-1.0),
        _lie("of", "version", to=1),
    ],
)
def test_a_broken_or_lying_file_is_not_believed(change: Callable[[str], str], tiny: Path, cache: Path) -> None:
    """What it says is measured anew, and kept in its place."""
    checkpoint = Checkpoint.open(tiny)
    first = measured(checkpoint)
    [file] = folder().iterdir()
    good = file.read_text()
    lied = change(good)
    file.write_text(lied)
    again = measured(checkpoint)
    assert set(again.seconds) == set(first.seconds)
    [file] = folder().iterdir()
    assert file.read_text() != lied
    assert measured(checkpoint).seconds == again.seconds
    assert json.loads(file.read_text())["of"] == json.loads(good)["of"]


def test_where_nothing_can_be_kept_is_measured_anyway(tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A home that cannot be written to keeps nobody from planning."""
    (cache / "trilby").write_text("a file where the folder should be")
    assert measured(Checkpoint.open(tiny)).seconds["up"]


def test_the_disk_is_measured_with_the_rest(tiny: Path) -> None:
    """And kept with it: bytes a second of the checkpoint's own files; nothing is said of a disk that fails."""
    first = measured(Checkpoint.open(tiny))
    assert first.read_bytes_s > 0
    assert measured(Checkpoint.open(tiny)).read_bytes_s == first.read_bytes_s
    [file] = folder().iterdir()
    assert json.loads(file.read_text())["read_bytes_s"] == first.read_bytes_s


def test_a_disk_that_could_not_be_measured_is_measured_next_time(
    tiny: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was computed serves meanwhile. A file that an earlier release has kept without a disk is not believed."""
    checkpoint = Checkpoint.open(tiny)

    def full(folder: Path) -> float:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(kept_profiles, "measured_read", full)
        assert measured(checkpoint).read_bytes_s == 0.0
    assert not list(folder().glob("device-*"))
    good = measured(checkpoint)
    assert good.read_bytes_s > 0
    [path] = folder().glob("device-*")
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(kept | {"read_bytes_s": 0.0}))
    assert measured(checkpoint).read_bytes_s > 0


def test_a_groups_profile_is_kept(cache: Path) -> None:
    """It can be read as it was, and takes the place of the one before, of the same devices."""
    first, second = made_up(TINY, [1e9, 2e9], 1e7), made_up(TINY, [1e9, 3e9], 1e7)
    assert keep(first) == keep(second)
    assert read(keep(second).read_bytes(), second.digest) == second
    assert keep(made_up(TINY, [1e9, 2e9, 3e9], 1e7)) != keep(first)
    assert len(list(folder().iterdir())) == 2, "nothing half-written is left"


def test_more_rows_and_wider_parts_take_longer(tiny_folder: Path) -> None:
    """At the ends of the grid, where noise is little beside the difference; in CPU time, since others compute too."""
    path = tiny_folder / "wide"
    if not path.exists():
        build_tiny("llama", path, hidden_size=256, intermediate_size=1024, max_position_embeddings=1024)
    for left in (2, 1, 0):  # A page fault may take longer than the least of products.
        seconds = measured_seconds(Checkpoint.open(path), torch.float32, quick=True, clock=time.thread_time)
        wrong = []
        for part in ("query", "up", "down", "output"):
            rows, widths = seconds[part].axes
            most = seconds[part](rows[-1], widths[-1])
            if not most > max(seconds[part](rows[0], widths[-1]), seconds[part](rows[-1], widths[0]) * 0.9):
                wrong.append(part)
        rows, positions, groups = seconds["attend"].axes
        attend = seconds["attend"]
        if not attend(rows[-1], positions[-1], groups[-1]) > attend(rows[0], positions[0], groups[-1]):
            wrong.append("attend")
        if not wrong:
            break
        assert left, wrong
    sizes = list(product(*seconds["up"].axes))
    assert len(sizes) == len(seconds["up"].seconds)


def test_an_unfinished_profile_cannot_be_made() -> None:
    """A group's profile has a link from each to each other."""
    whole = made_up(TINY, [1e9, 2e9, 3e9], 1e7)
    assert isinstance(assembled("d", "float32", whole.devices, whole.links), Profile)
    with pytest.raises(ValueError, match="no link from"):
        assembled("d", "float32", whole.devices, whole.links[1:])
