"""A model that has less memory than its weights take answers as transformers does."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from group_writes import Written, ids, oracle_written
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import oracle_tokens
from reading_models import text_model, translator

from device_agent.agent_process import Device
from device_agent.answering.reading import ServedReader
from device_agent.build import build
from device_agent.config import DeviceConfig
from device_agent.speculative.generation import Generation
from device_agent.speculative.short_memory import ShortMemory
from device_agent.speculative.way import DraftingWay, Tally
from drafting.choosing import Chooser
from service.modes import NO_DRAFT
from split_model.checkpoint import Checkpoint
from split_model.encoder import Encoder
from split_model.errors import ModelError
from split_model.offload.budget import BudgetTooSmall
from split_model.sampling import SamplingParams
from split_model.slices import slice_bytes, whole

PROMPT = [7, 11, 13, 17, 19, 23, 29, 31]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("draft", "split", "memory", "drafts"),
    [
        ((NO_DRAFT,), 0, 2 / 3, "none"),
        pytest.param(("lookup",), 0, 2 / 3, "lookup", marks=pytest.mark.slow),
        pytest.param(("adapter",), 2, 0.75, "adapter", marks=pytest.mark.slow),
        ((), 2, 0.75, "hybrid"),
        ((), 0, 0.4, "lookup"),
    ],
)
async def test_tokens_are_transformers_with_less_memory_than_they_take(
    draft: tuple[str, ...], split: int, memory: float, drafts: str
) -> None:
    """Plainly and with drafts, whose own layers stay; what is loaded, drafters included, is less than the budget. Where
    nobody says what drafts, the drafter that was trained for the model does, if it has room, else the text itself."""
    spec = Checkpoint.open(DEMO).spec
    budget = int(slice_bytes(spec, whole(spec), torch.float32) * memory)
    settings = {"mode": "local", "draft": draft, "max_model_len": 64, "memory": f"{budget / 1000:.3f}kB"}
    device = build(DeviceConfig(model=str(DEMO), **settings))  # type: ignore[arg-type]
    try:
        assert device.loader is not None and device.loader.units
        assert device.loaded_bytes + 4 * device.writer.ways.drafters.parameters < budget
        assert device.writer.ways.drafters.default == drafts
        assert min(unit.layer for unit in device.loader.units) >= split
        way = device.writer.ways.get("")
        tokens, tally = await _answered(device, way, 20)
        assert tokens == oracle_tokens(DEMO, tuple(PROMPT), 20)
        assert device.loader.counts.uses >= (tally.rounds - 1) * len(device.loader.units)
    finally:
        device.stop()


async def _answered(device: Device, way: DraftingWay, tokens: int) -> tuple[list[int], Tally]:
    session = device.writer.chain.open(len(PROMPT) + tokens, drafter=way.drafter)
    generation = Generation(session, Chooser(SamplingParams(), PROMPT, 0, max_tokens=tokens), way)
    try:
        return [chosen.token async for chosen in generation.run()], generation.tally
    finally:
        session.close()


def test_where_all_stays_nothing_drafts() -> None:
    """A step of a small model takes hardly longer than a step of its drafter."""
    device = build(DeviceConfig(model=str(DEMO), mode="local", memory="1GB", max_model_len=64))
    assert device.loader is None and device.writer.ways.drafters.default == NO_DRAFT
    device.stop()


@given(st.integers(36_000_000, 80_000_000), st.integers(16, 128))
@settings(max_examples=12, deadline=None)
def test_what_drafts_is_taken_off_the_memory(budget: int, positions: int) -> None:
    """The residence of a model and its drafters together keep to the budget, whichever drafts; its layers are not
    streamed."""
    short = ShortMemory(Checkpoint.open(DEMO), "float32", DEMO / "drafters", positions)
    small = str(DEMO / "drafters" / "small")
    assert short.drafter_bytes((small,)) > 4 * 487_584 and short.drafter_bytes(("hybrid",)) > 4 * 294_912
    assert short.drafter_bytes(("none", "lookup")) == 0
    for words, split in ((("hybrid",), 2), ((small,), 0)):
        stays = short.alone(budget, 64, words, split)
        assert stays.needed + short.drafter_bytes(words) <= budget or not stays.streamed
        assert all(unit.layer >= split for unit in stays.streamed)
    said, _, stays = short.drafted(budget, 64)
    assert (said == (NO_DRAFT,)) == (not stays.streamed)
    assert short.beside(0) == ((), 2) and short.beside(1000) == (("lookup",), 0)


async def test_a_model_that_reads_reads_the_same(tmp_path: Path) -> None:
    """Its rows with half of the memory are those with enough, but for how packed matrices round."""
    folder = text_model("bert", tmp_path / "bert", hidden_size=96, intermediate_size=768, num_hidden_layers=8)
    spec = Checkpoint.open(folder, None).spec
    weights = slice_bytes(spec, whole(spec), torch.float32)
    found = []
    for memory in ("", f"{(weights // 2 + 4_500_000) / 1000:.3f}kB"):
        device = build(DeviceConfig(model=str(folder), mode="local", device="cpu", memory=memory))
        assert isinstance(device.model, ServedReader)
        reader = device.model.reader
        assert (device.loader is not None) == bool(memory)
        found.append(await reader.read([([5, 6, 7, 8], None)], lambda rows, lengths: rows.clone()))
        device.stop()
    torch.testing.assert_close(*found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("share", [0.8, 0.35])
async def test_a_model_that_writes_of_a_text_writes_the_same(share: float, tmp_path: Path) -> None:
    """T5 with less memory than it takes: what is read at each use is the encoder's, which is used once a text, and of
    the decoder only what that is too little for."""
    sizes = {"d_model": 128, "d_ff": 512, "num_layers": 6, "num_decoder_layers": 6}
    folder = translator("t5-gated", tmp_path / "t5", **sizes)
    spec = Checkpoint.open(folder, "cross").spec
    halves = [spec] if spec.reader is None else [spec, spec.reader]
    weights = sum(slice_bytes(half, whole(half), torch.float32) for half in halves)
    device = build(
        DeviceConfig(model=str(folder), mode="local", memory=f"{share * weights / 1000:.3f}kB", max_model_len=64)
    )
    try:
        assert device.loader is not None and device.loaded_bytes < share * weights
        of_decoder = [unit for unit in device.loader.units if unit.layer >= spec.reader_layers]
        assert bool(of_decoder) == (share < 0.5)
        assert len(device.loader.units) - len(of_decoder) == 2 * spec.reader_layers or not of_decoder
        for seed in range(2):
            text = ids(20, seed)
            assert await Written(device.writer.chain).of(text) == oracle_written(folder, text)
    finally:
        device.stop()


def test_what_is_missing_is_said_with_what_to_do() -> None:
    """Too little even for one half of a layer at a time."""
    config = DeviceConfig(model=str(DEMO), mode="local", memory="100kB", max_model_len=64)
    with pytest.raises(ValueError, match=r"--memory is too little: .* MB are needed at least.*--max-model-len"):
        build(config)


def test_what_is_said_to_be_needed_is_enough() -> None:
    """Drafters included, of the memory that was given."""
    short = ShortMemory(Checkpoint.open(DEMO), "float32", DEMO / "drafters", 64)
    with pytest.raises(BudgetTooSmall) as too_small:
        short.alone(5_000_000, 64, ("hybrid",), 2)
    assert too_small.value.budget == 5_000_000
    assert short.alone(too_small.value.needed, 64, ("hybrid",), 2).streamed
    with pytest.raises(BudgetTooSmall):
        short.alone(too_small.value.needed - 1, 64, ("hybrid",), 2)


@pytest.mark.parametrize("reads", [False, True])
def test_where_building_fails_nothing_is_read_on(reads: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread of a loader goes on behind the error."""
    before, broken = threading.enumerate(), ModelError("broken")

    def fails(*args: object) -> None:
        raise broken

    if reads:
        folder = text_model("bert", tmp_path / "bert", hidden_size=96, intermediate_size=768, num_hidden_layers=8)
        spec = Checkpoint.open(folder, None).spec
        memory = slice_bytes(spec, whole(spec), torch.float32) // 2 + 4_500_000
        monkeypatch.setattr(Encoder, "load", fails)
    else:
        folder, memory = DEMO, 36_000_000
    config = DeviceConfig(
        model=str(folder), mode="local", device="cpu", memory=f"{memory / 1000:.3f}kB", max_model_len=64
    )
    with pytest.raises(ModelError) as raised:
        build(config, load=fails)  # type: ignore[arg-type]
    assert raised.value is broken
    assert not [thread for thread in threading.enumerate() if thread.name == "loader" and thread not in before]


def test_where_it_means_nothing_it_is_refused() -> None:
    """Rather than forgotten."""
    with pytest.raises(ValueError, match="neither"):
        build(DeviceConfig(model=str(DEMO), memory="1GiB", mode="hat"))
