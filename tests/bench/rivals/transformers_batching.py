"""transformers' two ways to generate for several sessions at once: a padded static batch, and continuous batching."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from bench.runs import Run
from transformers.generation.configuration_utils import ContinuousBatchingConfig, GenerationConfig
from transformers.generation.stopping_criteria import StoppingCriteria, StoppingCriteriaList

from split_model.load_apart import load_apart

VERSION: str = transformers.__version__

PAGE = 256
"""Positions in a page of transformers' cache, its default."""

BATCH_ROWS = 512
"""Rows in one of its batches. Its default, 8192, takes a mask of as many rows times all positions of the cache."""


class _Clock(StoppingCriteria):  # type: ignore[misc]
    """Never stops anything; notes when each token was there."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **_: Any) -> torch.Tensor:
        self.times.append(time.perf_counter())
        return torch.zeros(input_ids.shape[0], dtype=torch.bool)


def load(checkpoint: Path) -> Any:
    """The model in bfloat16 with SDPA attention."""
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, attn_implementation="sdpa"
    )
    return model.eval()


class StaticBatch:
    """``model.generate``, on the thread that makes it."""

    def __init__(self, checkpoint: Path) -> None:
        self._model = load(checkpoint)

    def run(self, prompts: list[list[int]], new: int) -> Run:
        """All prompts at once, of one length: no padding, so its best case."""
        clock = _Clock()
        ids = torch.tensor(prompts)
        began = time.perf_counter()
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            min_new_tokens=new,
            max_new_tokens=new,
            stopping_criteria=StoppingCriteriaList([clock]),
        )
        return Run(began, [clock.times] * len(prompts), out[:, ids.shape[1] :].tolist())


class ContinuousBatching:
    """transformers' continuous batching, which runs on a thread of its own until it is closed.

    Set up once, since a server would be: only the requests are timed. Sharing of prefixes stays on, as it is by
    default; the prompts have none.
    """

    def __init__(self, checkpoint: Path, sessions: int, positions: int, new: int) -> None:
        """Room for ``sessions`` of ``positions`` positions, of which ``new`` are generated."""
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
        # Apart, as ours are loaded: its own thread is then the only one with a team of OpenMP's.
        self._manager = load_apart(lambda: _manager(load(checkpoint), sessions, positions, new))
        self._manager.start()

    def run(self, prompts: list[list[int]], new: int) -> Run:
        """All prompts at once, of any lengths. Raises RuntimeError where the thread has died or a request failed."""
        began = time.perf_counter()
        names = self._manager.add_requests(prompts, max_new_tokens=new, record_timestamps=True)
        done: dict[str, Any] = {}
        while len(done) < len(names):
            result = self._manager.get_result(timeout=1)
            if result is None and not self._manager.is_running():
                raise RuntimeError("transformers' generation thread has ended")
            if result is not None and result.is_finished():
                if result.error is not None:
                    raise RuntimeError(f"transformers failed a request: {result.error}")
                done[result.request_id] = result
        ordered = [done[name] for name in names]
        return Run(began, [each.timestamps for each in ordered], [each.generated_tokens for each in ordered])

    def close(self) -> None:
        """End the thread."""
        self._manager.stop(block=True)


def _manager(model: Any, sessions: int, positions: int, new: int) -> Any:
    manager = model.init_continuous_batching(
        generation_config=GenerationConfig(do_sample=False, max_new_tokens=new, eos_token_id=-1, pad_token_id=0),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=PAGE,
            # A page more than needed for each: old ones are kept for sharing, and freed when there is no other.
            num_blocks=sessions * (-(-positions // PAGE) + 1),
            max_batch_tokens=BATCH_ROWS,
            max_requests_per_batch=sessions,
        ),
    )
    manager.warmup()
    return manager
