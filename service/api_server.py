"""Any OpenAI-compatible server as its clients have it: where it is, which model is meant, why it does not answer."""

from __future__ import annotations

import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import httpx

from service.api_wait import missing, wait_until_there
from service.settings import changed, setting
from service.tls_settings import TlsSettings
from tls.contexts import BadTlsFile, Tls
from tls.why import cause, why

CONNECT_WITHIN_S: Final = 10.0
SILENT_WITHIN_S: Final = 120.0
"""Time without a token or a keep-alive before an answer is given up."""

TIMEOUT: Final = httpx.Timeout(SILENT_WITHIN_S, connect=CONNECT_WITHIN_S)

NOT_OPENAI: Final = "What answers there does not speak the OpenAI API: does the URL end in /v1?"


class ServerError(Exception):
    """The server refused or failed; the message says why."""


@dataclass(frozen=True)
class ApiSettings:
    """The server."""

    url: str = setting("http://127.0.0.1:8000/v1", "base URL of the API")
    api_key: str = setting("", "key to show to the server", secret=True)
    tls_ca: str = changed(TlsSettings, "tls_ca", "")

    def __post_init__(self) -> None:
        """Raises ValueError where the URL is none."""
        try:
            named = httpx.URL(self.url).host
        except (httpx.InvalidURL, UnicodeError):
            named = ""
        if not self.url.startswith(("http://", "https://")) or not named:
            raise ValueError(f"{self.url!r} is no URL of an API: give http://HOST:PORT/v1 or https://HOST/v1")
        if not self.api_key.isascii():
            raise ValueError("--api-key (TRILBY_API_KEY) has characters that no key has")

    @property
    def base(self) -> str:
        """The URL that paths are put behind."""
        return self.url.rstrip("/")

    @property
    def headers(self) -> dict[str, str]:
        """What every request has."""
        return {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}

    def verifies(self) -> ssl.SSLContext | bool:
        """What the server's certificate is checked by. Raises SystemExit where the file of CAs cannot be used."""
        try:
            return Tls(ca=self.tls_ca).dialling() if self.url.startswith("https:") else True
        except BadTlsFile as error:
            raise SystemExit(f"--tls-ca: {error}") from None

    def client(self) -> httpx.Client:
        """A client for one thing after another. Raises SystemExit where the file of CAs cannot be used."""
        verify = self.verifies()
        return httpx.Client(base_url=self.base, headers=self.headers, timeout=TIMEOUT, trust_env=False, verify=verify)


def model_of(client: httpx.Client, wanted: str, say: Callable[[str], object]) -> str:
    """The model that is meant, the server's first where none is ``wanted``, once it can be asked; ``say`` is told what
    is waited for. Raises ServerError where it cannot for long."""
    first = ""

    def look() -> str:
        nonlocal first
        try:
            cards = _cards(client)
            first = str(cards[0]["id"]) if cards else ""
            return missing(cards, wanted)
        except (KeyError, TypeError) as error:
            raise ServerError(NOT_OPENAI) from error
        except ServerError:
            if wanted:  # Some servers list no models; whether it has this one its answer says.
                return ""
            raise

    lacking = wait_until_there(look, lambda line: say(f"{line} Waiting; Ctrl-C ends it."))
    if lacking:
        raise ServerError(lacking)
    return wanted or first


def _cards(client: httpx.Client) -> list[dict[str, Any]]:
    try:
        response = client.get("/models")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(unreachable(client.base_url, error)) from error
    if response.status_code != 200:
        raise ServerError(refusal(response))
    try:
        return [dict(card) for card in response.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(NOT_OPENAI) from error


def refusal(response: httpx.Response) -> str:
    """Why a request was refused, from the response, which has been read."""
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server answered with status {response.status_code}."


def unreachable(url: httpx.URL | str, error: Exception) -> str:
    """Why there is no answer from ``url``, and what to do."""
    if (broken := cause(error)) is not None:
        return f"No answer from {shown(url)}: {why(broken, dialled=True)}."
    return f"No answer from {shown(url)} ({type(error).__name__}). Is it running? Start it with: trilby serve"


def shown(url: httpx.URL | str) -> str:
    """A URL without the password that it may have."""
    return str(httpx.URL(url).copy_with(userinfo=b""))
