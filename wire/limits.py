"""Named limits and times of the protocol; ``docs/structure.md`` says why each has its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROTOCOL_VERSION: Final = 4
"""Changes when an old peer could misread a new one; the frame prefix carries it."""

MAX_FRAME_BYTES: Final = 8 * 2**20
"""Largest websocket message either side accepts: 512 rows of a hidden size of 8192 in bfloat16, and its header."""

MAX_CLOUD_HEADER_BYTES: Final = 4 * 2**10
"""Largest message header between a device and the cloud: nothing there is long."""

MAX_GATEWAY_HEADER_BYTES: Final = 6 * 2**20
"""Largest message header between a gateway and an agent: it may carry a whole conversation."""

MAX_CHUNKS: Final = 256
"""Chunk sizes in one piece of advice."""

MAX_TIMES: Final = 256
"""Measured times of each kind in one message: all of them fit its header, however long they are."""

MAX_BRANCHING_ROWS: Final = 64
"""Rows of one forward that branch: a tree that is verified, and far below what one step holds."""

MAX_TENSORS: Final = 1
MAX_DIMENSIONS: Final = 4
MAX_TEXT: Final = 512
"""Characters in a name, credential or error message."""

FIRST_CHUNK: Final = 64
"""Most rows of a prompt's first chunk on a slow link: it is idle until the device has computed them, how long that
takes the cloud does not know, and no advice for this very prompt can come before they are cut."""

LEAST_CHUNK: Final = 16
"""Fewer rows that would be left between two chunks are joined to one of them."""

HEARTBEAT_S: Final = 5.0
"""A peer that has sent nothing else for this long sends a heartbeat."""

DEAD_AFTER_S: Final = 15.0
"""A peer that has been silent for this long is taken for dead (uvicorn alone needs 40 to 50 s). A message counts once
all of it is there, so it may take longer where it was announced."""

HELLO_WITHIN_S: Final = 10.0
"""A new connection must have introduced itself within this time."""

SEND_WITHIN_S: Final = 10.0
"""One message must have left within this time, or the connection is given up: a peer that never reads holds nothing."""

SLOWEST_BYTES_S: Final = 50_000
"""A long message gets as much more as a link of this bandwidth takes for it, to leave and to arrive."""

ANNOUNCED_BYTES: Final = 2**18
"""A message with tensors of so many bytes is announced: on the slowest link it takes about a heartbeat."""

MAX_QUEUED_BYTES: Final = 64 * 2**20
"""Bytes waiting to be sent on one connection before it is given up."""


PACK_BYTES: Final = 1024
"""Fewer bytes of rows are sent as they are: packing has a fixed cost, and a frame's own bytes are not packed."""

PACK_BELOW_BYTES_S: Final = 20_000_000
"""Where the link takes more, packing and unpacking bfloat16 take about as long as they save; other dtypes are packed
faster and save less."""

FRAME_MARGIN_BYTES: Final = 256
"""What a session message takes in a frame beside its rows, at most."""

ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2, "int64": 8}
"""Bytes of one element of each dtype that can be sent."""


@dataclass(frozen=True)
class LinkLimits:
    """What one kind of link accepts, in bytes."""

    frame_bytes: int = MAX_FRAME_BYTES
    header_bytes: int = MAX_CLOUD_HEADER_BYTES

    def rows_of(self, hidden_size: int, dtype: str) -> int:
        """Rows of hidden states that fit in one frame beside its message."""
        return max(1, (self.frame_bytes - FRAME_MARGIN_BYTES) // (hidden_size * ITEM_BYTES[dtype]))


CLOUD_LINK: Final = LinkLimits()
GATEWAY_LINK: Final = LinkLimits(header_bytes=MAX_GATEWAY_HEADER_BYTES)
