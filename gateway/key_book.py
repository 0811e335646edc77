"""The API keys that clients may show: those given at the start, and those of a store (``trilby keys``).

Of a key only its digest is kept, here and in the store. It is looked up by its digest, whose beginning nobody who
guesses keys can choose.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Iterable, Sequence
from datetime import datetime, timezone
from typing import Annotated, Final

import msgspec

from gateway.errors import RequestError
from gateway.keys import bearer_token, digest_of
from gateway.limits.limits import Limits
from wire.crowd import party_of

ANOTHER: Final = "ask whoever runs this gateway for another"


class KeyRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """One key.

    Attributes:
        digest: its SHA-256, in hexadecimal.
        expires: seconds since 1970 from which on it is worth nothing; 0: never.
        models: those it may use; none: all.
        limits: None: those of the gateway.
    """

    name: str
    digest: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    expires: float = 0.0
    models: tuple[str, ...] = ()
    limits: Limits | None = None

    def may_use(self, model: str) -> bool:
        """Whether it is for this model."""
        return not self.models or model in self.models


KEY_ELSEWHERE: Final = "key_not_known_here"
"""Said to other gateways only, which do without this one."""

NOBODY = KeyRecord("", "")
"""Who comes where no key is asked."""


class KeyBook:
    """Who may come in as a client, as what.

    Args:
        given: keys that were given at the start, which never expire.
        usual: what a key may do that says nothing else, and who comes without one where none is asked.
        stored: there is a store of keys: a key is asked, even while none is known.
        secret: what makes the names of tenants the same in all gateways that have it; empty: for this process only.
    """

    def __init__(self, given: Sequence[str], usual: Limits, *, stored: bool = False, secret: str = "") -> None:
        self._given_keys: tuple[str, ...] = ()
        self._given: list[KeyRecord] = []
        self._records: tuple[KeyRecord, ...] = ()
        self._usual = usual
        self._stored = stored
        self._known = not stored
        self._salt = hmac.digest(secret.encode(), b"tenants", "sha256") if secret else os.urandom(32)
        self._by_digest: dict[str, KeyRecord] = {}
        self._by_tenant: dict[str, KeyRecord] = {}
        self.give(given)

    def give(self, keys: Sequence[str]) -> None:
        """These are the keys given from now on, beside those of the store."""
        if self._given_keys != (given := tuple(keys)):
            self._given_keys = given
            self._given = [KeyRecord(f"#{at}", digest_of(key).hex()) for at, key in enumerate(given, 1)]
            self._learn()

    @property
    def asked(self) -> bool:
        """Whether a client must show a key."""
        return self._stored or bool(self._given)

    def replace(self, records: Iterable[KeyRecord]) -> None:
        """These are the keys in the store now."""
        self._known = True
        self._records = tuple(records)
        self._learn()

    def admitted(self, authorization: str | None, now: float) -> KeyRecord | RequestError:
        """Return the key that a client shows; or why it may not come in.

        Args:
            now: seconds since 1970.
        """
        if not self.asked:
            return NOBODY
        token = bearer_token(authorization or "")
        if token is None:
            return _refused("no API key was given: send it as 'Authorization: Bearer KEY'")
        record = self._by_digest.get(digest_of(token).hex())
        if record is None and not self._known:
            text = "the keys of this gateway are not known yet: its store cannot be reached"
            return RequestError(503, text, code="keys_unavailable", retry_s=2.0)
        if record is None:
            return _refused("the API key is wrong: this gateway knows others")
        return self.still(record, now) or record

    def still(self, record: KeyRecord, now: float) -> RequestError | None:
        """Return why a key that was good when its client came is good no more, None where it is."""
        if record.digest and self._by_digest.get(record.digest) is None:
            return _refused(f"the API key has been revoked: {ANOTHER}")
        if not 0 < record.expires <= now:
            return None
        # Where the clock is wrong, it is seen here.
        when = f"at {_minute(record.expires)}, and it is {_minute(now)} at the gateway"
        return _refused(f"the API key has expired {when}: {ANOTHER}")

    def tenant(self, authorization: str | None, address: str) -> str:
        """Return a name that tells a client from others, by its key, or by its address where no key is asked. The
        devices see the name, so neither can be guessed from it."""
        who = (bearer_token(authorization or "") or "") if self.asked else party_of(address)
        return self._name(digest_of(who))

    def of_tenant(self, tenant: str) -> KeyRecord | RequestError:
        """Return the key of a tenant whom another gateway has let in; or that it is not known here (it was made or
        revoked a moment ago, or is given to the other gateway alone), so that nothing can be said of its limits."""
        if not self.asked:
            return NOBODY
        if (known := self._by_tenant.get(tenant)) is not None:
            return known
        return RequestError(503, "the API key is not known at this gateway", code=KEY_ELSEWHERE)

    def limits(self, record: KeyRecord) -> Limits:
        """Return what a key may do."""
        return self._usual if record.limits is None else record.limits

    def _learn(self) -> None:
        self._by_digest = {each.digest: each for each in (*self._records, *self._given)}
        self._by_tenant = {self._name(bytes.fromhex(digest)): each for digest, each in self._by_digest.items()}

    def _name(self, digest: bytes) -> str:
        return hmac.digest(self._salt, digest, "sha256").hex()[:32]


def _refused(message: str) -> RequestError:
    return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
