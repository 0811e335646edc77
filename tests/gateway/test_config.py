"""Settings that would be unsafe together are refused."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from gateway import __main__ as process
from gateway.config import GatewayConfig
from service.settings import settings_command


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.test"])
def test_a_token_is_needed_beyond_loopback(host: Any) -> None:
    """With what to do in the message."""
    with pytest.raises(ValueError, match="--device-token"):
        GatewayConfig(host=host)
    assert not GatewayConfig(host=host, device_token="x").on_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_loopback_needs_none(host: Any) -> None:
    """One machine, one user."""
    assert GatewayConfig(host=host).on_loopback


def test_an_operators_token_is_nobody_elses() -> None:
    """Or any client, or any device, would be an operator."""
    others: list[dict[str, Any]] = [{"api_keys": "x, y"}, {"device_token": "x"}]
    for other in others:
        with pytest.raises(ValueError, match="--operator-token"):
            GatewayConfig(operator_token="x", **other)
        GatewayConfig(operator_token="z", **other)


def test_every_origin_at_once_is_refused() -> None:
    """With what to do instead."""
    with pytest.raises(ValueError, match="one by one"):
        GatewayConfig(allowed_origins="http://app.test, *")


def test_keys_are_separated_by_commas() -> None:
    """Blanks do not count."""
    assert GatewayConfig(api_keys=" a,b ,,").keys == ("a", "b")


def test_the_command_says_what_is_wrong() -> None:
    """Before anything listens; secrets are never shown."""
    result = CliRunner().invoke(process.main, ["--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "TRILBY_DEVICE_TOKEN" in result.output


def test_flags_and_environment_reach_the_settings() -> None:
    """Under the names the documentation has."""
    seen: list[GatewayConfig] = []
    command = settings_command(GatewayConfig, seen.append, name="trilby gateway")
    result = CliRunner().invoke(command, ["--port", "9"], env={"TRILBY_API_KEYS": "k"})
    assert result.exit_code == 0, result.output
    assert (seen[0].port, seen[0].keys) == (9, ("k",))


FLEET: dict[str, Any] = {"redis": "redis://127.0.0.1", "gateway_token": "sixteen-characters"}


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"redis": "127.0.0.1:6379"}, "redis://HOST:PORT"),
        ({"redis": "redis://127.0.0.1:port"}, "redis://HOST:PORT"),
        ({"redis": "redis://127.0.0.1?socket_timeout=abc"}, "nothing behind it"),
        ({"gateway_token": ""}, "--gateway-token"),
        ({"gateway_token": "too-short"}, "--gateway-token"),
        ({"api_keys": "a,sixteen-characters"}, "gateway token"),
        ({"advertise": "10.0.0.1:8000"}, "--advertise"),
        ({"host": "0.0.0.0", "device_token": "x"}, "--advertise"),
        ({"redis": "", "key_store": "redis"}, "--key-store"),
    ],
)
def test_several_gateways_need_what_belongs_together(settings: dict[str, Any], named: str) -> None:
    """Else none of them starts, and it says what is missing."""
    assert GatewayConfig(**FLEET).own_url == "http://127.0.0.1:8000"
    assert GatewayConfig(**FLEET, advertise="https://a.example/").own_url == "https://a.example"
    assert GatewayConfig(**FLEET, advertise="http://[10.0.0.1]:8000").own_url == "http://10.0.0.1:8000"
    with pytest.raises(ValueError, match=named):
        GatewayConfig(**{**FLEET, **settings})
