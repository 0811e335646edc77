"""How fast weights come from the disk, beside a plain loop of direct reads, and how much of it work beside it hides.

    make bench-offload ARGS="--folder /mnt/slow --megabytes 400"

All read in turns, so that a disk whose speed drifts is the same for all. One loader reads the weights coded. Goals: the
other at 0.9 of the plain loop or more; 0.9 of the load or more hidden beside products that take as long as the load.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

import click
import torch
from safetensors.torch import save_file
from streamed_units import HALVES, units_of

from split_model.checkpoint import Checkpoint
from split_model.offload.buffers import aligned
from split_model.offload.file_pieces import PIECE_BYTES
from split_model.offload.layout import Cut
from split_model.offload.loader import Loader
from split_model.offload.store import UnitStore
from split_model.offload.unit_file import HEAD_BYTES
from split_model.offload.units import Unit
from split_model.slices import whole
from split_model.stack import Stack

HIDDEN, WIDE = 1024, 4096
ROUNDS = 7
SETTLED_S = 0.1
"""A disk from which nothing has come for so long is not read from."""


def made(folder: Path, megabytes: int) -> Checkpoint:
    """A random llama in bfloat16, whose layers take so much."""
    shapes = {f"self_attn.{name}_proj": (HIDDEN, HIDDEN) for name in "qkvo"}
    shapes |= {"mlp.gate_proj": (WIDE, HIDDEN), "mlp.up_proj": (WIDE, HIDDEN), "mlp.down_proj": (HIDDEN, WIDE)}
    layer_bytes = sum(2 * out * inputs for out, inputs in shapes.values())
    layers = max(2, megabytes * 10**6 // layer_bytes)
    config = {
        "model_type": "llama",
        "vocab_size": 256,
        "hidden_size": HIDDEN,
        "intermediate_size": WIDE,
        "num_hidden_layers": layers,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": 512,
        "tie_word_embeddings": True,
    }
    tensors = {"model.embed_tokens.weight": torch.randn(256, HIDDEN), "model.norm.weight": torch.ones(HIDDEN)}
    for layer in range(layers):
        for name, shape in shapes.items():
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.randn(shape) / 32
        for name in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"model.layers.{layer}.{name}.weight"] = torch.ones(HIDDEN)
    folder.mkdir(parents=True)
    save_file({name: tensor.bfloat16() for name, tensor in tensors.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return Checkpoint.open(folder)


def plain(store: UnitStore, units: Sequence[Unit], buffer: memoryview) -> tuple[int, float]:
    """Bytes and seconds of a loop that does nothing but read."""
    flags = os.O_RDONLY | (getattr(os, "O_DIRECT", 0) if store.direct else 0)
    descriptors = [os.open(store.path(unit), flags) for unit in units]
    began, read = perf_counter(), 0
    for descriptor, unit in zip(descriptors, units, strict=True):
        for matrix in store.matrices(unit):
            for done in range(0, matrix.room, PIECE_BYTES):
                size = min(PIECE_BYTES, matrix.room - done)
                read += os.preadv(descriptor, [buffer[:size]], HEAD_BYTES + matrix.start + done)
                if not store.direct:
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    seconds = perf_counter() - began
    for descriptor in descriptors:
        os.close(descriptor)
    return read, seconds


def settle(loader: Loader) -> None:
    """Wait until the ring is full: what comes next has the disk for itself."""
    before = -1
    while before != (before := loader.counts.bytes_read):
        time.sleep(SETTLED_S)


def drained(loader: Loader) -> tuple[int, float]:
    """Bytes of files, and seconds, of two passes that compute nothing, from a full ring on: the reader never rests."""
    settle(loader)
    before, began = loader.counts, perf_counter()
    for unit in (*loader.units, *loader.units):
        with loader.using(unit):
            pass
    return (loader.counts - before).bytes_read, perf_counter() - began


def hidden_share(stack: Stack, loader: Loader, store: UnitStore, load_s: float) -> tuple[float, float]:
    """Of one pass whose units each compute for as long as their load takes: the share of the reading that nobody
    waited for, and its time beside the longer of load and work."""
    settle(loader)
    rows, before, began, worked = torch.randn(1, HIDDEN).bfloat16(), loader.counts, perf_counter(), 0.0
    sizes = {unit: sum(each.room for each in store.matrices(unit)) for unit in loader.units}
    for layer, block in enumerate(stack.blocks):
        for half in HALVES:
            share = load_s * sizes[Unit(layer, half)] / sum(sizes.values())
            with block.using(half):
                start = perf_counter()
                while perf_counter() - start < share:
                    block.qkv(rows) if half == "attention" else block.mlp(rows)
                worked += perf_counter() - start
    seconds, of = perf_counter() - began, loader.counts - before
    return of.hidden, seconds / max(worked, of.reading_s)


def said(values: Sequence[float], digits: int = 2) -> str:
    """The median, and the least and the most."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


