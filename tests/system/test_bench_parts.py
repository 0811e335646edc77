"""What benchmarks measure with can be trusted, and the one for accelerators runs on a CPU too."""

from __future__ import annotations

import sys
from contextlib import closing
from pathlib import Path

import pytest
import torch
from bench import gpu_engine, gpu_rounds
from bench.draft_runs import DEEPEST, CountedLength, Counts
from bench.draft_speeds import Link, groups_of
from bench.draft_texts import Text
from bench.engine_devices import Devices
from bench.random_llama import TINY, mixed_lengths, prompts, write_checkpoint
from bench.rivals.llama_server import LlamaServer, LlamaUnavailable
from bench.rivals.transformers_batching import ContinuousBatching, StaticBatch
from bench.runs import Run, check
from tiny_models import build_tiny

from drafting.length import Fixed
from split_model.reference import Reference


@pytest.mark.slow
def test_gpu_engine_on_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The table for accelerators comes out on a CPU too."""
    sizes = "--layers 2 --hidden 64 --heads 4 --intermediate 96 --context 40 --rows 1 3 --copy-bytes 1000000 --tokens 3"
    monkeypatch.setattr(sys, "argv", ["gpu_engine", "--device", "cpu", *sizes.split()])
    monkeypatch.setattr(gpu_rounds, "REPEATS", 1)
    gpu_engine.main()
    output = capsys.readouterr().out
    assert "attention sdpa. 2 layers, hidden size 64" in output
    assert "\n| 1 | " in output and "\n| 3 | " in output
    assert "Prefill of one session" in output
    assert "\n| fused | sampled | 3 of 3 | " in output, "an agent's rounds"


def test_sessions_on_the_engine_say_what_one_process_says(tmp_path: Path) -> None:
    """The tokens that are counted are the model's own: those of the one-process reference, whatever is batched."""
    checkpoint = build_tiny("llama", tmp_path)
    reference = Reference.load(checkpoint)
    devices = Devices(checkpoint, torch.float32, sessions=4, positions=64, slack=20)
    try:
        for seed in (1, 2):
            generator = torch.Generator().manual_seed(seed)
            these = [torch.randint(3, 97, (length,), generator=generator).tolist() for length in (5, 40, 17, 9)]
            run = check(devices.run(these, 12), 4, 12)
            assert run.tokens == [reference.generate(prompt, 12) for prompt in these]
            assert all(times == sorted(times) and times[0] > run.began for times in run.times)
        assert min(devices.lags(these, 12)) >= -1e-3
    finally:
        devices.close()


def test_the_rivals_agree_with_each_other(tmp_path: Path) -> None:
    """transformers' static batch and its continuous batching give the same tokens for the same prompts."""
    checkpoint = write_checkpoint(TINY, tmp_path)
    these = prompts(TINY, [24] * 3, 1)
    static = check(StaticBatch(checkpoint).run(these, 6), 3, 6)
    with closing(ContinuousBatching(checkpoint, 3, 64, 6)) as batching:
        continuous = check(batching.run(these, 6), 3, 6)
    assert continuous.tokens == static.tokens


def test_a_child_that_ends_is_unavailable(tmp_path: Path) -> None:
    """An interpreter that gives up leaves a reason, not a hanging benchmark."""
    with pytest.raises(LlamaUnavailable, match="it needs: llama-cpp-python"):
        LlamaServer("false", tmp_path, 1)


def test_speeds_are_of_all_sessions() -> None:
    """Tokens a second over the whole run, and from when the last session had its first token."""
    run = Run(10.0, [[11.0, 12.0, 13.0], [12.5, 13.5, 14.0]], [[1, 2, 3], [4, 5, 6]])
    assert run.prefill_s == 2.5
    assert run.per_second == 6 / 4
    assert run.decoded_per_second == 3 / 1.5
    with pytest.raises(RuntimeError, match="of \\[2, 3\\] tokens"):
        check(Run(10.0, run.times, [[1, 2], [4, 5, 6]]), 2, 3)


@pytest.mark.parametrize("count", [1, 4, 8, 16])
def test_mixed_prompts_are_as_much_work(count: int) -> None:
    """Mixed lengths add up to as many tokens as equal ones, and are mixed."""
    lengths = mixed_lengths(count, 256)
    assert sum(lengths) == 256 * count
    assert len(set(lengths)) == count


def test_rounds_are_counted_by_depth() -> None:
    """A depth is tried where all before it was accepted and there was a token; the rule itself is asked and told."""
    length = CountedLength(Fixed(threshold=0.6, cap=8))
    for proposed, accepted in ((0, 0), (3, 3), (3, 1), (8, 7)):
        length.seen(proposed, accepted, 0.1)
    counts = length.counts
    assert (counts.rounds, counts.proposed, counts.accepted, counts.tau) == (4, 14, 11, 1 + 11 / 4)
    assert counts.tried == [3, 3, 2, 1, 1, 1] and counts.kept == [3, 2, 2, 1, 1, 1] and len(counts.by_depth) == DEEPEST
    assert length.seconds == [0.1] * 4 and not length.goes_on([0.5]) and length.goes_on([0.7])
    tree = CountedLength(Fixed(), 2)
    tree.seen(8, 2, 0.1)
    assert tree.counts.kept == [1, 1, 0, 0, 0, 0] == tree.counts.tried
    twice = Counts()
    twice.add(counts)
    twice.add(counts)
    assert twice.tau == counts.tau and twice.tried == [6, 6, 4, 2, 2, 2]


def test_a_round_has_a_text_of_every_kind() -> None:
    """And one round more than are counted, to warm up."""
    texts = [Text(kind, (number,), ()) for kind in ("a", "b") for number in range(2)]
    assert [[(text.kind, *text.prompt) for text in group] for group in groups_of(texts, 2)] == [
        [("a", 0), ("b", 0)],
        [("a", 1), ("b", 1)],
        [("a", 0), ("b", 0)],
    ]
    assert [Link(None).name, Link(20, 1).name] == ["local", "20 ms, 1 MB/s"]
