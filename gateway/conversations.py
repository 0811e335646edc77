"""By what a later turn of a conversation is known, so that it goes to the agent that has kept the earlier ones. Pure.

A chat request repeats all messages of the requests before it. Of each request the digest of its messages is remembered
with the agent that got it; a request whose first messages have one of these digests goes on with that conversation.
Digests are keyed, of the tenant too: they say nothing to who has not the key, and nobody meets another's conversation.
"""

from __future__ import annotations

import hashlib
from typing import Final, NamedTuple

from gateway.prompt_sizes import characters_of
from gateway.request import AnyAsk, Ask

DIGEST_BYTES: Final = 12
MOST_TURNS: Final = 1024
MOST_CHARACTERS: Final = 2**20
"""A conversation with more of these is not looked for: reading it would keep others waiting."""

LOOKED_AT: Final = 16
"""Beginnings of a conversation that may have been a request: its last answer may be followed by several messages."""


class Conversation(NamedTuple):
    """The digest of all its messages, and of its beginnings, the longest first."""

    whole: bytes = b""
    before: tuple[bytes, ...] = ()


def conversation_of(ask: AnyAsk, key: bytes) -> Conversation:
    """Return by what a request's conversation is known; one without digests where it is none.

    Args:
        key: up to 64 bytes.
    """
    if not isinstance(ask, Ask) or ask.parts != 1 or not isinstance(turns := ask.prompts[0], list):
        return Conversation()
    if len(turns) > MOST_TURNS or sum(map(characters_of, turns)) > MOST_CHARACTERS:
        return Conversation()
    running = hashlib.blake2b(ask.tenant.encode(), digest_size=DIGEST_BYTES, key=key)
    found: list[bytes] = []
    for at, turn in enumerate(turns, 1):
        called = (text for call in turn.tool_calls for text in (call.name, call.arguments))
        for text in (turn.role, turn.content, *called):
            data = text.encode("utf-8", "surrogatepass")
            running.update(len(data).to_bytes(8, "little"))
            running.update(data)
        if at >= len(turns) - LOOKED_AT:
            found.append(running.digest())
    return Conversation(found[-1], tuple(reversed(found[:-1])))
