"""accelerate's disk offload: runs under an interpreter that has transformers and accelerate.

    PYTHON -m bench.rivals.accelerate_disk CHECKPOINT FOLDER PROMPT NEW

One line of JSON: tokens a second of a prompt of so many rows, and of so many tokens behind it, greedy; what accelerate
keeps of the weights is in FOLDER, which has to be on the disk that is measured.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch
import transformers


def drop_cached(*folders: Path) -> None:
    """Have the system forget what it holds of these files, as at a first use."""
    for file in (each for folder in folders for each in folder.rglob("*") if each.is_file()):
        opened = os.open(file, os.O_RDONLY)
        os.posix_fadvise(opened, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(opened)


@torch.inference_mode()
def main() -> None:
    """Load, run everything once for one token, and then measure."""
    checkpoint, folder, prompt, new = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.bfloat16, device_map={"": "disk"}, offload_folder=str(folder)
    )
    os.sync()
    drop_cached(checkpoint, folder)
    times = []
    for rows in (1, prompt):
        ids = torch.arange(3, 3 + rows)[None]
        cache, times = None, [time.perf_counter()]
        for _ in range(1 + (new if rows == prompt else 0)):
            said = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1)
            ids, cache = said.logits[:, -1:].argmax(-1), said.past_key_values
            times.append(time.perf_counter())
    print(json.dumps({"prompt": prompt / (times[1] - times[0]), "generated": new / (times[-1] - times[1])}), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
