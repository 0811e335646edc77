"""The settings of drafting: what goes together, and how ``trilby serve`` hands them to the device."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from device_agent.config import DeviceConfig
from service.draft_settings import arguments, wanted
from service.serve import ServeConfig, drafting_line
from service.settings import settings_command

SHARED = {"mode", "draft", "drafters", "verify", "draft_length", "draft_threshold", "draft_cap", "prepare",
          "stream_rows", "hat_paper"}  # fmt: skip


def device(*words: str, **variables: str) -> tuple[DeviceConfig | None, str]:
    """The device's settings from a command line, and what was printed."""
    seen: list[DeviceConfig] = []
    command = settings_command(DeviceConfig, seen.append, name="trilby device")
    result = CliRunner().invoke(command, ["--model", "m", *words], env=variables)
    return (seen[0] if seen else None), result.output


def test_hat_is_the_default_and_drafts_with_the_best_there_is() -> None:
    """In both commands; in the other modes nothing is drafted unless somebody asks."""
    for config in (DeviceConfig("m"), ServeConfig()):
        assert (config.mode, config.draft, wanted(config)) == ("hat", (), ())
    for mode in ("ushape", "local"):
        assert wanted(DeviceConfig("m", mode=mode)) == ("none",)
    assert wanted(DeviceConfig("m", mode="local", draft=("lookup",))) == ("lookup",)
    assert wanted(DeviceConfig("m", draft=("fused", "lookup"))) == ("fused", "lookup")


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"draft": ("fused", "lookup", "org/small"), "drafters": "some/where", "verify": "block"},
        {"draft_length": "fixed", "draft_threshold": 0.75, "draft_cap": 5, "prepare": "none", "stream_rows": "on"},
        {"mode": "local", "draft": ("lookup",)},
        {"mode": "ushape"},
        {"mode": "ushape", "draft": ("none",)},
        {"hat_paper": True},
        {"hat_paper": True, "draft_cap": 6, "verify": "rejection"},
    ],
)
def test_serve_hands_on_what_it_was_given(given: dict[str, Any]) -> None:
    """Every setting of drafting, whatever it is, arrives at the device as it was."""
    config = ServeConfig(**given)
    received, output = device(*arguments(config))
    assert received is not None, output
    assert {name: getattr(received, name) for name in SHARED} == {name: getattr(config, name) for name in SHARED}


def test_the_papers_settings_are_one_flag() -> None:
    """What it does not speak of stays as it is."""
    config, output = device("--hat-paper", "--draft-cap", "6")
    assert config is not None, output
    assert (config.draft, config.draft_length, config.draft_threshold) == (("adapter",), "fixed", 0.6)
    assert (config.prepare, config.stream_rows, config.draft_cap, config.verify) == ("last", "off", 6, "keyed")
    assert device("--hat-paper", "--prepare", "last", "--draft", "adapter")[0] == device("--hat-paper")[0]
    assert device(TRILBY_HAT_PAPER="1")[0] == device("--hat-paper")[0]


def test_several_drafters_by_flags_and_by_the_variable() -> None:
    """In the order given."""
    wished = ("fused", "none", "a/b")
    assert device("--draft", "fused", "--draft", "none", "--draft", "a/b")[0] == DeviceConfig("m", draft=wished)
    assert device(TRILBY_DRAFT="fused,none a/b")[0] == DeviceConfig("m", draft=wished)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--mode", "ushape", "--draft", "fused"), "--mode ushape does not draft"),
        (("--mode", "ushape", "--draft", "none", "--draft", "lookup"), "--mode ushape does not draft"),
        (("--mode", "ushape", "--hat-paper"), "--mode ushape does not draft"),
        (("--hat-paper", "--draft", "fused"), "--hat-paper already says --draft adapter"),
        (("--hat-paper", "--prepare", "none"), "--hat-paper already says --prepare last"),
        (("--hat-paper", "--draft-threshold", "0.5"), "--hat-paper already says --draft-threshold 0.6"),
        (("--draft", ""), "--draft needs a name"),
        (("--verify", "never"), "--verify"),
        (("--draft-threshold", "1.5"), "--draft-threshold"),
        (("--draft-cap", "65"), "--draft-cap"),
        (("--mode", "cloud"), "--mode"),
    ],
)
def test_what_does_not_go_together_is_refused(words: tuple[str, ...], said: str) -> None:
    """Before anything is loaded, by name."""
    config, output = device(*words)
    assert config is None and said in " ".join(output.split())


@pytest.mark.parametrize(
    ("drafters", "line"),
    [
        (["hybrid", "fused", "none"], "It drafts with: hybrid (a request may name another in its field 'draft': fused, "
         "none)."),
        (["none", "fused"], "It drafts only when asked to (a request may name another in its field 'draft': fused)."),
        (["none"], "It does not draft."),
        ([], "It does not draft."),
    ],
)  # fmt: skip
def test_serve_says_what_drafts(drafters: list[str], line: str) -> None:
    """Its own choice first, then what requests may name."""
    assert drafting_line(drafters) == line
