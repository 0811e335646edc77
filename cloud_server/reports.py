"""What operators are shown of a cloud server: names, counts and times, nothing of any content."""

from __future__ import annotations

from time import monotonic

from cloud_server.engine.entries import SessionState
from cloud_server.server import CloudServer


def state_of(server: CloudServer) -> dict[str, object]:
    """What /state shows."""
    engine = server.engine
    identity, ledger, scheduler, load = (
        engine.identity,
        engine.ledger,
        engine.sessions.scheduler,
        engine.pace.load,
    )
    pages = ledger.pages
    return {
        "model": identity.model,
        "digest": identity.digest,
        "layers": [identity.first_layer, identity.last_layer],
        "dtype": identity.dtype,
        **server.about,
        "draining": ledger.draining,
        "uptime_s": round(monotonic() - server.began, 1),
        "step_ms": round(load.eta * 1e3, 3),
        "step_rows": round(load.mu, 1),
        "expected_step_ms": {str(rows): round(load.g(rows) * 1e3, 3) for rows in (1, 8, 64, 512)},
        "stages": engine.depth,
        "waiting_rows": scheduler.waiting_rows,
        "pages": {"used": pages.used, "free": pages.free, "all": pages.count, "positions": pages.page_positions},
        "devices": [
            {
                "connection": link.connection,
                "name": link.name,
                "rtt_ms": None if link.stream.rtt_s is None else round(link.stream.rtt_s * 1e3, 2),
                "received_bytes": link.stream.received_bytes,
                "sent_bytes": link.stream.sent_bytes,
                "sessions": ledger.of_device(link.connection),
                "up_bytes_s": link.measured.up_bytes_s,
                "down_bytes_s": link.measured.down_bytes_s,
            }
            for link in server.links.values()
        ],
        "sessions": [
            {
                "connection": key[0],
                "session": key[1],
                "state": entry.state.value,
                "position": entry.position,
                "pages": pages.held(key),
            }
            for key, entry in ledger.entries.items()
        ],
    }


def measured(server: CloudServer) -> bytes:
    """The metrics, brought up to date."""
    metrics, ledger, scheduler = server.engine.metrics, server.engine.ledger, server.engine.sessions.scheduler
    for link in server.links.values():
        server.count_bytes(link)
    running = ledger.count(SessionState.OPEN)
    metrics.running.set(running)
    metrics.parked.set(len(ledger.entries) - running)
    metrics.devices.set(len(server.links))
    metrics.waiting.set(scheduler.waiting_sessions)
    metrics.waiting_rows.set(scheduler.waiting_rows)
    metrics.kv_usage.set(ledger.pages.used / ledger.pages.count)
    return metrics.text()
