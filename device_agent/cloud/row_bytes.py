"""Rows looked at and joined on the event loop's thread, as plain bytes.

torch would run such work in parallel, which makes a team of threads for the event loop's thread as well: see
``split_model.load_apart`` for what a second team costs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

BFLOAT16_EXPONENT = 0x7F80


def finite(rows: torch.Tensor) -> bool:
    """Whether ``rows`` (float32, bfloat16 or float16) hold neither NaN nor infinity."""
    if rows.dtype is torch.bfloat16:  # NumPy does not know it: all ones in the exponent are NaN or infinity.
        exponents = rows.view(torch.int16).numpy() & BFLOAT16_EXPONENT
        return not bool((exponents == BFLOAT16_EXPONENT).any())
    return bool(np.isfinite(rows.numpy()).all())


def joined(pieces: Sequence[torch.Tensor]) -> torch.Tensor:
    """``pieces``, each ``[rows, hidden_size]`` and at least one, one after the other; a single one as it is."""
    if len(pieces) == 1:
        return pieces[0]
    whole = pieces[0].new_empty((sum(len(piece) for piece in pieces), pieces[0].shape[1]))
    target, begin = whole.view(torch.uint8).numpy(), 0
    for piece in pieces:
        end = begin + len(piece)
        target[begin:end] = piece.view(torch.uint8).numpy()
        begin = end
    return whole
