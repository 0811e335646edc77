"""What a head's queries and keys look like, for heads that look alike to share one score (section 3.3 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from split_model.pruning.watched import Attended

LENGTH = 32
"""Numbers of the feature that the paper has one of for each token: texts of any length can be compared."""

Numbers = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Features:
    """Of some heads, float32 on the host.

    Attributes:
        apart: [heads, 2 * head_dim], the means of queries and keys before the rotation, of length 1: without that the
            model's own scale decides what is near.
        together: [heads, LENGTH], the sum of query times key of each token, resampled, of length 1.
    """

    apart: Numbers
    together: Numbers


def features(seen: Attended) -> Features:
    """Of each head of a layer, over one text. Where heads share keys, each has its own copy."""
    q, k = _unrotated(seen.q, seen), _unrotated(seen.k, seen)
    k = k.repeat_interleave(q.shape[1] // k.shape[1], 1)
    apart = torch.cat((q.mean(0), k.mean(0)), 1)
    # A rotation of both by the same angle leaves their product as it is.
    each = (q * k).sum(2).t()
    together = functional.adaptive_avg_pool1d(each, LENGTH)
    return Features(*(functional.normalize(found, dim=1).cpu().numpy() for found in (apart, together)))


def _unrotated(heads: torch.Tensor, seen: Attended) -> torch.Tensor:
    """Rows before they were turned to where they stand; the other way round is the same with the sines negated."""
    heads = heads.float()
    if seen.cos is None or seen.sin is None:
        return heads
    cos, sin = seen.cos.float(), seen.sin.float()
    return heads * cos - heads.roll(cos.shape[-1] // 2, -1) * sin
