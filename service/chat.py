"""``trilby chat``: talk to any OpenAI-compatible server from a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import click
import httpx

from service.api_server import NOT_OPENAI, ApiSettings, ServerError, model_of, refusal, unreachable
from service.settings import setting, settings_command

EXAMPLES = """
trilby chat
TRILBY_API_KEY=… trilby chat --url http://gateway.local:8000/v1
trilby chat --url http://gateway.local:8000/v1 --api-key-file ~/.trilby-key
echo "How much is 7 plus 5?" | trilby chat
"""

HELP = "Type a message and press Enter. /new begins a new conversation, /quit or Ctrl-D leaves, Ctrl-C stops an answer."


@dataclass(frozen=True)
class ChatConfig(ApiSettings):
    """Talk to a model in the terminal; its answers appear as they are generated."""

    model: str = setting("", "model to talk to; empty: the first one the server has", variable="chat_model")
    system: str = setting("", "instruction given before the conversation")
    temperature: float = setting(0.0, "0 always gives the likeliest words", minimum=0, maximum=2)
    max_tokens: int = setting(512, "longest answer, in tokens", minimum=1)


def run(config: ChatConfig) -> None:
    """Read messages, show answers, until the input ends."""
    interactive = sys.stdin.isatty()
    with config.client() as client:
        try:
            model = model_of(client, config.model, lambda line: click.echo(line, err=True))
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
                raise ServerError(refusal(response))
            for line in lines_of(response.iter_bytes()):
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
        raise ServerError(unreachable(client.base_url, error)) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ServerError(NOT_OPENAI) from error


def lines_of(pieces: Iterable[bytes]) -> Iterator[str]:
    """A stream's lines. They end with a line feed and with nothing else: texts may have other signs that end lines
    elsewhere, and JSON need not write them as numbers. Raises ValueError for what is no text."""
    rest = b""
    for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.decode().removesuffix("\r")
    if rest:
        yield rest.decode()


command = settings_command(ChatConfig, run, name="chat", examples=EXAMPLES)
