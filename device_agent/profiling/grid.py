"""Sizes at which the parts of a model are measured. Pure.

Plans read tables by lines between points (`planning.table`), so points stand where lines bend: at one row, at a few,
and where products begin to use all of a CPU. Rows are odd but for a model's last: consecutive rows of a sequence then
see a whole number of positions in the mean, which is a point too.
"""

from __future__ import annotations

from dataclasses import dataclass

from split_model.spec import ModelSpec

ROWS = (1, 3, 15, 63, 255, 1023)
POSITIONS = (1, 8, 32, 128, 512, 2048)
QUICK_ROWS = (1, 15, 17, 33, 127, 511)
QUICK_POSITIONS = (1, 64, 256, 1024)
HEAD_ROWS = (1, 3, 15, 63)
"""Of a model that writes text: of a prompt only the last row's logits are wanted, and of a draft's each row's."""


@dataclass(frozen=True)
class MeasuredSizes:
    """What is measured of one model.

    Attributes:
        rows, positions: of the parts of a layer.
        shards: KV groups and columns of the MLP that are loaded together, the whole layer last.
        head_rows: rows whose outputs are computed.
        image_rows: how many rows an image has; 0 for a model of texts. An image has no other size.
    """

    rows: tuple[int, ...]
    positions: tuple[int, ...]
    shards: tuple[tuple[int, int], ...]
    head_rows: tuple[int, ...]
    image_rows: int = 0

    @property
    def groups(self) -> tuple[int, ...]:
        """Numbers of KV groups, rising."""
        return tuple(sorted({groups for groups, _ in self.shards}))

    @property
    def columns(self) -> tuple[int, ...]:
        """Numbers of columns, rising."""
        return tuple(sorted({columns for _, columns in self.shards}))


def sizes_of(spec: ModelSpec, quick: bool) -> MeasuredSizes:
    """What is measured of a model; quick: fewer sizes."""
    image_rows = 0 if spec.patches is None else 1 + spec.patches.count
    most = image_rows or spec.max_positions or QUICK_POSITIONS[-1]
    rows = _upto(QUICK_ROWS if quick else ROWS, most)
    groups, columns = spec.num_kv_heads, spec.intermediate_size
    parts = (4,) if quick else (8, 2)
    shards = tuple((max(1, groups // part), max(1, columns // part)) for part in parts)
    return MeasuredSizes(
        rows=rows,
        positions=_upto(QUICK_POSITIONS if quick else POSITIONS, most),
        shards=tuple(dict.fromkeys([*shards, (groups, columns)])),
        head_rows=rows if spec.attention == "bidirectional" else _upto(HEAD_ROWS, most),
        image_rows=image_rows,
    )


def _upto(sizes: tuple[int, ...], most: int) -> tuple[int, ...]:
    """Those sizes, the largest being the most that there can be where that is less."""
    inside = [size for size in sizes if size < most]
    return (*inside, most) if len(inside) < len(sizes) else tuple(inside)
