"""Who may come in: keys of clients, tokens of device agents and operators. Compared as digests, in constant time."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Sequence

from gateway.errors import RequestError
from wire.crowd import party_of


def _digest(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class KeyRing:
    """A set of secrets; only their digests are kept.

    An empty ring admits nobody: whoever means "no key is asked" has to say so where it is used.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self.hold(secrets)
        self._salt = os.urandom(16)

    def hold(self, secrets: Sequence[str]) -> None:
        """These from now on; tenants stay who they are."""
        self._digests = [_digest(secret) for secret in secrets if secret]

    def __len__(self) -> int:
        return len(self._digests)

    def admits(self, secret: str) -> bool:
        """Whether ``secret`` is one of the ring's. Takes the same time whichever it is."""
        given, found = _digest(secret), False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found

    def tenant(self, authorization: str | None, address: str) -> str:
        """Return a name that tells a client from others for as long as this process lives: by its key, or by its
        address where no key is asked. The devices see the name, so neither can be guessed from it."""
        who = (bearer_token(authorization or "") or "") if self._digests else party_of(address)
        return hmac.digest(self._salt, _digest(who), "sha256").hex()[:32]


def bearer_token(authorization: str) -> str | None:
    """Return the token of an ``Authorization: Bearer`` header, None when it is of another kind."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def check_key(ring: KeyRing, authorization: str | None) -> RequestError | None:
    """Return why a client may not come in; None when it may, or when no key is asked."""
    return _check(ring, authorization, "API key", "KEY") if len(ring) else None


def check_device(ring: KeyRing, authorization: str | None, *, needed: bool = False) -> RequestError | None:
    """Return why somebody is no device of ours; None when it is, or when no token is set and none is ``needed``: then
    only this machine reaches the gateway."""
    return _check(ring, authorization, "device token", "TOKEN") if len(ring) or needed else None


def check_operator(ring: KeyRing, authorization: str | None) -> RequestError | None:
    """Return why somebody is no operator; None when they are. Without an operator token nobody is one."""
    if not len(ring):
        return RequestError(
            403,
            "only an operator may do this, and no operator token is set: start the gateway with --operator-token "
            "(TRILBY_OPERATOR_TOKEN), or send its process SIGTERM",
            code="forbidden",
        )
    return _check(ring, authorization, "operator token", "TOKEN")


def _check(ring: KeyRing, authorization: str | None, what: str, form: str) -> RequestError | None:
    token = bearer_token(authorization or "")
    if token is not None and ring.admits(token):
        return None
    given = f"no {what} was given: send it as 'Authorization: Bearer {form}'"
    message = given if token is None else f"the {what} is wrong"
    return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
