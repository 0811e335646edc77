"""Where tokens came from, as clients are told that ask for it. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import UNSET

from gateway.reply_schema import PhaseTimings, TokenOrigin
from wire.origins import Origin, Spent


def origins_of(told: Iterable[Origin] | None) -> list[TokenOrigin]:
    """Return what is said of each token; nothing where the device does not say."""
    return [_origin(each) for each in told or ()]


def _origin(told: Origin) -> TokenOrigin:
    took_ms = told.took_us / 1e3 if told.took_us else UNSET
    timings = UNSET if told.spent is None else PhaseTimings(*phase_ms(told.spent))
    return TokenOrigin(told.round, told.source or None, took_ms, timings)


def phase_ms(spent: Spent) -> tuple[float, float, float, float]:
    """Return the four in milliseconds, as ``PhaseTimings`` has them."""
    return spent.device_us / 1e3, spent.link_us / 1e3, spent.queue_us / 1e3, spent.step_us / 1e3
