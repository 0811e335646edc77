"""Which heads a session computes of each layer, and who does, as members are told it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from device_agent.group.messages.heads import MAX_KEPT_BYTES, BadGroupHead, KeepHead
from device_agent.planning.pruning import Places
from split_model.pruning.kept import KeptHeads
from split_model.spec import ModelSpec

MOST_GROUPS = 255
"""Of one member, that can be told; layers with more are computed by those who have them."""


def keep_heads(session: int, sets: Sequence[KeptHeads], places: Places = ()) -> Iterator[KeepHead]:
    """What is said of a session that computes ``sets``, one for each of the group's layers, at ``places``."""
    size = max(_bytes_of(each.total) for each in sets)
    members = max(map(len, places), default=0)
    if any(count > MOST_GROUPS for counts in places for count in counts) or size + members > MAX_KEPT_BYTES:
        members = 0
    said = [
        sum(1 << head for head in each.heads).to_bytes(size, "little")
        + bytes((places[at] or (0,) * members) if members else ())
        for at, each in enumerate(sets)
    ]
    at_once = MAX_KEPT_BYTES // (size + members)
    for layer in range(0, len(sets), at_once):
        yield KeepHead(session, layer, b"".join(said[layer : layer + at_once]), members)


def kept_by(head: KeepHead, spec: ModelSpec, layers: int) -> Iterator[tuple[int, KeptHeads, tuple[int, ...]]]:
    """Of each layer that is spoken of its number among the group's ``layers``, its heads, and how many of their KV
    groups each member computes, () where those do who have them. Raises ``BadGroupHead``."""
    size, total = _bytes_of(spec.num_heads), spec.num_heads
    each = size + head.members
    count, rest = divmod(len(head.bits), each)
    if rest or head.layer + count > layers:
        raise BadGroupHead(f"{len(head.bits)} bytes from layer {head.layer} on are no heads of {layers} layers")
    for number in range(count):
        said = head.bits[number * each : (number + 1) * each]
        mask, counts = int.from_bytes(said[:size], "little"), tuple(said[size:])
        if mask >> total:
            raise BadGroupHead(f"layer {head.layer + number} has {total} heads, and another is kept")
        kept = KeptHeads(tuple(at for at in range(total) if mask >> at & 1), total, spec.heads_per_group)
        if any(counts) and sum(counts) != len(kept.groups):
            raise BadGroupHead(f"layer {head.layer + number} has {len(kept.groups)} groups left, not {sum(counts)}")
        yield head.layer + number, kept, counts if any(counts) else ()


def _bytes_of(heads: int) -> int:
    return (heads + 7) // 8
