"""What equals say to each other: the one that listens is the *host* of their group, each that dials it a *member*.

The host speaks first, so that a stranger has proved that it is none before anything is kept for it. What a proof covers
is said in ``peers/secret.py``. A member that has no place waits, and stays when its group has ended, for the next.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from wire.limits import MAX_POST_BYTES
from wire.message import Count, Message, Name

Nonce = Annotated[bytes, msgspec.Meta(min_length=32, max_length=32)]
Posted = Annotated[bytes, msgspec.Meta(max_length=MAX_POST_BYTES)]


class PeerChallenge(Message, frozen=True, tag=60):
    """The host's hello: prove that you know the secret, with ``nonce`` in the proof."""

    nonce: Nonce


class PeerHello(Message, frozen=True, tag=61):
    """A member's hello and proof; ``nonce`` is for the host's own. ``seat``: the rank it is made for, 0: any."""

    name: Name
    seat: Count
    nonce: Nonce
    proof: Nonce


class PeerHere(Message, frozen=True, tag=66):
    """The host's proof, before it says anything else: a member tells and does nothing for who has not given it."""

    proof: Nonce


class PeerWelcome(Message, frozen=True, tag=62):
    """The host's proof, and the member's place: its ``rank`` among ``size`` in this ``epoch`` of the group. ``plan`` is
    the group's own affair: what this member shall do. Each later one on a connection is of a later epoch."""

    proof: Nonce
    rank: Count
    size: Count
    epoch: Count
    plan: Posted


class PeerPost(Message, frozen=True, tag=63):
    """Something for all members to know, under a key that is used once in an epoch."""

    key: Name
    value: Posted
    epoch: Count = 0


class PeerOver(Message, frozen=True, tag=64):
    """This epoch has ended: from the host, for the member that gets it; from a member, for itself, which may now have
    its next place. ``rank``: who is the reason, 0: nobody in particular. ``code``: what of, where there is a word."""

    epoch: Count
    why: Name
    rank: Count = 0
    code: Name = ""


class PeerNote(Message, frozen=True, tag=65):
    """Something between the host and one member alone, which waits or has a place."""

    value: Posted
