"""Waits until a server can answer: until it has a model, and the group of devices that has the model has formed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from time import monotonic, sleep
from typing import Any, Final

WAIT_S: Final = 600.0
"""A group that measures its links, and repacks a large model to slow disks, takes minutes."""

LOOK_EVERY_S: Final = 0.5

NO_MODEL: Final = "The server has no model now: is a device connected? (trilby device --gateway …)"


def missing(cards: Sequence[dict[str, Any]], model: str) -> str:
    """What there is to wait for, for people; '' where nothing is. Pure.

    cards: the server's models, as GET /v1/models has them. model: which is meant; '': the first.

    Raises KeyError or TypeError where that is no list of models.
    """
    if not cards:
        return "" if model else NO_MODEL
    card = next((each for each in cards if each["id"] == model), None) if model else cards[0]
    groups = card.get("groups") if card is not None else None
    if not groups or any(group["formed"] for group in groups):
        return ""
    counts = Counter(str(member["state"]) for member in groups[0]["members"])
    members = ", ".join(f"{count} {state}" for state, count in counts.items())
    return f"The group {groups[0]['name']} forms: {members or 'nobody has come yet'}."


def wait_until_there(look: Callable[[], str], say: Callable[[str], object], within_s: float = WAIT_S) -> str:
    """Looks again and again, and says what is waited for whenever it is something else; what it still is at the end, or
    '' where nothing is."""
    deadline, said = monotonic() + within_s, ""
    while (lacking := look()) and monotonic() < deadline:
        if lacking != said:
            say(lacking)
            said = lacking
        sleep(LOOK_EVERY_S)
    return lacking
