"""The connections to cloud servers as people are told of them."""

from __future__ import annotations

from urllib.parse import urlsplit

from device_agent.cloud.link import CloudLink
from wire.limits import MAX_TEXT
from wire.observed_messages import Wire


def wire_of(link: CloudLink) -> Wire:
    """Return what there is to say of one: where to by host and port alone, and how it is now."""
    to, stream = urlsplit(link.url).netloc.rpartition("@")[2][:MAX_TEXT], link.stream
    if stream is None or stream.failure is not None:
        return Wire(to, "away" if link.refusal is None else "refused")
    rtt_us = 0 if link.rtt_s is None else int(link.rtt_s * 1e6)
    state = "draining" if link.draining else "ready"
    return Wire(to, state, rtt_us, stream.sent_bytes, stream.received_bytes, link.figures)
