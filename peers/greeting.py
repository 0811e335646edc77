"""How two members prove to each other, on a new socket, that both are of one group, before anything else is read. Pure.

    listener:  nonce
    dialler:   who it is, whom it dials, nonce, proof
    listener:  proof

A proof is an HMAC-SHA256, under the key of this life of the group, over its epoch, both ranks and both nonces. So it
holds for one socket and one way, and for nobody else; and a stranger has proved that it is none before the listener
keeps anything for it.
"""

from __future__ import annotations

import hmac
import struct
from dataclasses import dataclass
from typing import Final

from peers.secret import NONCE_BYTES, PROOF_BYTES, proof
from wire.errors import Code, ConnectionFailed

_DIALLED: Final = struct.Struct(f"!8sIII{NONCE_BYTES}s{PROOF_BYTES}s")
_MAGIC: Final = b"trilbyf1"

DIALLED_BYTES: Final = _DIALLED.size
"""Of what the dialler says."""


@dataclass(frozen=True)
class PeerDoor:
    """What a member needs to know to tell members from strangers: the key and epoch of its group, its own rank, and how
    many members there are."""

    key: bytes
    epoch: int
    rank: int
    size: int

    def dialled(self, rank: int, asked: bytes, nonce: bytes) -> bytes:
        """What to say to the member ``rank``, whose nonce is ``asked``; ``nonce`` is this member's own."""
        said = self._proof(b"dialler", self.rank, rank, asked, nonce)
        return _DIALLED.pack(_MAGIC, self.epoch, self.rank, rank, nonce, said)

    def check_dialled(self, asked: bytes, said: bytes) -> tuple[int, bytes]:
        """The rank of who has said this, and the proof to answer with.

        Raises ``ConnectionFailed`` where he is not of this group, or has no business to dial this member.
        """
        magic, epoch, rank, to, nonce, given = _DIALLED.unpack(said)
        if magic != _MAGIC:
            raise ConnectionFailed(Code.BAD_FRAME, "what dials here is no member of any group")
        if not hmac.compare_digest(given, self._proof(b"dialler", rank, to, asked, nonce)):
            raise ConnectionFailed(Code.UNAUTHORIZED, "what dials here does not know this group's secret")
        if epoch != self.epoch or to != self.rank or not self.rank < rank < self.size:
            raise ConnectionFailed(Code.UNEXPECTED_MESSAGE, f"member {rank} dials {to} in epoch {epoch}")
        return rank, self._proof(b"listener", rank, to, asked, nonce)

    def check_listener(self, rank: int, asked: bytes, nonce: bytes, given: bytes) -> None:
        """Raises ``ConnectionFailed`` where who listens in the place of member ``rank`` is not that member."""
        if not hmac.compare_digest(given, self._proof(b"listener", self.rank, rank, asked, nonce)):
            raise ConnectionFailed(Code.UNAUTHORIZED, f"whoever listens as member {rank} does not know the secret")

    def _proof(self, who: bytes, dialler: int, listener: int, asked: bytes, nonce: bytes) -> bytes:
        return proof(self.key, who, b"%d %d %d" % (self.epoch, dialler, listener), asked, nonce)
