"""accelerate's disk offload: runs under an interpreter that has transformers and accelerate.

    PYTHON -m bench.rivals.accelerate_disk CHECKPOINT FOLDER DTYPE

Says a line when it has imported everything. A line ``{}`` has it load, and say so; ``{"prompt": [ids], "new": n}`` is
answered by ``{"tokens": [ids], "times": [seconds since the prompt was read]}``, greedy. What accelerate keeps of the
weights is in FOLDER, which has to be on the disk that is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
import transformers


def drop_cached(*folders: Path) -> None:
    """Have the system forget what it holds of these files, as at a first use."""
    for file in (each for folder in folders for each in folder.rglob("*") if each.is_file()):
        opened = os.open(file, os.O_RDONLY)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)


@torch.inference_mode()
def generated(model: Any, prompt: list[int], new: int) -> dict[str, list[Any]]:
    """The tokens of a prompt and what follows it, and when each of these was there."""
    ids, cache, tokens, times = torch.tensor([prompt]), None, list[int](), list[float]()
    began = 0.0
    for _ in range(1 + new):
        said = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
        ids, cache = said.logits[:, -1:].argmax(-1), said.past_key_values
        tokens.append(int(ids))
        began = began or time.perf_counter()
        times.append(time.perf_counter() - began)
    return {"tokens": tokens, "times": times[1:]}


def main() -> None:
    """See above."""
    checkpoint, folder, dtype = Path(sys.argv[1]), Path(sys.argv[2]), getattr(torch, sys.argv[3])
    transformers.utils.logging.disable_progress_bar()
    _say({"version": f"accelerate {__import__('accelerate').__version__}"})
    sys.stdin.readline()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=dtype, device_map={"": "disk"}, offload_folder=str(folder)
    )
    os.sync()
    drop_cached(checkpoint, folder)
    _say({"loaded": True})
    for line in sys.stdin:
        work = json.loads(line)
        _say(generated(model, work["prompt"], work["new"]))


def _say(message: dict[str, Any]) -> None:
    print(json.dumps(message), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
