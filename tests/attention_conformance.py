"""What every attention backend of the cloud must compute: the formula, over a pool of pages."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from cloud_server.cache.pool import KVPool
from cloud_server.cache.pool_attention import Backend
from cloud_server.cache.span import PagedSpan
from split_model.tree import Tree

LAYERS = 2


@dataclass(frozen=True)
class Case:
    """A step: for each session the position of its first new row and how many there are; ``parents`` of the rows of the
    first session and of the last one, where they branch."""

    spans: tuple[tuple[int, int], ...]
    parents: tuple[int, ...] = ()
    heads: int = 4
    kv_heads: int = 4
    head_dim: int = 16
    window: int | None = None
    scattered: bool = False


CASES = {
    "one row": Case(((20, 1),)),
    "the first row of all": Case(((0, 1),)),
    "several rows": Case(((20, 5),)),
    "a chunk at the start": Case(((0, 19),)),
    "a chunk behind another": Case(((13, 19),)),
    "one row of each session": Case(((20, 1), (3, 1), (31, 1), (0, 1))),
    "grouped heads, one row": Case(((20, 1),), heads=6, kv_heads=2),
    "grouped heads": Case(((20, 1), (6, 1)), heads=6, kv_heads=2),
    "grouped heads, several rows": Case(((20, 4), (6, 1)), heads=6, kv_heads=2),
    "one KV head": Case(((9, 1), (5, 3)), kv_heads=1),
    "a window": Case(((20, 1), (3, 1)), window=7),
    "a window of one position": Case(((20, 1), (8, 3)), window=1),
    "a window, several rows": Case(((20, 9), (3, 2), (0, 12)), window=7),
    "a window, scattered pages": Case(((20, 9), (30, 1), (0, 12)), window=7, scattered=True),
    "scattered pages": Case(((20, 1), (37, 1)), scattered=True),
    "scattered pages, several rows": Case(((20, 5), (0, 19)), scattered=True),
    "everything at once": Case(
        ((20, 1), (0, 17), (7, 5), (31, 1), (12, 16)), heads=6, kv_heads=3, head_dim=24, window=11, scattered=True
    ),
    "rows that branch": Case(((20, 5),), parents=(-1, -1, 0, 1, 3)),
    "rows that branch from the first on": Case(((0, 4),), parents=(-1, -1, 0, 2)),
    "branches beside lines": Case(
        ((20, 4), (3, 1), (0, 7), (11, 4)), parents=(-1, 0, 0, 1), heads=6, kv_heads=2, scattered=True
    ),
    "branches and a window": Case(((20, 6), (9, 1), (5, 6)), parents=(-1, 0, 0, 1, 3, 4), window=4),
    "heads of an odd size": Case(((20, 1), (5, 4)), heads=4, kv_heads=2, head_dim=12),
}


def check_case(
    backend: Backend, case: Case, dtype: torch.dtype, device: str, page_positions: int, tolerance: float
) -> None:
    """Any layer's context is within ``tolerance`` of the formula in float64 on the same keys and values."""
    generator = torch.Generator().manual_seed(0)
    need = [-(-(start + rows) // page_positions) for start, rows in case.spans]
    pool = KVPool(LAYERS, case.kv_heads, case.head_dim, dtype, device, sum(need) + 2, page_positions)
    with torch.inference_mode():
        # What nobody wrote must not be read: not a number would show in every sum.
        pool.keys.fill_(math.nan)
        pool.values.fill_(math.nan)
        order = list(range(2, sum(need) + 2))
        if case.scattered:
            order = [order[index] for index in torch.randperm(len(order), generator=generator).tolist()]
        spans, stored, begin = [], [], 0
        for index, ((start, rows), pages) in enumerate(zip(case.spans, need, strict=True)):
            branching = None
            if case.parents and index in (0, len(case.spans) - 1):
                branching = Tree(start).add(case.parents)
                assert branching is not None and branching.rows == rows
            spans.append(PagedSpan(tuple(order[begin : begin + pages]), start, rows, branching))
            begin += pages
            both = torch.randn((2, LAYERS, start + rows, case.kv_heads, case.head_dim), generator=generator).to(dtype)
            for position in range(start + rows):
                slot = spans[-1].pages[position // page_positions] * page_positions + position % page_positions
                pool.keys[:, slot], pool.values[:, slot] = both[0, :, position], both[1, :, position]
            stored.append(both)
        rows = sum(span.rows for span in spans)
        q = torch.randn((rows, case.heads, case.head_dim), generator=generator).to(dtype)
        step = backend.step(pool, spans, [pool.runs(span) for span in spans])
        for layer in range(LAYERS):
            found = step.attend(layer, case.window, q.to(device))
            assert found.shape == (rows, case.heads * case.head_dim) and found.dtype == dtype
            wanted = torch.cat(
                [
                    of_span(span, part, both[0, layer], both[1, layer], case.window)
                    for span, part, both in zip(
                        spans, q.split_with_sizes([span.rows for span in spans]), stored, strict=True
                    )
                ]
            )
            torch.testing.assert_close(found.cpu().double(), wanted, rtol=0, atol=tolerance)


def of_span(
    span: PagedSpan, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None
) -> torch.Tensor:
    """The formula for the rows of a span; those that branch row by row, each at the end of the line it follows."""
    if span.branching is None:
        return by_formula(q, keys, values, window)
    contexts = []
    for row, path in enumerate(span.branching.seen):
        line = [*range(span.start), *(span.start + node for node in path)]
        contexts.append(by_formula(q[row : row + 1], keys[line], values[line], window))
    return torch.cat(contexts)


def by_formula(q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, window: int | None) -> torch.Tensor:
    """Row by row in float64: q [rows, heads, dim] are the last of the positions of keys [positions, kv_heads, dim]."""
    rows, heads, dim = q.shape
    group = heads // keys.shape[1]
    wide_q, wide_keys, wide_values = q.double(), keys.double(), values.double()
    out = torch.zeros((rows, heads, dim), dtype=torch.float64)
    for row in range(rows):
        end = len(keys) - rows + row + 1
        first = 0 if window is None else max(0, end - window)
        for head in range(heads):
            weights = (wide_keys[first:end, head // group] @ wide_q[row, head] / math.sqrt(dim)).softmax(0)
            out[row, head] = weights @ wide_values[first:end, head // group]
    return out.reshape(rows, heads * dim)
