"""The settings that serve and device share: what goes together, and how ``trilby serve`` hands them to the device."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
from click.testing import CliRunner

from device_agent.config import DeviceConfig
from service.serve import ServeConfig
from service.served_lines import drafting_line
from service.settings import settings_command, words_of
from service.shared_settings import DeviceSide

SHARED = {each.name for each in fields(DeviceSide)}
DRAFTLESS = ("ushape", "u-sarathi", "cloud")


def device(*words: str, **variables: str) -> tuple[DeviceConfig | None, str]:
    """The device's settings from a command line, and what was printed."""
    seen: list[DeviceConfig] = []
    command = settings_command(DeviceConfig, seen.append, name="trilby device")
    result = CliRunner().invoke(command, ["--model", "m", *words], env=variables)
    return (seen[0] if seen else None), result.output


def test_hat_is_the_default_and_drafts_with_the_best_there_is() -> None:
    """In both commands; in the other modes nothing is drafted unless somebody asks."""
    for config in (DeviceConfig("m"), ServeConfig()):
        assert (config.mode, config.draft, config.wanted_drafters) == ("hat", (), ())
    for mode in (*DRAFTLESS, "local"):
        assert DeviceConfig("m", mode=mode).wanted_drafters == ("none",)
    assert DeviceConfig("m", mode="local", draft=("lookup",)).wanted_drafters == ("lookup",)
    assert DeviceConfig("m", draft=("fused", "lookup")).wanted_drafters == ("fused", "lookup")
    assert DeviceConfig("m", mode="u-medusa").wanted_drafters == ("medusa",)
    assert DeviceConfig("m", mode="u-small", draft=("org/small",)).wanted_drafters == ("org/small",)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"draft": ("fused", "lookup", "org/small"), "drafters": "some/where", "verify": "block"},
        {"draft_length": "fixed", "draft_threshold": 0.75, "draft_cap": 5, "prepare": "none", "stream_rows": "on"},
        {"mode": "local", "draft": ("lookup",)},
        {"mode": "ushape"},
        {"mode": "ushape", "draft": ("none",), "download": "all"},
        {"mode": "u-sarathi", "download": "all"},
        {"mode": "u-medusa"},
        {"mode": "u-small", "draft": ("org/small",), "draft_threshold": 0.4},
        {"mode": "cloud"},
        {"draft": ("none",), "chunk": 64},
        {"whole_prompts": True, "download": "all", "hat_paper": True},
        {"hat_paper": True},
        {"hat_paper": True, "draft_cap": 6, "verify": "rejection"},
    ],
)
def test_serve_hands_on_what_it_was_given(given: dict[str, Any]) -> None:
    """Every setting of drafting, whatever it is, arrives at the device as it was."""
    config = ServeConfig(**given)
    received, output = device(*words_of(config, DeviceSide))
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


@pytest.mark.parametrize("mode", ["ushape", "u-sarathi", "u-medusa", "u-small"])
def test_what_the_papers_baselines_have_in_common(mode: str) -> None:
    """Prompts go whole, nothing is prepared, two layers are here unless somebody says otherwise."""
    draft = ("org/small",) if mode == "u-small" else ()
    config = DeviceConfig("m", mode=mode, draft=draft)
    assert config.whole_prompts and (config.split, config.tail, config.download) == (2, 0, "last")
    way = (config.draft_length, config.prepare, config.stream_rows)
    assert mode in DRAFTLESS or way == ("fixed", "none", "off")
    assert DeviceConfig("m", mode=mode, draft=draft, split=3, tail=1).split == 3


def test_where_the_cloud_has_all_layers() -> None:
    """None is left to the device, in either command."""
    for config in (DeviceConfig("m", mode="cloud"), ServeConfig(mode="cloud"), ServeConfig(mode="cloud", split=0)):
        assert (config.split, config.tail, config.draft) == (0, 0, ("none",))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        *(((f"--mode={mode}", "--draft", "fused"), f"--mode {mode} already says --draft none") for mode in DRAFTLESS),
        (("--mode", "ushape", "--draft", "none", "--draft", "lookup"), "--mode ushape already says --draft none"),
        (("--mode", "ushape", "--hat-paper"), "--hat-paper is not for --mode ushape"),
        (("--mode", "ushape", "--chunk", "64"), "leave --chunk out"),
        (("--whole-prompts", "--chunk", "64"), "leave --chunk out"),
        (("--mode", "u-medusa", "--draft", "lookup"), "--mode u-medusa already says --draft medusa"),
        (("--mode", "u-medusa", "--prepare", "last"), "--mode u-medusa already says --prepare none"),
        (("--mode", "u-small"), "--mode u-small needs one --draft"),
        (("--mode", "u-small", "--draft", "a/b", "--draft", "a/c"), "--mode u-small needs one --draft"),
        (("--mode", "cloud", "--split", "2"), "--mode cloud already says --split 0"),
        (("--mode", "cloud", "--tail", "1"), "--mode cloud already says --tail 0"),
        (("--mode", "cloud", "--download", "all"), "--mode cloud already says --download last"),
        (("--mode", "local", "--whole-prompts"), "--mode local already says --no-whole-prompts"),
        (("--mode", "local", "--download", "all"), "--mode local already says --download last"),
        (("--download", "some"), "--download"),
        (("--hat-paper", "--draft", "fused"), "--hat-paper already says --draft adapter"),
        (("--hat-paper", "--prepare", "none"), "--hat-paper already says --prepare last"),
        (("--hat-paper", "--draft-threshold", "0.5"), "--hat-paper already says --draft-threshold 0.6"),
        (("--draft", ""), "--draft needs a name"),
        (("--verify", "never"), "--verify"),
        (("--draft-threshold", "1.5"), "--draft-threshold"),
        (("--draft-cap", "65"), "--draft-cap"),
        (("--mode", "hats"), "--mode"),
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
