"""How a prompt is cut into chunks. Pure."""

from __future__ import annotations


def chunk_sizes(tokens: int, chunk: int) -> list[int]:
    """Sizes that add up to ``tokens``: as few chunks as ``chunk`` allows, all within one token of each other.

    Even chunks keep upload and computing of neighbours equally long; a last chunk of three tokens would cost a whole
    step in the cloud and hide nothing.
    """
    if tokens <= 0:
        return []
    count = -(-tokens // chunk)
    size, larger = divmod(tokens, count)
    return [size + 1] * larger + [size] * (count - larger)
