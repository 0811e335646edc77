"""Where tokens of an answer came from, and where time went, as agents tell it."""

from __future__ import annotations

import msgspec

from wire.message import Count, Name, Size


class Spent(msgspec.Struct, frozen=True, array_like=True):
    """Where time went, in microseconds: on the device until it had sent all it asked, waiting in the cloud, in the
    cloud's step, and on the link: all that is left until the answer was there."""

    device_us: Size
    link_us: Size
    queue_us: Size
    step_us: Size


class Origin(msgspec.Struct, frozen=True, array_like=True):
    """Where one token came from. ``round``: whose verdict it was in, 0 for the one that ended the prompt. ``source``:
    what drafted it; empty: nobody did, it is the model's own word behind what was drafted.

    Of the first token of a round alone: how long it took until the round was over, in microseconds, from the verdict
    before, or from when the request was there; and where that went, where a cloud had part in it."""

    round: Count
    source: Name = ""
    took_us: Size = 0
    spent: Spent | None = None
