"""How fast this device decodes weights that are coded on its disk, and how much shorter they are there."""

from __future__ import annotations

from statistics import median
from time import perf_counter
from typing import Final

import numpy as np
import torch

from device_agent.profiling.machine import MeasuredOn
from split_model.checkpoint import Checkpoint
from split_model.matrix import read_stacked
from split_model.offload.coding import BLOCK_WORDS, STEP_WORDS, decode, decode_wide, encode
from split_model.offload.file_pieces import most_share
from split_model.offload.form import Decoding, lost_to_decoding
from split_model.offload.layout import Cut, some, unit_matrices
from split_model.offload.units import Unit

REPEATS: Final = 9


def measured_decoding(checkpoint: Checkpoint, dtype: str = "bfloat16", layer: int = 0) -> Decoding:
    """Of up to `BLOCK_WORDS` of a layer's MLP, bfloat16 there and of `dtype` in memory, on one core; milliseconds.
    Raises BadCheckpoint."""
    part = unit_matrices(checkpoint.spec, Unit(layer, "mlp"), Cut(), "bfloat16", turned=False)[0].parts[0]
    lines = range(min(part.shape[0], max(BLOCK_WORDS // part.shape[1], 1)))
    read = read_stacked(checkpoint, [some(part, False, lines)], torch.bfloat16).flatten()
    words = np.resize(read.view(torch.int16).numpy().view(np.uint16), -(-read.numel() // STEP_WORDS) * STEP_WORDS)
    piece, found = np.frombuffer(encode(words, place=0), np.uint8), np.empty_like(words)
    wide = np.empty(len(words), np.uint32)
    between, widens = np.empty(BLOCK_WORDS // 2, np.uint16), dtype == "float32"
    times = []
    for _ in range(REPEATS):
        began = perf_counter()
        if widens:
            decode_wide(piece, wide, found, between, place=0)
        else:
            decode(piece, found, between, place=0)
        times.append(perf_counter() - began)
    here = MeasuredOn.here()
    lost = lost_to_decoding(here.threads, min(here.cores, here.share or here.cores))
    size = wide.nbytes if widens else words.nbytes
    share = len(piece) / size  # Where that saves too little, pieces stay plain.
    return Decoding(share if share <= most_share(widens) else 1.0, size / median(times), lost)
