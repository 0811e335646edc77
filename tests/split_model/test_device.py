"""Layers, head and sampling on a device that is not the CPU: the same tokens, and no wait but for what is asked."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from checkpoints import DEMO
from elsewhere import elsewhere
from oracle import oracle_tokens, prompt_for
from stand_in import DEVICE, watched
from tiny_models import build_tiny

from split_model import device as devices
from split_model.bans import Bans
from split_model.checkpoint import Checkpoint
from split_model.device import choose_device, on_host, put
from split_model.reference import Reference
from split_model.sampling import NOBODY, SamplingParams, checked, drawn, picked, probabilities, ranked
from split_model.slices import whole
from split_model.stack import Span, Stack
from split_model.tree import Tree

GIB = 1 << 30


def with_gpus(monkeypatch: pytest.MonkeyPatch, *free: int) -> None:
    """As if there were GPUs with so many bytes free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(free))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(free))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda index: (free[index], 100 * GIB))


def test_auto_is_a_gpu_with_room(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one with most room, where that is enough for what will be loaded; else the CPU, as where there is none."""
    with_gpus(monkeypatch)
    assert choose_device("auto", 0) == torch.device("cpu")
    with_gpus(monkeypatch, 4 * GIB, 9 * GIB, 6 * GIB)
    assert choose_device("auto", 1 * GIB) == torch.device("cuda", 1)
    assert choose_device("auto", 4 * GIB) == torch.device("cuda", 1)
    assert choose_device("auto", 5 * GIB) == torch.device("cpu")


def test_auto_passes_over_a_gpu_that_cannot_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that another process has for itself alone."""
    with_gpus(monkeypatch, 9 * GIB, 6 * GIB)

    def free(index: int) -> tuple[int, int]:
        if not index:
            raise RuntimeError("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
        return 6 * GIB, 100 * GIB

    monkeypatch.setattr(torch.cuda, "mem_get_info", free)
    assert choose_device("auto", GIB) == torch.device("cuda", 1)


def test_a_device_that_is_named_is_taken_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """``cuda`` is the first GPU. What is not here, or no device, is refused with what to do."""
    with_gpus(monkeypatch, GIB, GIB)
    assert choose_device("cpu", 0) == torch.device("cpu")
    assert choose_device("cuda", 9 * GIB) == torch.device("cuda", 0)
    assert choose_device("cuda:1", 0) == torch.device("cuda", 1)
    with pytest.raises(ValueError, match=r"--device cuda:2: there is no such GPU; the last one here is cuda:1"):
        choose_device("cuda:2", 0)
    for word in ("gpu", "cuda:", "cuda:x", "", "mps"):
        with pytest.raises(ValueError, match="is none of cpu, cuda"):
            choose_device(word, 0)
    with_gpus(monkeypatch)
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(ValueError, match="built without CUDA; install one, or say --device cpu"):
        choose_device("cuda", 0)
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    with pytest.raises(ValueError, match="no GPU can be used here; see nvidia-smi, or say --device cpu"):
        choose_device("cuda", 0)


def test_the_stand_in_is_no_cpu() -> None:
    """It says what it is, refuses the CPU's tensors, gives nothing away unseen, and a copy is no view."""
    there = torch.ones(3, 4).to(DEVICE)
    assert there.device == DEVICE and torch.zeros(2, device=DEVICE).device == DEVICE
    with pytest.raises(RuntimeError, match="of the CPU among those of stand:0"):
        there + torch.ones(3, 4)
    with pytest.raises(RuntimeError, match="numpy"):
        there.numpy()
    with watched() as seen:
        here = there.cpu()
        there.add_(2)[1:].mul_(2)
        assert int(here.sum()) == 12 and int(there.sum()) == 60
        assert int(there.argmax()) == 4 and bool(there.nonzero().numel())
        put(torch.ones(2), DEVICE)
    assert seen.to_host == [(3, 4), (), (), (3, 4)] and seen.to_device == [(2,)]


@elsewhere
def test_numbers_come_in_one_copy(device: torch.device) -> None:
    """Floats and whole numbers of any shape, to the last bit."""
    floats = torch.tensor([0.1, -3e38, math.inf, 1e-45])
    ids = torch.tensor([[1, 2**40], [-1, 0]])
    wanted = on_host(floats, floats.sum(), ids)
    assert wanted == [floats.tolist(), math.inf, ids.tolist()] or math.isnan(wanted[1])
    there = [each.to(device) for each in (floats, floats.max(), ids)]
    with watched() as seen:
        assert on_host(*there) == on_host(floats, floats.max(), ids)
    assert len(seen.to_host) == (device == DEVICE)


@elsewhere
@pytest.mark.parametrize("name", ["llama-tied", "llama-biases", "qwen2-windows", "qwen3", "gpt2", "opt-post-norm"])
def test_layers_elsewhere_are_the_model(tiny_folder: Path, name: str, device: torch.device) -> None:
    """Prompt and decoding give transformers' tokens."""
    folder = tiny_folder / name
    if not folder.exists():
        build_tiny(name, folder)
    prompt = prompt_for(folder, 30)
    reference = Reference.load(folder, device=device)
    assert reference.embedding.weight.device == reference.head.device == reference.stack.device == device
    assert reference.generate(prompt, 20) == oracle_tokens(folder, prompt, 20)


@elsewhere
def test_rows_that_branch_are_the_cpus(device: torch.device) -> None:
    """A tree's rows and, once a path of it is kept, those behind it."""
    checkpoint = Checkpoint.open(DEMO)
    hidden = torch.randn(14, checkpoint.spec.hidden_size, generator=torch.Generator().manual_seed(3))
    found = []
    for place in (torch.device("cpu"), device):
        stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32, place)
        cache, rows = stack.new_cache(40), put(hidden, place)
        stack.forward(rows[:6], [Span(cache, 6)])
        tree = Tree(6)
        outs = [stack.forward(rows[6:12], [Span(cache, 6, tree.add((-1, -1, 0, 1, 2, 0)))])]
        cache.keep(6, tree.slots((0, 2, 4)))
        outs.append(stack.forward(rows[12:], [Span(cache, 2)]))
        found.append(torch.cat(outs).cpu())
    # Its rows have numbers up to some 700; either lies within 0.004 of what float64 gives.
    torch.testing.assert_close(found[1], found[0], atol=1e-2, rtol=1e-3)


PARAMS = [
    SamplingParams(),
    SamplingParams(repetition_penalty=1.3, logit_bias={3: 2.5, 9: -4.0}),
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.7, top_k=9, presence_penalty=0.5, frequency_penalty=0.2),
    SamplingParams(temperature=1.4, top_p=0.8, min_p=0.05, repetition_penalty=0.9),
    SamplingParams(temperature=0.001),
    SamplingParams(bans=Bans(tuple(range(0, 500, 3)), ((6,), (0, 1, 9), (4, 3, 0, 12)), (15, 18), 4)),
    SamplingParams(temperature=0.9, bans=Bans((), ((6,), (0, 1, 9), (4, 3, 0, 12)), (15, 18), 4)),
]


