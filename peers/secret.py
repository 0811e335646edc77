"""Proofs that a peer knows the secret of its group, without saying it. Pure.

Each side sends a nonce and proves, by HMAC-SHA256 over both nonces and over what it says of itself, that it knows the
secret: nobody can replay a proof, send back the one it was given, or change what was proved. Who listens in, or listens
in the host's place, has something to try secrets against: so a short one is refused.

The proofs say who is there when a link begins. Without TLS (``secure.py``) what travels afterwards is neither encrypted
nor signed, the tensors least of all: members belong into one network whose machines are trusted then, or into a VPN.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Final

from wire.errors import Code, ConnectionFailed
from wire.peer_messages import PeerChallenge, PeerHello, PeerHere, PeerWelcome

LEAST_CHARACTERS: Final = 16
"""Of a secret: as many random ones cannot be found by trying."""

BY_CERTIFICATE: Final = "certificates do instead"
"""Where members show certificates, and have no secret: known to all, so it proves nothing, and TLS everything."""

NONCE_BYTES: Final = 32
PROOF_BYTES: Final = 32


def new_secret() -> str:
    """One that nobody has to remember."""
    return secrets.token_urlsafe(32)


def check_secret(secret: str) -> None:
    """Raises ``ValueError`` for a secret that could be found by trying."""
    if len(secret) < LEAST_CHARACTERS:
        raise ValueError(f"a secret of {LEAST_CHARACTERS} characters or more is wanted, not of {len(secret)}")


def challenge() -> PeerChallenge:
    """The host's first word, new for every connection."""
    return PeerChallenge(secrets.token_bytes(NONCE_BYTES))


def hello(secret: str, name: str, seat: int, asked: PeerChallenge) -> PeerHello:
    """A member's answer to a host's challenge."""
    nonce = secrets.token_bytes(NONCE_BYTES)
    return PeerHello(name, seat, nonce, _of_member(secret, asked, name, seat, nonce))


def check_member(secret: str, asked: PeerChallenge, said: PeerHello) -> None:
    """Raises ``ConnectionFailed`` for a hello of somebody who does not know the secret."""
    if not hmac.compare_digest(said.proof, _of_member(secret, asked, said.name, said.seat, said.nonce)):
        raise ConnectionFailed(Code.UNAUTHORIZED, "the secret is another one: give all members of a group the same")


def here(secret: str, asked: PeerChallenge, said: PeerHello) -> PeerHere:
    """The host's own proof, before there is a place."""
    return PeerHere(_proof(secret, b"here", asked.nonce, said.nonce))


def check_here(secret: str, asked: PeerChallenge, said: PeerHello, heard: object) -> None:
    """Raises ``ConnectionFailed`` unless a host has proved with its first word that it knows the secret."""
    if not isinstance(heard, PeerHere):
        raise ConnectionFailed(
            Code.UNEXPECTED_MESSAGE, "whoever listens there proves nothing, or is of another release"
        )
    if not hmac.compare_digest(heard.proof, _proof(secret, b"here", asked.nonce, said.nonce)):
        raise ConnectionFailed(Code.UNAUTHORIZED, "whoever listens there does not know the secret")


def welcome(
    secret: str, asked: PeerChallenge, said: PeerHello, rank: int, size: int, epoch: int, plan: bytes
) -> PeerWelcome:
    """A member's place, and the host's proof that it is of its making."""
    return PeerWelcome(_of_host(secret, asked, said, rank, size, epoch, plan), rank, size, epoch, plan)


def check_host(secret: str, asked: PeerChallenge, said: PeerHello, place: PeerWelcome) -> None:
    """Raises ``ConnectionFailed`` for a welcome by somebody who does not know the secret, or was changed on its way."""
    wanted = _of_host(secret, asked, said, place.rank, place.size, place.epoch, place.plan)
    if not hmac.compare_digest(place.proof, wanted):
        raise ConnectionFailed(Code.UNAUTHORIZED, "whoever listens there does not know the secret")


def link_key(secret: str, epoch: int) -> bytes:
    """What the members of this life of a group prove to each other that they know, where one dials another."""
    return _proof(secret, b"links", b"%d" % epoch)


def proof(key: bytes, *parts: bytes) -> bytes:
    """That somebody knows ``key``, said of ``parts``: each with its length, so that none can take another's bytes."""
    data = b"".join(len(part).to_bytes(8, "big") + part for part in parts)
    return hmac.digest(key, b"trilby peers 1" + data, "sha256")


def _of_member(secret: str, asked: PeerChallenge, name: str, seat: int, nonce: bytes) -> bytes:
    return _proof(secret, b"member", asked.nonce, nonce, name.encode("utf-8", "surrogatepass"), b"%d" % seat)


def _of_host(
    secret: str, asked: PeerChallenge, said: PeerHello, rank: int, size: int, epoch: int, plan: bytes
) -> bytes:
    return _proof(secret, b"host", asked.nonce, said.nonce, b"%d %d %d" % (rank, size, epoch), plan)


def _proof(secret: str, *parts: bytes) -> bytes:
    return proof(secret.encode("utf-8", "surrogatepass"), *parts)
