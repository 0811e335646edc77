"""The files of TLS, as settings that all processes have which listen or dial."""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from service.settings import tuning
from tls.contexts import Tls


@dataclass(frozen=True, kw_only=True)
class TlsSettings:
    """TLS: files (PEM), which are looked at again while the process runs."""

    tls_cert: str = tuning("", "certificate that this process shows, intermediates behind it; who listens needs one")
    tls_key: str = tuning("", "key of --tls-cert")
    tls_ca: str = tuning(
        "",
        "CAs that are trusted, instead of the system's; who dials this process may then show a certificate of theirs "
        "in place of a token",
    )

    def check_tls(self) -> None:
        """Raises ``ValueError`` where files are missing or cannot be used."""
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ValueError("--tls-cert and --tls-key belong together: give both, or none")
        self.tls()

    @property
    def equals_tls(self) -> Tls | None:
        """What equals use between one another: who has a certificate shows it, and asks the others for theirs."""
        return self.tls() if self.tls_cert else None

    def check_equals(self, secret: str, flag: str) -> None:
        """Raises ``ValueError`` where equals, who share ``secret`` (``flag``), could not know each other."""
        if self.tls_cert and not self.tls_ca:
            raise ValueError("those who share the layers check each other's certificates: give --tls-ca too")
        if not self.tls_cert and not secret:
            raise ValueError(f"{flag} is needed, the same for all who share the layers; or certificates (--tls-cert)")

    @property
    def verifies(self) -> ssl.SSLContext | bool:
        """What this side's own HTTP clients verify the server by, which has this side's certificate; they show none."""
        return Tls(ca=self.tls_ca).dialling() if self.tls_cert else True

    def tls(self) -> Tls | None:
        """What they hold; None where none is given. Raises ``BadTlsFile``."""
        given = self.tls_cert or self.tls_ca
        return Tls(self.tls_cert, self.tls_key, self.tls_ca) if given else None
