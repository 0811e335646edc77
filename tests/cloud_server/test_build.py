"""A cloud server from its settings: pages that fit beside the layers, and clear words where something does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from cloud_server import build as built
from cloud_server.build import build
from cloud_server.cache.memory import page_count
from cloud_server.cache.pool import KVPool
from cloud_server.config import CloudConfig
from cloud_server.stages.plan import stage_layers
from split_model.checkpoint import Checkpoint
from split_model.slices import Slice, slice_bytes

FREE = 2_000_000


def test_more_pages_than_memory(tiny: Path) -> None:
    """Says so, and which setting to change."""
    with pytest.raises(ValueError, match="--kv-mb"):
        build(CloudConfig(model=str(tiny), split=1, kv_mb=10**9))


def test_no_layers_between(tiny: Path) -> None:
    """A device that keeps all layers has a cloud all the same; its pages take no memory, so it has as many as can be
    used, whatever they were allowed to take."""
    layers = Checkpoint.open(tiny).spec.num_layers
    for kv_mb in (0, 1):
        server = build(
            CloudConfig(
                model=str(tiny), split=layers, kv_mb=kv_mb, max_sessions=3, max_model_len=100, page_positions=32
            )
        )
        assert server.engine.ledger.pages.count == 3 * 4


def test_stages_that_share_a_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages are taken of what the layers of the other stages, which load later, will leave."""
    monkeypatch.setattr(built, "free_bytes", lambda device: FREE)
    config = CloudConfig(model=str(tiny), split=0, stages=2, page_positions=8)
    spec = Checkpoint.open(tiny).spec
    second = stage_layers(0, spec.num_layers, 2)[1]
    weights = slice_bytes(spec, Slice(second.start, second.stop), torch.float32)
    page_bytes = KVPool.bytes_of_page(spec.num_layers, spec.num_kv_heads, spec.head_dim, torch.float32, 8)
    expected = page_count(FREE - weights, page_bytes, 10**9)
    assert 1 < expected < page_count(FREE, page_bytes, 10**9)
    assert build(config).engine.ledger.pages.count == expected


def test_stages_with_a_memory_each(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fullest one says how many pages there are for all, since every stage has the same."""
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = CloudConfig(model=str(tiny), split=0, stages=2, page_positions=8, device="cuda")
    spec = Checkpoint.open(tiny).spec
    stages = stage_layers(0, spec.num_layers, 2)
    second = slice_bytes(spec, Slice(stages[1].start, stages[1].stop), torch.float32)
    pages = []
    for free in ((FREE, FREE), (FREE, FREE // 2 + second), (FREE // 2, FREE)):
        monkeypatch.setattr(built, "free_bytes", lambda device, free=free: free[device.index])
        pages.append(built._page_count(config, spec, stages, "cuda"))
    page_bytes = KVPool.bytes_of_page(len(stages[0]), spec.num_kv_heads, spec.head_dim, torch.float32, 8)
    assert pages[1] == pages[2] == page_count(FREE // 2, page_bytes, 10**9)
    assert pages[0] == page_count(FREE - second, page_bytes, 10**9) > pages[1]


def test_a_device_that_is_not_there(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused before anything is loaded; ``auto`` takes what is there, and gives each stage of a pipeline its
    own where there are several."""
    with pytest.raises(ValueError, match="--device cuda:99"):
        build(CloudConfig(model=str(tiny), device="cuda:99"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: ((1 + index) << 33, 1 << 40))
    spec = Checkpoint.open(tiny).spec
    for device, stages, wanted in (("auto", 1, "cuda:1"), ("auto", 2, "cuda"), ("cuda", 2, "cuda"), ("cpu", 2, "cpu")):
        config = CloudConfig(model=str(tiny), split=0, stages=stages, device=device)
        assert built._device(config, spec, Slice(0, spec.num_layers)) == wanted
