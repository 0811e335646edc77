"""Keys with names, expiry, models and limits: who may come in, and where they are kept."""

from __future__ import annotations

import json
import stat
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from redis_here import RedisServer

from gateway.config import GatewayConfig
from gateway.errors import RequestError
from gateway.key_book import KEY_ELSEWHERE, NOBODY, KeyBook, KeyRecord
from gateway.key_stores import BadKeyStore, KeyFile
from gateway.keys import digest_of
from gateway.keys_command import main
from gateway.limits.limits import Limits
from gateway.registry.names import KEYS, KEYS_VERSION
from gateway.registry.redis_keys import records_in
from wire.request_messages import ServedModel

NOW = 1_800_000_000.0
TOKEN = "sixteen-characters"


def record(key: str, **about: Any) -> KeyRecord:
    return KeyRecord(about.pop("name", key), digest_of(key).hex(), **about)


def test_stored_keys_come_in_until_they_expire_or_are_revoked() -> None:
    """Beside those given at the start; each refusal says which it is."""
    book = KeyBook(["given"], Limits(), stored=True)
    book.replace([record("a"), record("b", expires=NOW)])
    for key, status in (("given", None), ("a", None), ("b", 401), ("c", 401)):
        found = book.admitted(f"Bearer {key}", NOW)
        assert (found.status if isinstance(found, RequestError) else None) == status
    expired, a = book.admitted("Bearer b", NOW), book.admitted("Bearer a", NOW)
    assert isinstance(expired, RequestError) and expired.message.startswith("the API key has expired at ")
    assert not isinstance(book.admitted("Bearer b", NOW - 1), RequestError)
    assert isinstance(a, KeyRecord) and book.still(a, NOW) is None
    book.replace([])
    revoked = book.still(a, NOW)
    assert revoked is not None and revoked.status == 401
    assert isinstance(book.admitted("Bearer a", NOW), RequestError)
    book.give(["another"])
    assert isinstance(book.admitted("Bearer given", NOW), RequestError)
    assert not isinstance(book.admitted("Bearer another", NOW), RequestError)


def test_a_store_without_keys_opens_no_door() -> None:
    """Nor one that nobody could read yet: that is for later."""
    book = KeyBook([], Limits(), stored=True)
    unread = book.admitted("Bearer a", NOW)
    assert isinstance(unread, RequestError) and unread.status == 503
    book.replace([])
    empty = book.admitted("Bearer a", NOW)
    assert isinstance(empty, RequestError) and empty.status == 401


def test_tenants_have_the_same_name_where_the_token_is_the_same() -> None:
    """So that a device keeps a conversation whichever gateway it comes by; and their keys are found by it."""
    books = [KeyBook(["one"], Limits(), stored=True, secret=TOKEN) for _ in range(2)]
    books[1].replace([record("two", limits=Limits(5))])
    name = books[0].tenant("Bearer two", "")
    assert name == books[1].tenant("Bearer two", "10.0.0.1") and "two" not in name
    found = books[1].of_tenant(name)
    assert isinstance(found, KeyRecord) and books[1].limits(found) == Limits(5)
    unknown = books[0].of_tenant(name)  # Made a moment ago: nobody may come in without its limits.
    assert isinstance(unknown, RequestError) and unknown.code == KEY_ELSEWHERE
    assert KeyBook([], Limits(), secret=TOKEN).of_tenant(name) is NOBODY
    assert books[0].tenant("Bearer two", "") != KeyBook(["one"], Limits(), secret="another").tenant("Bearer two", "")


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    """By its owner only; a name is there once."""
    file = KeyFile(str(tmp_path / "keys"))
    assert file.read() == [] and file.stamp is None
    one, two = record("a", models=("m",), limits=Limits(1, 2, 3)), record("b", expires=NOW)
    assert file.add(one) and file.add(two) and not file.add(record("c", name="a"))
    before = file.stamp
    assert file.read() == [one, two]
    assert stat.S_IMODE((tmp_path / "keys").stat().st_mode) == 0o600
    assert file.revoke("a") and not file.revoke("a")
    assert file.read() == [two] and file.stamp != before
    assert [each.name for each in tmp_path.iterdir()] == ["keys"]


def test_changes_of_a_file_do_not_undo_one_another(tmp_path: Path) -> None:
    """Made at the same time, all of them hold."""
    file = KeyFile(str(tmp_path / "keys"))
    names = [f"key {at}" for at in range(24)]
    for name in names[:12]:
        file.add(record(name, name=name))
    with ThreadPoolExecutor(8) as several:
        done = [several.submit(file.revoke, name) for name in names[:12]]
        done += [several.submit(file.add, record(name, name=name)) for name in names[12:]]
    assert all(each.result() for each in done)
    assert sorted(each.name for each in file.read()) == sorted(names[12:])


@pytest.mark.parametrize(
    "line",
    [
        "sk-somebody-has-put-his-key-here",
        json.dumps({"name": "a", "digest": "g" * 64}),
        json.dumps({"name": "a", "digest": "a" * 63}),
        json.dumps({"name": "a", "digest": "a" * 64, "limits": {"requests": -1}}),
        "\udcff",
    ],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, line: str) -> None:
    """With its name, and nothing of what is in it."""
    path = tmp_path / "keys"
    path.write_bytes(line.encode("utf-8", "surrogateescape"))
    with pytest.raises(BadKeyStore) as refused:
        KeyFile(str(path)).read()
    assert str(path) in str(refused.value) and line not in str(refused.value)


