"""One step of the cloud's layers on a GPU, against what its memory and its matrix units can do; and an agent's rounds
there, beside the CPU's.

    PYTHONPATH=tests python -m bench.gpu_engine [--device cuda] [--layers 32] [--hidden 4096] [--context 1024]
                                                [--rows 1 4 8 16]

The rounds are those of the demo model, whole, in float32, in this process. The layers are by default the middle of a
model of 7 billion parameters in bfloat16, with random weights made in memory. Prints its tables and writes nothing,
since the machine is seldom the one that the other tables come from.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
from pathlib import Path

import torch
from bench.gpu_rounds import rounds
from bench.page import table
from bench.peaks import copy_bytes_per_s, product_flops, seconds
from tqdm import tqdm

from cloud_server.cache.batch import PagedBatch
from cloud_server.cache.pool import KVPool
from cloud_server.cache.pool_attention import BACKENDS, choose_backend
from cloud_server.cache.span import PagedSpan
from split_model.checkpoint import Checkpoint
from split_model.slices import whole
from split_model.spec import ModelSpec
from split_model.stack import Stack
from split_model.weight_parts import WeightPart

DTYPE = torch.bfloat16
PAGE_POSITIONS = 32
COPY_BYTES = 1 << 30


class RandomCheckpoint(Checkpoint):
    """Every tensor that the spec asks for, without a file: the same random numbers over and over; norms are ones."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(Path(), spec, {})
        largest = spec.hidden_size * max(spec.intermediate_size, spec.hidden_size)
        self._numbers = torch.randn(largest, dtype=DTYPE) * spec.hidden_size**-0.5

    def check(self, part: WeightPart) -> None:
        """Every tensor is there."""

    def read_into(self, part: WeightPart, out: torch.Tensor) -> None:
        """Fills ``out``."""
        out.copy_(self._numbers[: out.numel()].view(out.shape) if out.dim() > 1 else torch.ones_like(out))


class Sessions:
    """Sessions of the same length on one stack: their pages lie one after the other."""

    def __init__(self, stack: Stack, count: int, context: int, attention: str) -> None:
        """Room for ``count`` sessions of ``context`` positions and one row more."""
        spec = stack.spec
        self._stack = stack
        self._context = context
        self._pages = -(-(context + 1) // PAGE_POSITIONS)
        self._backend = choose_backend(stack.device, DTYPE, attention, spec.head_dim)
        self.backend = self._backend.name
        self._pool = KVPool(
            len(stack.blocks),
            stack.kv_heads,
            spec.head_dim,
            DTYPE,
            stack.device,
            count * self._pages,
            PAGE_POSITIONS,
        )
        self.kv_bytes = KVPool.bytes_of_page(len(stack.blocks), stack.kv_heads, spec.head_dim, DTYPE, 1)
        """Bytes of one position."""
        generator = torch.Generator().manual_seed(1)
        rows = torch.randn(max(count, context), spec.hidden_size, generator=generator)
        self._hidden = rows.to(stack.device, DTYPE)

    def prefill(self, session: int) -> torch.Tensor:
        """All ``context`` positions of a session in one step; its outputs."""
        return self._run([self._span(session, 0, self._context)])

    def decode(self, sessions: int) -> torch.Tensor:
        """One row of each of the first ``sessions`` sessions; their outputs. The same rows every time."""
        return self._run([self._span(session, self._context, 1) for session in range(sessions)])

    def _span(self, session: int, start: int, rows: int) -> PagedSpan:
        return PagedSpan(range(session * self._pages, (session + 1) * self._pages), start, rows)

    def _run(self, spans: list[PagedSpan]) -> torch.Tensor:
        rows = sum(span.rows for span in spans)
        return self._stack.run(self._hidden[:rows], PagedBatch(self._pool, spans, self._backend))


def spec_of(layers: int, hidden: int, heads: int, intermediate: int) -> ModelSpec:
    """A Llama of these sizes, with as many KV heads as heads."""
    return ModelSpec.from_config(
        {
            "model_type": "llama",
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 32000,
            "hidden_size": hidden,
            "intermediate_size": intermediate,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": heads,
            "max_position_embeddings": 32768,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10000.0,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
        }
    )


def report(
    stack: Stack, context: int, rows: list[int], attention: str, bytes_per_s: float, flops: float, named: str
) -> str:
    """Measures and tells. Raises RuntimeError where an output is not finite."""
    spec, device = stack.spec, stack.device
    sessions = Sessions(stack, max(rows), context, attention)
    for session in tqdm(range(max(rows)), desc="prefill", leave=False):
        sessions.prefill(session)
    if not bool(torch.isfinite(sessions.decode(max(rows))).all()):
        raise RuntimeError("the layers' outputs are not finite")
    lines = []
    for count in tqdm(rows, desc="decode", leave=False):
        took = seconds(lambda count=count: sessions.decode(count), device)  # type: ignore[misc]
        moved = stack.loaded_bytes + count * (context + 1) * sessions.kv_bytes
        least = moved / bytes_per_s
        lines.append(
            [f"{count}", f"{1e3 * took:.2f}", f"{1e3 * least:.2f}", f"**{took / least:.2f}**", f"{count / took:.1f}"]
        )
    took = seconds(lambda: sessions.prefill(0), device)
    # A row sees half of the prompt in the mean; scores and context are two products.
    operations = 2 * context * (stack.loaded_bytes // DTYPE.itemsize)
    operations += 2 * context * context * spec.num_heads * spec.head_dim * len(stack.blocks)
    return (
        f"{named}, torch {torch.__version__}, attention {sessions.backend}. {len(stack.blocks)} layers, hidden size "
        f"{spec.hidden_size}, {stack.loaded_bytes / 1e9:.2f} GB of bfloat16 weights; {context} positions in every "
        f"session. Measured peaks: {bytes_per_s / 1e9:.0f} GB a second in a copy, {flops / 1e12:.2f} tera-operations "
        f"a second in a product of {context} rows.\n\n"
        + table(["rows", "step, ms", "weights and KV at peak, ms", "ratio", "rows a second"], lines)
        + f"\n\nPrefill of one session: {1e3 * took:.1f} ms, {context / took:.0f} rows a second, "
        f"**{operations / took / flops:.2f}** of the peak of products."
    )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--intermediate", type=int, default=11008)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--tokens", type=int, default=128, help="tokens of an agent's answers")
    parser.add_argument("--attention", choices=BACKENDS, default="auto")
    parser.add_argument("--copy-bytes", type=int, default=COPY_BYTES, help="size of the copy that measures memory")
    options = parser.parse_args()
    device = torch.device(options.device)
    named = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "CPU"
    spec = spec_of(options.layers, options.hidden, options.heads, options.intermediate)
    bytes_per_s = copy_bytes_per_s(options.copy_bytes, device)
    flops = product_flops(options.context, options.hidden, DTYPE, device)
    stack = Stack.load(RandomCheckpoint(spec), whole(spec), DTYPE, device)
    print(report(stack, options.context, options.rows, options.attention, bytes_per_s, flops, named))
    del stack
    print("\n" + asyncio.run(rounds(device, options.tokens)))


if __name__ == "__main__":
    main()
