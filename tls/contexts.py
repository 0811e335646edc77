"""TLS from files: what a process shows of itself, and whom it trusts.

    tls = Tls("gateway.crt", "gateway.key", "ca.crt")
    listen(ssl=tls.listening())
    connect(url, ssl=tls.dialling())

The files are looked at again, at most every ``LOOK_EVERY_S``, when somebody is dialled or dials: new connections have
what is in them now, and old ones go on. Files that cannot be used are said once, and what was there before stays.
"""

from __future__ import annotations

import os
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from tls.why import why

LOOK_EVERY_S: Final = 1.0

HANDSHAKE_WITHIN_S: Final = 10.0
"""A handshake that takes longer is given up, on both sides."""

Got = TypeVar("Got")

log = structlog.get_logger()


class BadTlsFile(ValueError):
    """The message says which file, what is wrong with it, and nothing of what is in it."""


class Between(NamedTuple):
    """What two use who have told each other their certificates: names are not checked.

    Attributes:
        dials, listens: contexts, of TLS's client and server; both insist on a certificate of the CA's.
        own: this side's certificate, in DER.
    """

    dials: ssl.SSLContext
    listens: ssl.SSLContext
    own: bytes


class _Made(NamedTuple):
    """Contexts of the same files: to dial by name, to listen and want a certificate, to listen and insist on one."""

    dials: ssl.SSLContext
    wants: ssl.SSLContext
    insists: ssl.SSLContext
    between: Between


class Tls:
    """Safe on any thread.

    Args:
        cert, key: files with a certificate (intermediates behind it) and its key; empty: this side shows none.
        ca: file with the CAs that are trusted; empty: the system's, and nobody who dials is asked for a certificate.

    Raises ``BadTlsFile``.
    """

    def __init__(self, cert: str = "", key: str = "", ca: str = "") -> None:
        self._cert, self._key, self._ca = (str(Path(each).expanduser()) if each else "" for each in (cert, key, ca))
        self._lock = threading.Lock()
        self._seen: Sequence[object] | None = self._stamps()
        self._why = ""
        """Why the files cannot be used as they are now, as it was said last."""
        self._made = self._make()
        self._look_at = monotonic() + LOOK_EVERY_S

    @property
    def shows(self) -> bool:
        """Whether this side has a certificate: who listens needs one."""
        return bool(self._cert)

    def dialling(self) -> ssl.SSLContext:
        """A context for one connection, which checks the other side's certificate and name."""
        return self._newest().dials

    def between(self) -> Between:
        """For connections between members that have told each other their certificates."""
        return self._newest().between

    def listening(self, *, refused: Callable[[str], object] | None = None, insists: bool = False) -> ssl.SSLContext:
        """A context for a server. It stays, and each connection has what is in the files by then.

        Args:
            refused: called with the reason where this side refuses a handshake; for servers that would not say it.
            insists: nobody is let in without a certificate of the CA's; else one is wanted where there is a CA.
        """
        context = self._server(insists)

        def renew(connection: ssl.SSLObject, name: str | None, first: ssl.SSLContext) -> None:
            made = self._newest()
            connection.context = made.insists if insists else made.wants

        context.sni_callback = renew
        if refused is not None:
            context.sslobject_class = _telling(refused)
        return context

    def _newest(self) -> _Made:
        with self._lock:
            if monotonic() >= self._look_at:
                self._look_at = monotonic() + LOOK_EVERY_S
                self._look()
            return self._made

    def _look(self) -> None:
        stamps = self._stamps()
        if stamps == self._seen:
            return
        try:
            self._made = self._make()
        except BadTlsFile as error:
            self._seen = None  # They may be made readable without any change, or were unreadable for a moment only.
            if self._why != (why := str(error)):
                log.error("new TLS files cannot be used; the ones before stay", why=why)
            self._why = why
        else:
            self._seen, self._why = stamps, ""
            log.info("TLS files were read again", files=[each for each in (self._cert, self._ca) if each])

    def _stamps(self) -> Sequence[object]:
        return [_stamp(each) for each in (self._cert, self._key, self._ca) if each]

    def _make(self) -> _Made:
        dials = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if not self._ca:
            dials.load_default_certs()
        self._load(dials)
        any_name = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        any_name.check_hostname = False
        self._load(any_name)
        wants, insists = self._server(insists=False), self._server(insists=True)
        return _Made(dials, wants, insists, Between(any_name, insists, self._own()))

    def _own(self) -> bytes:
        """The first certificate of the file, which is this side's."""
        if not self._cert:
            return b""
        begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"

        def first() -> bytes:
            inside = Path(self._cert).read_text("ascii", "replace").partition(begin)[2].partition(end)[0]
            if not inside:
                raise ValueError
            return ssl.PEM_cert_to_DER_cert(f"{begin}{inside}{end}")

        # It may be another file by now than the one that was loaded, or none.
        return _try(self._cert, "holds no certificate (PEM)", first)

    def _server(self, insists: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # No certificate is resumed: who was trusted by files that are gone has to show himself again.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.sslobject_class = _Shown
        self._load(context)
        if self._ca:
            context.verify_mode = ssl.CERT_REQUIRED if insists else ssl.CERT_OPTIONAL
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self._ca:
            _try(self._ca, "holds no certificates (PEM)", lambda: context.load_verify_locations(self._ca))
        if self._cert:
            _try(self._key, "cannot be read", lambda: Path(self._key).open("rb").close())
            # A key with a password would be asked for at the terminal.
            loads = lambda: context.load_cert_chain(self._cert, self._key, lambda: "")  # noqa: E731
            _try(self._cert, f"holds no certificate (PEM), or {self._key} is not its key", loads)


def name_in(certificate: Mapping[str, Any] | None) -> str | None:
    """Whose certificate it is, of one that was verified, as ``getpeercert`` has it: its common name, else the first of
    its other names. None where there is none."""
    if not certificate:
        return None
    names = [value for part in certificate.get("subject", ()) for kind, value in part if kind == "commonName"]
    names += [str(value) for _, value in certificate.get("subjectAltName", ())]
    return names[0] if names else None


def _stamp(path: str) -> object:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _try(path: str, wrong: str, load: Callable[[], Got]) -> Got:
    try:
        return load()
    except ssl.SSLError as error:
        raise BadTlsFile(f"{path} {wrong} ({error.reason or 'unreadable'})") from None
    except OSError as error:
        raise BadTlsFile(f"{path} cannot be read: {error.strerror}") from None
    except ValueError:
        raise BadTlsFile(f"{path} {wrong}") from None


class _Shown(ssl.SSLObject):
    """A connection on which a certificate was shown and checked, if there is one: TLS 1.2 would resume what it was
    told before, without tickets too."""

    def do_handshake(self) -> None:
        super().do_handshake()
        if self.session_reused and self.getpeercert(True) is not None:
            raise CertificateResumed


class CertificateResumed(ssl.SSLError):
    """Who dials goes on with a session instead of showing its certificate."""


def _telling(refused: Callable[[str], object]) -> type[ssl.SSLObject]:
    """A connection that says why its handshake has failed: the event loop would not."""

    class Telling(_Shown):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                refused(why(error, dialled=False))
                raise

    return Telling
