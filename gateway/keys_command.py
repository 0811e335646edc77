"""``trilby keys``: make, show and revoke the API keys of a gateway."""

from __future__ import annotations

import math
import secrets
import sys
import time
from datetime import datetime, timezone
from typing import Any, Final

import click

from gateway.key_book import KeyRecord
from gateway.key_stores import IN_REDIS, BadKeyStore, KeyFile, KeyStore
from gateway.keys import digest_of
from gateway.limits.limits import MOST, Limits
from service.secret_files import BadSecretFile, read_secret

PREFIX: Final = "sk-trilby-"
DAY_S: Final = 86_400
LONGEST_NAME: Final = 64
MOST_DAYS: Final = 36_500

EPILOG: Final = """\b
Examples:
  export TRILBY_KEY_STORE=~/trilby-keys              the gateway's --key-store; or: redis
  trilby keys add alice --days 90 --requests 60 --tokens 100000
  trilby keys list
  trilby keys revoke alice
"""


@click.group(epilog=EPILOG, context_settings={"max_content_width": 110})
@click.option("--key-store", envvar="TRILBY_KEY_STORE", required=True, show_envvar=True, help="file of keys; or: redis")
@click.option("--redis", "url", envvar="TRILBY_REDIS", default="", show_envvar=True, help="redis://HOST:PORT")
@click.option("--redis-file", envvar="TRILBY_REDIS_FILE", default="", show_envvar=True, help="file to read it from")
@click.option(
    "--gateway-token", "token", envvar="TRILBY_GATEWAY_TOKEN", default="", show_envvar=True, help="the gateways' token"
)
@click.option(
    "--gateway-token-file", "token_file", envvar="TRILBY_GATEWAY_TOKEN_FILE", default="", show_envvar=True,
    help="file to read it from",
)  # fmt: skip
@click.option("--tls-cert", envvar="TRILBY_TLS_CERT", default="", show_envvar=True, help="shown to a redis that asks")
@click.option("--tls-key", envvar="TRILBY_TLS_KEY", default="", show_envvar=True, help="key of --tls-cert")
@click.option("--tls-ca", envvar="TRILBY_TLS_CA", default="", show_envvar=True, help="CAs trusted of rediss://")
@click.pass_context
def main(
    context: click.Context, /, key_store: str, url: str, redis_file: str, token: str, token_file: str, **tls: str
) -> None:
    """Make, show and revoke API keys. Gateways that run notice within seconds."""
    try:
        url = read_secret(redis_file, many=False) if redis_file else url
        token = read_secret(token_file, many=False) if token_file else token
    except BadSecretFile as error:
        raise click.UsageError(str(error)) from error
    context.obj = _store(key_store, url, token, **tls)


@main.command()
@click.argument("name")
@click.option("--days", type=click.FloatRange(0, MOST_DAYS, True), help="days until it expires; not given: never")
@click.option("--model", "models", multiple=True, help="a model it may use; several times; not given: all")
@click.option("--requests", type=click.IntRange(0, MOST), help="requests a minute; 0: any number")
@click.option("--tokens", type=click.IntRange(0, MOST), help="tokens a minute; 0: any number")
@click.option("--concurrent", type=click.IntRange(0, MOST), help="requests open at once; 0: any number")
@click.pass_obj
def add(
    store: KeyStore,
    /,
    name: str,
    days: float | None,
    models: tuple[str, ...],
    **limits: int | None,
) -> None:
    """Make a key and print it, this once. Limits that are not given are those of the gateway, if none is; else none."""
    if not name.isprintable() or not 0 < len(name) <= LONGEST_NAME:
        raise click.UsageError(f"a name has 1 to {LONGEST_NAME} printable characters")
    if days is not None and math.isnan(days):
        raise click.UsageError("--days is a number")
    key = PREFIX + secrets.token_urlsafe(32)
    own = {what: limit for what, limit in limits.items() if limit is not None}
    expires = time.time() + days * DAY_S if days is not None else 0.0
    record = KeyRecord(name, digest_of(key).hex(), expires, models, Limits(**own) if own else None)
    if not _tried(store.add, record):
        raise click.ClickException(f"there is a key of the name {name!r}: revoke it, or choose another name")
    click.echo(key)
    if sys.stdout.isatty():
        click.echo("It is shown this once: only its digest is kept.", err=True)


@main.command("list")
@click.pass_obj
def show(store: KeyStore) -> None:
    """Show the keys by their names; they themselves are not kept."""
    for each in _tried(store.read):
        of = each.limits
        limited = (
            "" if of is None else f"  {of.requests} requests, {of.tokens} tokens a minute, {of.concurrent} at once"
        )
        models = f"  {', '.join(each.models)}" if each.models else ""
        click.echo(f"{each.name}  {_until(each.expires)}{limited}{models}")


@main.command()
@click.argument("name")
@click.pass_obj
def revoke(store: KeyStore, name: str) -> None:
    """Remove a key."""
    if not _tried(store.revoke, name):
        raise click.ClickException(f"there is no key of the name {name!r}; 'trilby keys list' shows those there are")


def _until(expires: float) -> str:
    if not expires:
        return "never expires"
    day = datetime.fromtimestamp(expires, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    return f"{'expired' if expires <= time.time() else 'until'} {day}"


def _store(key_store: str, url: str, token: str, tls_cert: str, tls_key: str, tls_ca: str) -> KeyStore:
    if key_store != IN_REDIS:
        return KeyFile(key_store)
    if not url or not token:
        raise click.UsageError(
            "keys in redis need --redis (TRILBY_REDIS) and --gateway-token (TRILBY_GATEWAY_TOKEN), as the gateways have"
        )
    from gateway.registry.redis_keys import RedisKeys  # With redis' client, which a file does without.
    from gateway.registry.redis_tls import tls_options

    try:
        return RedisKeys(url, token, tls_options(url, tls_cert, tls_key, tls_ca))
    except ValueError as error:
        raise click.UsageError("--redis is redis://HOST:PORT, rediss://… or unix://PATH") from error


def _tried(do: Any, *arguments: Any) -> Any:
    try:
        return do(*arguments)
    except BadKeyStore as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
