"""What packing saves of rows, and how fast it is: of real models' hidden states behind their first layers.

    PYTHONPATH=tests python -m bench.packing [--rounds 9]

Rows of real texts, in each dtype that rows are sent in: the share of bytes that is left, for a whole prompt and for
seven rows, about a round of drafting; and bytes of rows packed and unpacked in a second, of as many rows as a chunk
has of a hidden size of 4096, random ones with the same exponents.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import torch
from bench.page import machine, table, write_section
from checkpoints import DATA, DEMO

from device_agent.answering.tokenizer import Tokenizer
from device_agent.chain.model_ends import DeviceParts
from split_model.checkpoint import Checkpoint
from split_model.packed_rows import pack, shortest, unpack
from split_model.stack import Span
from wire.limits import PACK_BYTES

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
MODELS = {
    "demo model": (DEMO, 2),
    "tinystories-656k": (DATA / "models" / "tinystories-656k", 1),
    "stories-260k": (DATA / "models" / "stories-260k", 2),
}
"""By name: where a model is, and the layers of its input submodel."""

TEXT = DATA / "text" / "tinystories_sample.txt"
PROMPT, ROUND = 256, 7
CHUNK, HIDDEN = 128, 4096


def shallow_rows(path: Path, split: int, dtype: torch.dtype, text: str) -> torch.Tensor:
    """The rows ``[tokens, hidden_size]`` that a device sends for the first tokens of ``text``."""
    parts = DeviceParts.load(Checkpoint.open(path), split, 0, dtype)
    ids = Tokenizer.load(path, ()).text(text[: 20 * PROMPT])[:PROMPT]
    assert len(ids) == PROMPT, "the text is too short"
    with torch.inference_mode():
        return parts.front.forward(
            parts.embedding.forward(ids), [Span(parts.front.new_cache(len(ids)), len(ids), None)]
        )


def demo_text() -> str:
    """What is said in the demo model's held-out chats, where no other text is at hand."""
    chats = map(json.loads, (DEMO / "heldout.jsonl").read_text(encoding="utf-8").splitlines())
    return " ".join(turn["content"] for chat in chats for turn in chat["messages"])


def left(rows: torch.Tensor) -> float:
    """The share of their bytes that rows take on a slow link, which are packed where they are enough."""
    return len(shortest(rows, rows.nbytes >= PACK_BYTES)[2]) / rows.nbytes


def bytes_s(work: Callable[[], object], length: int, rounds: int) -> float:
    """Bytes of rows a second, the median of ``rounds``."""
    times = []
    for _ in range(rounds):
        began = perf_counter()
        work()
        times.append(perf_counter() - began)
    return length / statistics.median(times)


def like(rows: torch.Tensor) -> torch.Tensor:
    """A chunk of a large model's size, its numbers drawn from these rows'."""
    numbers = rows.reshape(-1)
    drawn = torch.randint(0, len(numbers), (CHUNK * HIDDEN,), generator=torch.Generator().manual_seed(0))
    return numbers[drawn].view(CHUNK, HIDDEN)


def main() -> None:
    """Measure all models that are at hand, and write the section."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = TEXT.read_text(encoding="utf-8") if TEXT.is_file() else demo_text()
    lines, missing = [], []
    for name, (path, split) in MODELS.items():
        if not path.is_dir():
            missing.append(name)
            continue
        for dtype_name, dtype in DTYPES.items():
            rows = shallow_rows(path, split, dtype, text)
            large = like(rows)
            packed = pack(large)
            speeds = [
                bytes_s(work, large.nbytes, arguments.rounds)
                for work in (lambda large=large: pack(large), lambda packed=packed: unpack(*packed))
            ]
            shares = [f"{left(part):.2f}" for part in (rows, rows[:ROUND])]
            lines.append([name, dtype_name, *shares, *(f"{speed / 1e6:.0f}" for speed in speeds)])
    columns = ["model", "dtype", f"{PROMPT} rows: left", f"{ROUND} rows: left", "packed, MB/s", "unpacked, MB/s"]
    said = f"Measured on {machine()}; one thread, medians of {arguments.rounds}."
    absent = f"\n\nNot at hand: {', '.join(missing)}." if missing else ""
    write_section("packing", f"{said}\n\n{table(columns, lines)}{absent}")


if __name__ == "__main__":
    main()