@click.command()
@click.option("--folder", default="", help="on the disk to be measured; empty: where temporary files are")
@click.option("--megabytes", default=400, help="weights of all layers")
@click.option("--rounds", default=ROUNDS, help="of each measurement")
def main(folder: str, megabytes: int, rounds: int) -> None:
    """Print GB/s of both, and the share of the load that is hidden."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=folder or None) as where:
        checkpoint = made(Path(where, "model"), megabytes)
        store = UnitStore(checkpoint, torch.bfloat16, lambda layer: Cut(), folder=Path(where, "units"))
        units = units_of(checkpoint.spec.num_layers)
        store.make(units)
        largest = max(sum(each.room for each in store.matrices(unit)) for unit in units)
        loader = Loader(store, units, torch.bfloat16, 3 * largest)
        stack = Stack.load(checkpoint, whole(checkpoint.spec), torch.bfloat16, loader=loader)
        in_code = UnitStore(checkpoint, torch.bfloat16, lambda layer: Cut(), folder=Path(where, "units"), coded=True)
        in_code.make(units)
        decoding = Loader(in_code, units, torch.bfloat16, 3 * largest)
        memory = sum(each.room for unit in units for each in store.matrices(unit))
        files = sum(piece.length for unit in units for piece in in_code.pieces(unit))
        buffer = aligned(PIECE_BYTES).numpy().data
        rates: dict[str, list[float]] = {"plain": [], "loader": [], "coded": []}
        shares, longer = [], []
        drained(loader)
        drained(decoding)
        for _ in range(rounds):
            read, seconds = drained(loader)
            rates["loader"].append(read / seconds / 1e9)
            settle(loader)
            read, seconds = drained(decoding)
            rates["coded"].append(read / seconds / 1e9 * memory / files)
            settle(decoding)
            read, seconds = plain(store, units, buffer)
            rates["plain"].append(read / seconds / 1e9)
            share, ratio = hidden_share(stack, loader, store, seconds)
            shares.append(share)
            longer.append(ratio)
        of = decoding.counts
        loader.close()
        decoding.close()
        ratios = [of / plainly for of, plainly in zip(rates["loader"], rates["plain"], strict=True)]
        ring = f"a ring of {3 * largest / 1e6:.0f} MB"
        print(f"{megabytes} MB of bfloat16, {len(units)} units, {ring}, past the page cache: {store.direct}")
        print(f"plain loop, GB/s         {said(rates['plain'])}")
        print(f"loader, GB/s             {said(rates['loader'])}")
        print(f"loader beside plain      {said(ratios)}   goal 0.90")
        print(f"coded, GB/s of weights   {said(rates['coded'])}")
        sooner = [of_coded / of_plain for of_coded, of_plain in zip(rates["coded"], rates["loader"], strict=True)]
        print(f"coded beside loader      {said(sooner)}")
        print(f"files, share of memory   {files / memory:.3f}")
        print(f"decoding, GB/s           {of.bytes_read / files * memory / of.decoding_s / 1e9:.2f}")
        print(f"load hidden              {said(shares)}   goal 0.90")
        print(f"pass beside the longer   {said(longer)}")


if __name__ == "__main__":
    main()
