"""Named limits and times of the protocol; ``docs/structure.md`` says why each has its value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

PROTOCOL_VERSION: Final = 5
"""Changes when an old peer could misread a new one; the frame prefix carries it."""

MAX_FRAME_BYTES: Final = 8 * 2**20
"""Largest frame either side accepts: 512 rows of a hidden size of 8192 in bfloat16, and its header."""

PART_BYTES: Final = 64 * 2**10
"""A longer frame leaves in parts of so many bytes, and others pass between them: on a link of 200 kB/s every third of a
second. Shorter parts would cost a fast link more than they bring a slow one."""

MESSAGE_BYTES: Final = PART_BYTES + 16
"""Largest websocket message: a part and its prefix."""

MAX_HALF_FRAMES: Final = 8
"""Frames of a connection that may have come in part: so many take turns on it."""

MAX_HALF_BYTES: Final = 32 * 2**20
"""Bytes that those may have altogether once they are there, as far as they have been announced."""

HALF_WITHIN_S: Final = 60.0
"""A frame of which nothing has come for so long never will: each has its turn, on the slowest link too."""

GREETING_BYTES: Final = 16 * 2**10
"""Longest frame before the hello is over: a hello with all its models is some kilobytes, and who has not said it is a
stranger."""

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
"""Most rows of a prompt's first chunk while nothing is advised, and where that would be fewer: the link is idle until
the device has computed them, and how long that takes the cloud does not know."""

LEAST_CHUNK: Final = 16
"""Fewer rows that would be left between two chunks are joined to one of them."""

HEARTBEAT_S: Final = 5.0
"""A peer that has sent nothing else for this long sends a heartbeat."""

DEAD_AFTER_S: Final = 14.5
"""A peer that has been silent for this long is taken for dead, so that whoever waits knows within 15 s (uvicorn alone
needs 40 to 50 s). Every part of a frame is a sign of life."""

HELLO_WITHIN_S: Final = 10.0
"""A new connection must have introduced itself within this time."""

SEND_WITHIN_S: Final = 10.0
"""One websocket message must have left within this time, or the connection is given up: a peer that never reads holds
nothing."""

SLOWEST_BYTES_S: Final = 50_000
"""What is long gets as much more time to leave as a link of this bandwidth takes for it."""

UNSENT_BYTES: Final = 64 * 2**10
"""What the kernel takes of a connection beyond what is on its way: all of it is ahead of whatever is said next."""

MAX_QUEUED_BYTES: Final = 64 * 2**20
"""Bytes of long frames waiting to be sent on one connection: one more is refused, and the connection goes on. Where so
many bytes of short frames wait the peer does not read, and the connection is given up."""

PARTY_BYTES: Final = 8 * 2**20
"""What may wait of one party's long requests, if more than one does: two of the longest, so that its link is never idle
for want of them. The others wait where they are, and leave the room to other parties."""


PACK_BYTES: Final = 1024
"""Fewer bytes of rows are sent as they are: packing has a fixed cost, and a frame's own bytes are not packed."""

PACK_BELOW_BYTES_S: Final = 20_000_000
"""Where the link takes more, packing and unpacking bfloat16 take about as long as they save; other dtypes are packed
faster and save less."""

FRAME_MARGIN_BYTES: Final = 256
"""What a session message takes in a frame beside its rows, at most."""

LEAST_BUCKET_BYTES: Final = 1024
"""Padded frames are that long at least, and ``FRAME_MARGIN_BYTES``: words of control, tokens and heartbeats."""

SHORT_FRAME_BYTES: Final = 32 * 2**10 + FRAME_MARGIN_BYTES
"""A frame that is no longer goes ahead of long ones: a token, a word of control, a row of size 8192 in float32."""

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
MAX_POST_BYTES: Final = 64 * 2**10
"""Largest value that a member of a group tells the others at once, and largest plan that it is given."""

PEER_LINK: Final = LinkLimits(frame_bytes=2 * MAX_POST_BYTES, header_bytes=MAX_POST_BYTES + 4 * 2**10)
GATEWAY_LINK: Final = LinkLimits(header_bytes=MAX_GATEWAY_HEADER_BYTES)
