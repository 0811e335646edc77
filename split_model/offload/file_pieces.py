"""In which pieces a unit lies in its file, plain or coded (see `coding`). Pure but for `coded_pieces`, which computes.

A plain piece is as it will be in memory, and is read to there. A coded one has fewer bytes, and is decoded to there. A
unit whose form is coded has coded pieces, and plain ones where coding makes little difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np

from split_model.offload.coding import BLOCK_WORDS, encode, narrowed
from split_model.offload.layout import ALIGNMENT, UnitMatrix, padded
from split_model.spec import ModelSpec

PIECE_BYTES: Final = 8 << 20
"""Of one read; with larger ones nothing is gained, and one that is no longer wanted is waited for."""

CODED_FROM_BYTES: Final = 4 << 20
"""Of memory, of one coded piece: two of them are on their way from the disk to there."""

MOST_SHARE: Final = 0.75
MOST_CODED_BYTES: Final = int(CODED_FROM_BYTES * MOST_SHARE)
"""What saves less than a quarter stays plain."""

MOST_CODED_PIECES: Final = 400
"""Of a unit: their lengths stand in its file's head. A unit of more, which is over 1.6 GB, stays plain."""

MOST_NARROW_SHARE: Final = 0.5
"""The share of bfloat16 numbers that are float32 in memory."""

FORM: Final = "coded 2"
"""What the head of a file of coded pieces says; pieces that are read otherwise have another word."""

SCRATCH_BYTES: Final = 2 * (MOST_CODED_BYTES + ALIGNMENT) + BLOCK_WORDS
"""What decoding takes of memory beside the ring: the piece that is read, the one that is decoded, and half a block.
Where numbers become wider the pieces are shorter, and there is another block."""


def codable(spec: ModelSpec, dtype: str) -> bool:
    """Whether weights can lie in fewer bytes on the disk than in memory: those of checkpoints in bfloat16."""
    return dtype == "bfloat16" or (dtype == "float32" and spec.dtype == "bfloat16")


def most_share(narrow: bool) -> float:
    """Of a coded piece's bytes in memory, how many it has at most. narrow: these are float32 and were bfloat16."""
    return MOST_NARROW_SHARE if narrow else MOST_SHARE


@dataclass(frozen=True)
class Piece:
    """What is read at once.

    Attributes:
        matrix: by its number in the unit.
        start, size: bytes in memory, counted from the matrix's first.
        at, length: bytes in the file, counted from the first behind its head; the length is `size` where it is plain.
        place: what its checksum says of where it belongs; means nothing where it is plain.
    """

    matrix: int
    start: int
    size: int
    at: int
    length: int
    place: int = 0

    @property
    def coded(self) -> bool:
        """Whether it has to be decoded."""
        return self.length != self.size


def plain(matrices: Sequence[UnitMatrix]) -> list[Piece]:
    """All of a unit whose form is plain."""
    spans = list(_spans(matrices, PIECE_BYTES))
    return _placed(spans, [size for _, _, size in spans])


def places(file: int) -> Iterator[int]:
    """Of the pieces of a file, one after the other. file: 64 bits that no other file has."""
    return (file ^ number for number in count())


def coded(matrices: Sequence[UnitMatrix], lengths: Any, file: int, narrow: bool) -> list[Piece] | None:
    """All of a unit whose form is coded; None where its pieces cannot have these lengths. file: as of `places`;
    narrow: see `most_share`."""
    spans = coded_spans(matrices)
    if not isinstance(lengths, list) or len(lengths) != len(spans) or not all(type(each) is int for each in lengths):
        return None
    for length, (_, _, size) in zip(lengths, spans, strict=True):
        if (length != size and not 0 < length <= int(size * most_share(narrow))) or length % ALIGNMENT:
            return None
    return _placed(spans, lengths, file)


def coded_spans(matrices: Sequence[UnitMatrix]) -> list[tuple[int, int, int]]:
    """Of each coded piece, `matrix`, `start` and `size`."""
    return list(_spans(matrices, CODED_FROM_BYTES))


def file_windows(matrices: Sequence[UnitMatrix], pieces: Sequence[Piece], window: int) -> Iterator[tuple[int, int]]:
    """Offset, counted as `Piece.at`, and length of windows at both ends of each matrix as it lies in the file."""
    for number, matrix in enumerate(matrices):
        own = [piece for piece in pieces if piece.matrix == number]
        if not own:
            continue
        # Behind a plain matrix is nothing up to where the next one begins.
        end = own[-1].at + (own[-1].length if own[-1].coded else matrix.nbytes - own[-1].start)
        length = min(window, end - own[0].at)
        yield own[0].at, length
        yield end - length, length


def coded_pieces(parts: Iterable[memoryview], room: int, place: Iterator[int], narrow: bool) -> Iterator[bytes]:
    """The pieces of a matrix as they go to the file.

    parts: its bytes in memory; room: see `UnitMatrix`; place: what `places` goes on with; narrow: see `most_share`.
    """
    waiting, left = bytearray(), room
    for part in parts:
        for begin in range(0, len(part), CODED_FROM_BYTES):
            waiting += part[begin : begin + CODED_FROM_BYTES]
            while len(waiting) >= CODED_FROM_BYTES:
                yield _shortest(waiting[:CODED_FROM_BYTES], next(place), narrow)
                del waiting[:CODED_FROM_BYTES]
                left -= CODED_FROM_BYTES
    if left:
        # Words that are like the others: their exponents are no escapes.
        fill = bytes(waiting[-4:] if narrow else waiting[-2:])
        yield _shortest(waiting + fill * ((left - len(waiting)) // len(fill)), next(place), narrow)


def _shortest(memory: bytearray, place: int, narrow: bool) -> bytes:
    plain = bytes(memory)
    words = narrowed(np.frombuffer(plain, "<u4")) if narrow else np.frombuffer(plain, "<u2")
    if words is None:
        return plain
    found = encode(words, place)
    length = padded(len(found))
    return found.ljust(length, b"\0") if length <= int(len(plain) * most_share(narrow)) else plain


def _spans(matrices: Sequence[UnitMatrix], most: int) -> Iterator[tuple[int, int, int]]:
    for number, matrix in enumerate(matrices):
        for start in range(0, matrix.room, most):
            yield number, start, min(most, matrix.room - start)


def _placed(spans: Sequence[tuple[int, int, int]], lengths: Sequence[int], file: int = 0) -> list[Piece]:
    found, at = [], 0
    for (number, start, size), length, place in zip(spans, lengths, places(file), strict=False):
        found.append(Piece(number, start, size, at, length, place))
        at += length
    return found
