"""Settings: a flag and a variable for each field, bad values refused by name."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from click.testing import CliRunner
from settings_page import PAGE, page, table

from service.settings import setting, settings_command, settle


@dataclass(frozen=True)
class Config:
    """Do a thing."""

    model: str = setting(help="what to load")
    port: int = setting(8000, "port to listen on", minimum=1, maximum=65535)
    mode: str = setting("a", "how", choices=("a", "b"))
    limit: float | None = setting(None, "seconds")
    loud: bool = setting(False, "say more")
    token: str = setting("hidden-default", "credential", secret=True)
    keys: str = setting("", "credentials", secret=True, many=True)
    peers: tuple[str, ...] = setting(("a", "b"), "whom to ask")
    tuned: int = setting(usual=3, help="how much", tunes=True, variable="other")

    def __post_init__(self) -> None:
        settle(self, Config)
        if self.model == "bad":
            raise ValueError("--model bad is not good")


def call(*arguments: str, **variables: str) -> tuple[Config | None, str]:
    """The config that a command line gives, and what was printed."""
    seen: list[Config] = []
    command = settings_command(Config, seen.append, name="thing", examples="thing --model x")
    result = CliRunner().invoke(command, list(arguments), env=variables)
    return (seen[0] if seen else None), result.output


def test_flag_over_variable_over_default() -> None:
    """Each wins over the next."""
    assert call("--model", "x")[0] == Config("x")
    assert call("--model", "x", TRILBY_PORT="9000")[0] == Config("x", port=9000)
    assert call("--model", "x", "--port", "9001", TRILBY_PORT="9000")[0] == Config("x", port=9001)
    assert call(TRILBY_MODEL="y", TRILBY_LOUD="1", TRILBY_LIMIT="2.5")[0] == Config("y", loud=True, limit=2.5)


def test_a_setting_that_may_be_repeated() -> None:
    """Its flag each time with one value, its variable with all of them; its page shows what the variable would be."""
    assert call("--model", "x")[0] == Config("x", peers=("a", "b"))
    assert call("--model", "x", "--peers", "c", "--peers", "d,e")[0] == Config("x", peers=("c", "d,e"))
    for given in ("c,d", "c d", " c, d ,"):
        assert call("--model", "x", TRILBY_PEERS=given)[0] == Config("x", peers=("c", "d"))
    assert call("--model", "x", "--peers", "e", TRILBY_PEERS="c,d")[0] == Config("x", peers=("e",))
    assert call("--model", "x", TRILBY_PEERS=" ")[0] == Config("x")
    assert [row.default for row in table(Config) if row.flag == "--peers"] == ["a,b"]


@pytest.mark.parametrize(
    ("arguments", "variables", "word"),
    [
        ([], {}, "--model"),
        (["--model", "x", "--port", "0"], {}, "--port"),
        (["--model", "x"], {"TRILBY_PORT": "many"}, "TRILBY_PORT"),
        (["--model", "x", "--mode", "c"], {}, "--mode"),
        (["--model", "bad"], {}, "not good"),
        (["--model", "x", "--limit", "nan"], {}, "--limit"),
        (["--model", "x"], {"TRILBY_LIMIT": "NaN"}, "TRILBY_LIMIT"),
    ],
)
def test_bad_values_are_refused_by_name(arguments: list[str], variables: dict[str, str], word: str) -> None:
    """Nothing runs, and the message names what is wrong."""
    config, output = call(*arguments, **variables)
    assert config is None and word in output


def test_help_shows_variables_examples_and_no_secrets() -> None:
    """--help has every flag with its variable and the examples, but no secret's default."""
    _, output = call("--help")
    for word in ("--port", "TRILBY_PORT", "thing --model x", "Do a thing."):
        assert word in output
    assert "hidden-default" not in output
    assert "--tuned" not in output and "--tuned" in call("--help-all")[1]


def test_a_variable_of_another_name() -> None:
    """Where two processes would mean different things by one; nothing given is what is usual."""
    assert call("--model", "x", TRILBY_OTHER="5", TRILBY_TUNED="6")[0] == Config("x", tuned=5)
    assert call("--model", "x")[0] == Config("x", tuned=3)
    [row] = [row for row in table(Config) if row.flag == "--tuned"]
    assert (row.variable, row.default, row.tunes) == ("TRILBY_OTHER", "3", True)


def test_the_page_of_settings_is_up_to_date() -> None:
    """docs/settings.md is what the code says: `make settings` writes it."""
    assert PAGE.read_text(encoding="utf-8") == page()
