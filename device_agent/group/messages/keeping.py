"""Which heads a session computes of each layer, as members are told it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from device_agent.group.messages.heads import MAX_KEPT_BYTES, BadGroupHead, KeepHead
from split_model.pruning.kept import KeptHeads
from split_model.spec import ModelSpec


def keep_heads(session: int, sets: Sequence[KeptHeads]) -> Iterator[KeepHead]:
    """What is said of a session that computes ``sets``, one for each of the group's layers."""
    size = max(_bytes_of(each.total) for each in sets)
    at_once = MAX_KEPT_BYTES // size
    for layer in range(0, len(sets), at_once):
        masks = [sum(1 << head for head in each.heads) for each in sets[layer : layer + at_once]]
        yield KeepHead(session, layer, b"".join(mask.to_bytes(size, "little") for mask in masks))


def kept_by(head: KeepHead, spec: ModelSpec, layers: int) -> Iterator[tuple[int, KeptHeads]]:
    """Of each layer that is spoken of its number among the group's ``layers``, and its heads. Raises
    ``BadGroupHead``."""
    size, total = _bytes_of(spec.num_heads), spec.num_heads
    count, rest = divmod(len(head.bits), size)
    if rest or head.layer + count > layers:
        raise BadGroupHead(f"{len(head.bits)} bytes from layer {head.layer} on are no heads of {layers} layers")
    for number in range(count):
        mask = int.from_bytes(head.bits[number * size : (number + 1) * size], "little")
        if mask >> total:
            raise BadGroupHead(f"layer {head.layer + number} has {total} heads, and another is kept")
        kept = tuple(each for each in range(total) if mask >> each & 1)
        yield head.layer + number, KeptHeads(kept, total, spec.heads_per_group)


def _bytes_of(heads: int) -> int:
    return (heads + 7) // 8