@pytest.fixture(params=["file", "redis"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[str]]:
    """What ``trilby keys`` is told of a store."""
    if request.param == "file":
        yield ["--key-store", str(tmp_path / "keys")]
        return
    with RedisServer() as server:
        yield ["--key-store", "redis", "--redis", server.url, "--gateway-token", TOKEN]


def test_keys_are_made_shown_and_revoked(store: list[str]) -> None:
    """The key itself is printed once and kept nowhere."""

    def told(*arguments: str, status: int = 0) -> str:
        result = CliRunner().invoke(main, [*store, *arguments])
        assert result.exit_code == status, result.output
        return result.output.strip()

    key = key_in(told("add", "alice", "--days", "2", "--model", "m", "--requests", "5", "--concurrent", "2"))
    assert len(key) > 50
    assert key_in(told("add", "bob")) != key
    assert "alice" in told("add", "alice", status=1)
    shown = told("list")
    assert "alice  until " in shown and "5 requests" in shown and "bob  never expires" in shown
    assert key not in shown and digest_of(key).hex() not in shown
    told("revoke", "alice")
    assert "alice" not in told("list")
    assert "no key" in told("revoke", "alice", status=1)


def key_in(output: str) -> str:
    """The key that was printed; threads of other tests may have logged beside it."""
    [key] = [line for line in output.splitlines() if line.startswith("sk-trilby-")]
    return key


def test_keys_in_redis_are_the_gateways_own() -> None:
    """Whoever writes into redis without the token has made no key."""
    with RedisServer() as server:
        arguments = ["--key-store", "redis", "--redis", server.url, "--gateway-token", TOKEN, "add", "alice"]
        key = key_in(CliRunner().invoke(main, arguments).output)
        server.client.hset(KEYS, "mallory", b"\0" * 32 + server.client.hget(KEYS, "alice")[32:])
        server.client.hset(KEYS, "eve", "x")
        assert int(server.client.get(KEYS_VERSION)) == 1
        values = server.client.hvals(KEYS)
        assert [each.digest for each in records_in(values, TOKEN)] == [digest_of(key).hex()]
        assert records_in(values, "another-sixteen-characters") == []


async def test_a_key_of_a_file_is_asked_and_limited(serving: Any, connected: Any, chat: Any, tmp_path: Path) -> None:
    """For the models it may use, as often as it may, with all headers; one that is revoked is worth nothing soon."""
    path = str(tmp_path / "keys")
    runner = CliRunner()
    keys = {
        name: key_in(runner.invoke(main, ["--key-store", path, "add", name, *more]).output)
        for name, more in {"few": ["--requests", "2"], "all": [], "other": ["--model", "other/model"]}.items()
    }
    async with serving(GatewayConfig(key_store=path, tokens_a_minute=100_000)) as gateway, connected(gateway):

        async def asked(name: str) -> Any:
            headers = {"authorization": f"Bearer {keys[name]}"}
            return await gateway.http.post("/v1/chat/completions", json=chat | {"max_tokens": 9}, headers=headers)

        first, second, third = [await asked("few") for _ in range(3)]
        assert [each.status_code for each in (first, second, third)] == [200, 200, 429]
        assert second.headers["x-ratelimit-remaining-requests"] == "0"
        assert "x-ratelimit-limit-tokens" not in first.headers  # It has limits of its own.
        error = third.json()["error"]
        assert error["type"] == "requests" and error["code"] == "rate_limit_exceeded" and error["param"] is None
        assert 0 < int(third.headers["retry-after"]) <= 61 and "x-ratelimit-reset-requests" in third.headers
        assert (await asked("other")).status_code == 404
        usual = await asked("all")
        left = int(usual.headers["x-ratelimit-remaining-tokens"])
        assert usual.headers["x-ratelimit-limit-tokens"] == "100000"
        # What was reserved, 1 + 9 tokens, was 5 + 4 in the end.
        assert left == 99_990
        assert int((await asked("all")).headers["x-ratelimit-remaining-tokens"]) == 99_981
        models = await gateway.http.get("/v1/models", headers={"authorization": f"Bearer {keys['other']}"})
        assert models.json()["data"] == []
        unnamed = {name: chat[name] for name in chat if name != "model"}
        mine = {"authorization": f"Bearer {keys['other']}"}
        refused = await gateway.http.post("/v1/chat/completions", json=unnamed, headers=mine)
        assert refused.status_code == 404 and "'other/model'" in refused.text and "demo/model" not in refused.text
        other = ServedModel("other/model", 4096, 1_700_000_000)
        async with connected(gateway, models=(other,)):
            answered = await gateway.http.post("/v1/chat/completions", json=unnamed, headers=mine)
            assert answered.status_code == 200 and answered.json()["model"] == "other/model"

        assert runner.invoke(main, ["--key-store", path, "revoke", "all"]).exit_code == 0
        end = time.monotonic() + 30
        while (await asked("all")).status_code != 401:
            assert time.monotonic() < end


@pytest.mark.parametrize("days", ["inf", "nan", "0", "-1", "99999999"])
def test_days_that_no_calendar_has_make_no_key(days: str, tmp_path: Path) -> None:
    """The other keys of the file are as good as before."""
    path, runner = str(tmp_path / "keys"), CliRunner()
    assert runner.invoke(main, ["--key-store", path, "add", "first", "--days", "1.5"]).exit_code == 0
    assert runner.invoke(main, ["--key-store", path, "add", "second", "--days", days]).exit_code == 2
    listed = runner.invoke(main, ["--key-store", path, "list"])
    assert listed.exit_code == 0 and "first" in listed.output and "second" not in listed.output
