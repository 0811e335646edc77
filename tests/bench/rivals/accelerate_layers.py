"""accelerate's layers in one process: runs under an interpreter that has transformers and accelerate.

    PYTHON -m bench.rivals.accelerate_layers CORE

A line ``{"config": of the model, "rows": of the prompt, "runs": n}`` has it make a model with random weights, and say
so. Another line has it run the prompt so often, and once before; it answers ``{"seconds": [...]}``.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib import import_module
from typing import Any

import torch


@torch.inference_mode()
def seconds(config: dict[str, Any], rows: int, runs: int) -> list[float]:
    """Of each run, the first left out; blocks in between, until it is told to begin."""
    accelerate, transformers = import_module("accelerate"), import_module("transformers")
    made = transformers.AutoConfig.for_model(**config)
    model = transformers.AutoModel.from_config(made).eval()
    # On one device it hooks into every module, as where there are several.
    model = accelerate.dispatch_model(model, {"": "cpu"}, main_device="cpu", force_hooks=True)
    hidden = torch.randn(1, rows, made.hidden_size, generator=torch.Generator().manual_seed(1))
    _say({"loaded": True})
    sys.stdin.readline()
    found = []
    for _ in range(1 + runs):
        began = time.perf_counter()
        model(inputs_embeds=hidden, use_cache=False)
        found.append(time.perf_counter() - began)
    return found[1:]


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {int(sys.argv[1])})
    _say({"seconds": seconds(**json.loads(sys.stdin.readline()))})