@elsewhere
@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
def test_a_seeds_tokens_are_the_same_everywhere(params: SamplingParams, device: torch.device) -> None:
    """The noise is of seed and position, wherever the logits are; and no step on the way waits for the device."""
    chance = torch.Generator().manual_seed(5)
    for position in range(60):
        logits = 3 * torch.randn(500, generator=chance)
        prompt, text = [3, 4, 3], list(range(position % 7))
        wanted = picked(logits, params, prompt, text, seed=77).tolist()
        there = logits.to(device)
        with watched() as seen:
            found = picked(there, params, prompt, text, seed=77)
        assert seen.to_host == []
        assert checked(found.tolist()) == wanted
        chances = probabilities(logits, params, prompt, text)
        torch.testing.assert_close(probabilities(there, params, prompt, text).cpu(), chances, atol=1e-6, rtol=0)
        assert ranked(chances.to(device), 5, position, 6) == ranked(chances, 5, position, 6)


@elsewhere
def test_nothing_can_be_drawn_from_nothing(device: torch.device) -> None:
    """Neither of probabilities that are all 0, nor of what is no number; of one id alone there is no second."""
    for chances in (torch.zeros(5), torch.full((5,), math.nan)):
        assert set(drawn(chances.to(device), 1, 1, 3).tolist()) <= {NOBODY}
        with pytest.raises(ValueError, match="nothing can be drawn"):
            ranked(chances.to(device), 1, 1, 3)
    assert ranked(torch.tensor([0.0, 0.0, 1.0]).to(device), 1, 1, 3) == [2]


def test_weights_are_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are read into the device's own tensors in blocks: the host never makes one as large as a weight."""
    monkeypatch.setattr("split_model.safetensors_file.BLOCK_BYTES", 1 << 12)
    checkpoint = Checkpoint.open(DEMO)
    smallest = checkpoint.spec.hidden_size**2 * 4
    with watched() as seen:
        stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.float32, DEVICE)
    moved = [4 * math.prod(shape) for shape in seen.to_device]
    assert sum(moved) >= stack.loaded_bytes and max(moved) <= max(1 << 12, smallest // 4)
    assert devices.__doc__ and "Jetson" in devices.__doc__
