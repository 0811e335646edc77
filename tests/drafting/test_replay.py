"""Work recorded once for each shape and replayed: the same numbers, nobody's memory but its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from drafter_conformance import check_drafter
from elsewhere import GPU, needs_gpu
from structlog.testing import capture_logs
from tiny_drafters import DIGEST, SPLIT, adapter_weights, random_head, tiny_spec

from drafting.adapter import AdapterDrafter
from drafting.drafter_file import write_drafter
from drafting.replay import SHAPES, Tensors, Work, replayed

CPU = torch.device("cpu")


def product(one: torch.Tensor, other: torch.Tensor) -> Tensors:
    return one @ other, one + 1


class Recorder:
    """Records as CUDA does, as far as that shows: with inputs and outputs of its own, which every replay writes to."""

    def __init__(self) -> None:
        self.recorded: list[tuple[int, ...]] = []

    def __call__(self, work: Work, given: Tensors) -> Work:
        self.recorded.append(tuple(given[0].shape))
        inputs = [each.clone() for each in given]
        outputs = work(*inputs)

        def replay(*new: torch.Tensor) -> Tensors:
            for own, each in zip(inputs, new, strict=True):
                own.copy_(each)
            for own, each in zip(outputs, work(*inputs), strict=True):
                own.copy_(each)
            return tuple(each.clone() for each in outputs)

        return replay


def test_on_the_cpu_nothing_is_in_between() -> None:
    """The work is the work."""
    assert replayed(product, CPU) is product


def test_a_shape_is_recorded_once() -> None:
    """What was given out stays as it was; more shapes than are worth it are simply computed."""
    recorder = Recorder()
    work = replayed(product, CPU, recorder)
    kept: list[tuple[Tensors, Tensors]] = []
    for rows in [*range(1, SHAPES + 3), *range(1, SHAPES + 3)]:
        given = torch.randn(rows, 3), torch.randn(3, 2)
        kept.append((work(*given), product(*given)))
    assert recorder.recorded == [(rows, 3) for rows in range(1, SHAPES + 1)]
    for got, wanted in kept:
        torch.testing.assert_close(got, wanted, atol=0, rtol=0)


def test_what_cannot_be_recorded_is_computed() -> None:
    """One line in the log, however often it is asked for, and in whatever shapes."""

    def refuse(work: Work, given: Tensors) -> Work:
        raise RuntimeError("operation not permitted when stream is capturing")

    work = replayed(product, CPU, refuse)
    with capture_logs() as lines:
        for rows in (1, 1, 2):
            given = torch.randn(rows, 3), torch.randn(3, 2)
            torch.testing.assert_close(work(*given), product(*given), atol=0, rtol=0)
    assert [line["log_level"] for line in lines] == ["warning"]


@pytest.mark.parametrize(("kind", "form"), [("adapter", ""), ("fused", "keep-mlp")])
@pytest.mark.parametrize("device", [CPU, pytest.param(GPU, marks=needs_gpu)], ids=["recorder", "cuda"])
def test_a_drafter_whose_steps_are_replayed_conforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, form: str, device: torch.device
) -> None:
    """It says what it says; on a GPU the graphs are CUDA's."""
    recorders: list[Recorder] = []

    def recording(work: Work, device: torch.device) -> Callable[..., Tensors]:
        recorders.append(Recorder())
        return replayed(work, device, recorders[-1] if device == CPU else None)

    monkeypatch.setattr("drafting.adapter_layer.replayed", recording)
    spec, path = tiny_spec(), tmp_path / "drafter.safetensors"
    write_drafter(path, kind, DIGEST, SPLIT, {}, adapter_weights(spec, kind, form), form)
    drafter = AdapterDrafter.load(path, spec, DIGEST, SPLIT, torch.float32, random_head(spec, device=device), kind)
    check_drafter(drafter, spec.hidden_size, device)
    if device == CPU:
        assert [len(each.recorded) for each in recorders] == [1, 1], "of one row alone"
