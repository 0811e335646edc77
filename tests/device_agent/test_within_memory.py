"""A model that has less memory than its weights take answers as transformers does."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from clouds import greedy
from oracle import oracle_tokens
from reading_models import text_model

from device_agent.answering.reading import ServedReader
from device_agent.build import build
from device_agent.chain.reader import Reader
from device_agent.config import DeviceConfig
from split_model.checkpoint import Checkpoint
from split_model.slices import slice_bytes, whole

PROMPT = [7, 11, 13, 17, 19, 23, 29, 31]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("draft", [(), ("lookup",)])
async def test_tokens_are_transformers_with_two_thirds_of_their_memory(draft: tuple[str, ...]) -> None:
    """Plainly and with drafts, whose own layers stay; what is loaded is less than the budget."""
    spec = Checkpoint.open(DEMO).spec
    budget = slice_bytes(spec, whole(spec), torch.float32) * 2 // 3
    settings = {"mode": "local", "draft": draft, "max_model_len": 64, "memory": f"{budget / 1000:.3f}kB"}
    device = build(DeviceConfig(model=str(DEMO), **settings))  # type: ignore[arg-type]
    try:
        assert device.loader is not None and device.loader.units and device.loaded_bytes < budget
        if draft:
            assert min(unit.layer for unit in device.loader.units) >= device.config.split
        assert await greedy(device.writer.chain, PROMPT, 20) == oracle_tokens(DEMO, tuple(PROMPT), 20)
        assert device.loader.counts.uses >= 19 * len(device.loader.units)
    finally:
        device.stop()


async def test_a_model_that_reads_reads_the_same(tmp_path: Path) -> None:
    """Its rows with half of the memory equal those with enough."""
    folder = text_model("bert", tmp_path / "bert", hidden_size=96, intermediate_size=768, num_hidden_layers=8)
    spec = Checkpoint.open(folder, None).spec
    weights = slice_bytes(spec, whole(spec), torch.float32)
    found = []
    for memory in ("", f"{(weights // 2 + 4_500_000) / 1000:.3f}kB"):
        device = build(DeviceConfig(model=str(folder), mode="local", device="cpu", memory=memory))
        assert isinstance(device.model, ServedReader)
        reader: Reader = device.model.reader
        assert (device.loader is not None) == bool(memory)
        found.append(await reader.read([([5, 6, 7, 8], None)], lambda rows, lengths: rows.clone()))
        device.stop()
    assert torch.equal(*found)


def test_what_is_missing_is_said_with_what_to_do() -> None:
    """Too little even for one half of a layer at a time."""
    config = DeviceConfig(model=str(DEMO), mode="local", memory="100kB", max_model_len=64)
    with pytest.raises(ValueError, match=r"--memory is too little: .* MB are needed at least.*--max-model-len"):
        build(config)


@pytest.mark.parametrize(
    ("settings", "why"),
    [({"mode": "hat"}, "neither"), ({"mode": "local", "device": "cuda"}, "for CPUs")],
)
def test_where_it_means_nothing_it_is_refused(settings: dict[str, str], why: str) -> None:
    """Rather than forgotten."""
    with pytest.raises(ValueError, match=why):
        build(DeviceConfig(model=str(DEMO), memory="1GiB", **settings))  # type: ignore[arg-type]
