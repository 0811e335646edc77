"""Secrets that are shown at the door: digests of them, compared in constant time, and what is in a header."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Final

from gateway.errors import RequestError

TOKEN_HEADER: Final = "x-trilby-gateway"
"""Where a gateway shows another the token that they share."""

NOT_OURS: Final = "wrong_gateway_token"

TENANT_HEADER: Final = "x-trilby-tenant"
"""Whose request it sends there."""

AT_ONCE_HEADER: Final = "x-trilby-at-once"
"""Whether it waits there for an agent to come free ("0", or nothing) or is refused where none is ("1")."""


MODEL_HEADER: Final = "x-trilby-model"
"""Which model is meant by one that names none, percent-encoded."""


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 of a secret."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


class KeyRing:
    """A set of secrets; only their digests are kept.

    An empty ring admits nobody: whoever means "no key is asked" has to say so where it is used.
    """

    def __init__(self, secrets: Sequence[str]) -> None:
        self.hold(secrets)

    def hold(self, secrets: Sequence[str]) -> None:
        """These from now on."""
        self._digests = [digest_of(secret) for secret in secrets if secret]

    def __len__(self) -> int:
        return len(self._digests)

    def admits(self, secret: str) -> bool:
        """Whether ``secret`` is one of the ring's. Takes the same time whichever it is."""
        given, found = digest_of(secret), False
        for digest in self._digests:
            found |= hmac.compare_digest(given, digest)
        return found


def bearer_token(authorization: str) -> str | None:
    """Return the token of an ``Authorization: Bearer`` header, None when it is of another kind."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def check_device(ring: KeyRing, authorization: str | None, *, needed: bool = False) -> RequestError | None:
    """Return why somebody is no device of ours; None when it is, or when no token is set and none is ``needed``: then
    only this machine reaches the gateway."""
    return _check(ring, authorization, "device token") if len(ring) or needed else None


def check_gateway(ring: KeyRing, token: str) -> RequestError | None:
    """Return why somebody is no gateway of ours; None when it is."""
    if ring.admits(token):
        return None
    return RequestError(401, "the gateway token is wrong: gateways that share a redis have the same", code=NOT_OURS)


def check_operator(ring: KeyRing, authorization: str | None) -> RequestError | None:
    """Return why somebody is no operator; None when they are. Without an operator token nobody is one."""
    if not len(ring):
        return RequestError(
            403,
            "only an operator may do this, and no operator token is set: start the gateway with --operator-token "
            "(TRILBY_OPERATOR_TOKEN), or send its process SIGTERM",
            code="forbidden",
        )
    return _check(ring, authorization, "operator token")


def _check(ring: KeyRing, authorization: str | None, what: str) -> RequestError | None:
    token = bearer_token(authorization or "")
    if token is not None and ring.admits(token):
        return None
    given = f"no {what} was given: send it as 'Authorization: Bearer TOKEN'"
    message = given if token is None else f"the {what} is wrong"
    return RequestError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})
