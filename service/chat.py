"""``trilby chat``: talk to any OpenAI-compatible server from a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
import httpx

from service.chat_wait import missing, wait_until_there
from service.settings import changed, setting, settings_command
from service.tls_settings import TlsSettings
from tls.contexts import BadTlsFile, Tls
from tls.why import cause, why

CONNECT_WITHIN_S = 10.0
SILENT_WITHIN_S = 120.0
"""Time without a token or a keep-alive before an answer is given up."""

EXAMPLES = """
trilby chat
TRILBY_API_KEY=… trilby chat --url http://gateway.local:8000/v1
trilby chat --url http://gateway.local:8000/v1 --api-key-file ~/.trilby-key
echo "How much is 7 plus 5?" | trilby chat
"""

NOT_OPENAI = "What answers there does not speak the OpenAI API: does the URL end in /v1?"

HELP = "Type a message and press Enter. /new begins a new conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."


@dataclass(frozen=True)
class ChatConfig:
    """Talk to a model in the terminal; its answers appear as they are generated."""

    url: str = setting("http://127.0.0.1:8000/v1", "base URL of the API")
    api_key: str = setting("", "key to show to the server", secret=True)
    model: str = setting("", "model to talk to; empty: the first one the server has", variable="chat_model")
    system: str = setting("", "instruction given before the conversation")
    temperature: float = setting(0.0, "0 always gives the likeliest words", minimum=0, maximum=2)
    max_tokens: int = setting(512, "longest answer, in tokens", minimum=1)
    tls_ca: str = changed(TlsSettings, "tls_ca", "")


class ServerError(Exception):
    """The server refused or failed; the message says why."""


def run(config: ChatConfig) -> None:
    """Read messages, show answers, until the input ends."""
    headers = {"Authorization": f"Bearer {config.api_key}"} if config.api_key else {}
    timeout = httpx.Timeout(SILENT_WITHIN_S, connect=CONNECT_WITHIN_S)
    interactive = sys.stdin.isatty()
    url = config.url.rstrip("/")
    try:
        verify = Tls(ca=config.tls_ca).dialling() if url.startswith("https:") else True
    except BadTlsFile as error:
        raise SystemExit(f"--tls-ca: {error}") from None
    with httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=False, verify=verify) as client:
        try:
            model = _model(client, config.model)
        except ServerError as error:
            raise SystemExit(str(error)) from error
        if interactive:
            click.echo(f"{model} at {config.url}. {HELP}")
        opening = [{"role": "system", "content": config.system}] if config.system else []
        turns = list(opening)
        for line in _lines(interactive):
            if line in ("/quit", "/exit"):
                break
            if line == "/new":
                turns = list(opening)
                click.echo("A new conversation.")
                continue
            if line in ("/help", "/?"):
                click.echo(HELP)
                continue
            turns.append({"role": "user", "content": line})
            try:
                usage: dict[str, Any] = {}
                text = show(answer(client, model, turns, config, usage), thoughts=interactive)
                turns.append({"role": "assistant", "content": text})
                if interactive and (line := summed_up(usage)):
                    click.secho(line, dim=True)
            except ServerError as error:
                turns.pop()
                click.echo(f"\n{error}", err=True)
                if not interactive:
                    raise SystemExit(1) from error


def _lines(interactive: bool) -> Iterator[str]:
    while True:
        try:
            line = input("\nyou> " if interactive else "").strip()
        except (EOFError, KeyboardInterrupt):
            if interactive:
                click.echo("")
            return
        if line:
            yield line


class Said(NamedTuple):
    """A piece of an answer, or of what is thought before it."""

    text: str
    thought: bool = False


def show(pieces: Iterable[Said], *, thoughts: bool) -> str:
    """Print an answer as it comes, and what is thought before it where ``thoughts`` are wanted; Ctrl-C ends it early
    and keeps what came of the answer."""
    text, thinking = "", False
    try:
        for piece in pieces:
            if piece.thought and not thoughts:
                continue
            if thinking and not piece.thought:
                click.echo("\n")
            thinking = piece.thought
            text += "" if piece.thought else piece.text
            click.secho(piece.text, nl=False, dim=piece.thought or None)
            sys.stdout.flush()
    except KeyboardInterrupt:
        click.echo(" …", nl=False)
    click.echo("")
    return text


def summed_up(usage: dict[str, Any]) -> str:
    """One line about an answer from its usage, which any server may have sent; empty where it says too little."""
    tokens = usage.get("completion_tokens")
    if not isinstance(tokens, int):
        return ""
    line = f"({tokens} tokens"
    details = usage.get("completion_tokens_details")
    if isinstance(details, dict):
        accepted, rejected = (details.get(f"{each}_prediction_tokens") for each in ("accepted", "rejected"))
        if isinstance(accepted, int) and isinstance(rejected, int) and accepted + rejected > 0:
            line += f", {accepted} of {accepted + rejected} drafted ones accepted"
    return line + ")"


def answer(
    client: httpx.Client, model: str, turns: list[dict[str, str]], config: ChatConfig, usage: dict[str, Any]
) -> Iterator[Said]:
    """The pieces of an answer as they come; ``usage`` is filled in where the server reports it.

    Raises:
        ServerError: the server refused or failed.
    """
    body = {
        "model": model,
        "messages": turns,
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": config.temperature,
        "max_tokens": config.max_tokens,
    }
    try:
        with client.stream("POST", "/chat/completions", json=body) as response:
            if response.status_code != 200:
                response.read()
                raise ServerError(_why(response))
            for line in response.iter_lines():
                if not line.startswith("data: ") or line == "data: [DONE]":
                    continue
                chunk = json.loads(line[len("data: ") :])
                if "error" in chunk:
                    raise ServerError(chunk["error"]["message"])
                usage.update(chunk.get("usage") or {})
                for choice in chunk["choices"]:
                    for name in ("reasoning_content", "content"):
                        if told := choice["delta"].get(name):
                            yield Said(told, thought=name != "content")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(_unreachable(client, error)) from error
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(NOT_OPENAI) from error


def _model(client: httpx.Client, wanted: str) -> str:
    """The model that is meant, once it can be asked. Raises ServerError where it cannot for long."""
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

    lacking = wait_until_there(look, lambda line: click.echo(f"{line} Waiting; Ctrl-C ends it.", err=True))
    if lacking:
        raise ServerError(lacking)
    return wanted or first


def _cards(client: httpx.Client) -> list[dict[str, Any]]:
    try:
        response = client.get("/models")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerError(_unreachable(client, error)) from error
    if response.status_code != 200:
        raise ServerError(_why(response))
    try:
        return [dict(card) for card in response.json()["data"]]
    except (ValueError, KeyError, TypeError) as error:
        raise ServerError(NOT_OPENAI) from error


def _why(response: httpx.Response) -> str:
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"The server answered with status {response.status_code}."


def _unreachable(client: httpx.Client, error: Exception) -> str:
    if (broken := cause(error)) is not None:
        return f"No answer from {client.base_url}: {why(broken, dialled=True)}."
    return f"No answer from {client.base_url} ({type(error).__name__}). Is it running? Start it with: trilby serve"


command = settings_command(ChatConfig, run, name="chat", examples=EXAMPLES)
