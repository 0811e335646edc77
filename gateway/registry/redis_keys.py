"""API keys in redis, for all gateways that share it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final

import msgspec
import redis
from redis.exceptions import RedisError

from gateway.key_book import KeyRecord
from gateway.key_stores import MOST_KEYS, BadKeyStore
from gateway.registry.names import KEYS, KEYS_VERSION
from gateway.registry.seal import opened, sealed
from tls.why import cause, why

WITHIN_S: Final = 5.0
MOST_RECORD_BYTES: Final = 64 * 2**10

_SEALED_AS: Final = "key"
_decode: Final = msgspec.json.Decoder(KeyRecord).decode


class RedisKeys:
    """Keys in redis, each in a field of its own.

    Args:
        token: the gateways' token, which seals them.
        options: further ones of redis' client: those of ``redis_tls.py``.

    Raises:
        ValueError: the URL is none.
    """

    def __init__(self, url: str, token: str, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._client: Any = redis.Redis.from_url(
            url, protocol=2, socket_timeout=WITHIN_S, socket_connect_timeout=WITHIN_S, **options
        )
        self._token = token

    def read(self) -> list[KeyRecord]:
        return records_in(self._do(lambda client: client.hvals(KEYS)), self._token)

    def add(self, record: KeyRecord) -> bool:
        if self._do(lambda client: client.hlen(KEYS)) >= MOST_KEYS:
            raise BadKeyStore(f"redis has {MOST_KEYS} keys already, as many as it may")
        data = sealed(self._token, _SEALED_AS, msgspec.json.encode(record))
        return self._change(lambda client: client.hsetnx(KEYS, record.name, data))

    def revoke(self, name: str) -> bool:
        return self._change(lambda client: client.hdel(KEYS, name))

    def _change(self, change: Callable[[Any], Any]) -> bool:
        """Change keys and say so, both or none: gateways that were not told would let in who is revoked."""

        def both(client: Any) -> Any:
            with client.pipeline(transaction=True) as together:
                change(together)
                together.incr(KEYS_VERSION)
                return together.execute()[0]

        return bool(self._do(both))

    def _do(self, ask: Callable[[Any], Any]) -> Any:
        try:
            return ask(self._client)
        except (RedisError, OSError) as error:
            no_tls = cause(error)
            reason = type(error).__name__ if no_tls is None else why(no_tls, dialled=True)
            raise BadKeyStore(f"redis cannot be used: {reason}") from error


def records_in(values: Iterable[object], token: str) -> list[KeyRecord]:
    """Return the keys among what is in redis; what is not sealed with the token is none."""
    found: list[KeyRecord] = []
    for value in values:
        data = opened(token, _SEALED_AS, value, MOST_RECORD_BYTES)
        if data is not None and len(found) < MOST_KEYS:
            try:
                found.append(_decode(data))
            except (msgspec.MsgspecError, ValueError):
                continue
    return found
