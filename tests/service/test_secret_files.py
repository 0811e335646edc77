"""Secrets come from files too, and nobody reads them off a command line unwarned."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
import structlog
from click.testing import CliRunner
from processes import ROOT
from settings_page import table

from service import secret_files
from service.secret_files import MAX_BYTES, BadSecretFile, FileSecret, current
from service.settings import secrets_of, setting, settings_command


@dataclass(frozen=True)
class Config:
    """Do a thing."""

    token: str = setting("", "credential", secret=True)
    keys: str = setting("", "credentials", secret=True, many=True)


def call(*arguments: str, **variables: str) -> tuple[Config | None, str]:
    """The config that a command line gives, and what was printed."""
    seen: list[Config] = []
    result = CliRunner().invoke(settings_command(Config, seen.append, name="thing"), list(arguments), env=variables)
    return (seen[0] if seen else None), result.output


@pytest.mark.parametrize(
    ("held", "token"),
    [
        (b"one", "one"),
        (b"  one two \n\n", "one two"),
        (b"\xc3\xa4\r\n", "ä"),
        (b"a,b", "a,b"),
        (b"\xef\xbb\xbfone\r\n", "one"),
    ],
)
def test_a_secret_from_a_file(held: bytes, token: str, tmp_path: Path) -> None:
    """By flag and by variable; blanks, line ends and the mark that Windows begins a text with are not part of it."""
    file = tmp_path / "token"
    file.write_bytes(held)
    assert call("--token-file", str(file))[0] == Config(token=token)
    assert call(TRILBY_TOKEN_FILE=str(file))[0] == Config(token=token)
    assert call("--token-file", str(file), TRILBY_TOKEN_FILE="/nowhere", TRILBY_TOKEN="")[0] == Config(token=token)


@pytest.mark.parametrize("held", ["one,two", "one\ntwo\n", " one \n\n two", "one,\ntwo,"])
def test_several_secrets_from_a_file(held: str, tmp_path: Path) -> None:
    """One a line, or with commas between them."""
    file = tmp_path / "keys"
    file.write_text(held)
    config = call("--keys-file", str(file))[0]
    assert config is not None
    assert [each for each in config.keys.split(",") if each] == ["one", "two"]


@pytest.mark.parametrize(
    ("held", "why"),
    [
        (b"", "is empty"),
        (b" \n\n", "is empty"),
        (b"SECRET\nSECRET\n", "has 2 lines"),
        (b"SECRET\xff", "UTF-8"),
        (b"SECRET" * MAX_BYTES, "more than"),
    ],
)
def test_files_that_hold_no_secret(held: bytes, why: str, tmp_path: Path) -> None:
    """Nothing runs; the message names the flag and the file, and nothing of what it holds."""
    file = tmp_path / "token"
    file.write_bytes(held)
    config, output = call("--token-file", str(file))
    output = " ".join(output.split())
    assert config is None and why in output and "--token-file" in output and "SECRET" not in output


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """They are not there, are folders, or never end."""
    for path in (tmp_path / "nothing", tmp_path, Path("/dev/zero")):
        config, output = call("--token-file", str(path))
        assert config is None and "--token-file" in output and "Traceback" not in output


def test_a_secret_given_twice(tmp_path: Path) -> None:
    """One of them is a mistake, and nobody guesses which."""
    file = tmp_path / "token"
    file.write_text("one")
    for arguments, variables in (
        (["--token-file", str(file), "--token", "two"], {}),
        (["--token-file", str(file)], {"TRILBY_TOKEN": "two"}),
        (["--token", "two"], {"TRILBY_TOKEN_FILE": str(file)}),
    ):
        config, output = call(*arguments, **variables)
        assert config is None and "both given" in " ".join(output.split())


def test_the_page_and_the_help_show_the_files() -> None:
    """Beside each secret."""
    assert [row.flag for row in table(Config)] == ["--token", "--token-file", "--keys", "--keys-file"]
    assert [row.variable for row in table(Config)][1] == "TRILBY_TOKEN_FILE"
    assert "--token-file" in call("--help")[1] and "TRILBY_KEYS_FILE" in call("--help-all")[1]


def test_a_file_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it holds by now; where that cannot be used, what it held before. A process that is started gets the file."""
    monkeypatch.setattr(secret_files, "LOOK_EVERY_S", 0.0)
    file, keys = tmp_path / "token", tmp_path / "keys"
    file.write_text("first\n")
    keys.write_text("a\nb\n")
    config, _ = call("--token-file", str(file), "--keys-file", str(keys))
    assert config is not None and (current(config.token), current(config.keys)) == ("first", "a,b")
    assert secrets_of(config) == {"TRILBY_TOKEN_FILE": str(file), "TRILBY_KEYS_FILE": str(keys)}
    for text, now in (("another\n", "another"), ("", "another"), ("two\nlines\n", "another"), ("third", "third")):
        file.write_text(text)
        assert current(config.token) == now and type(current(config.token)) is str
    file.unlink()
    assert current(config.token) == "third"
    assert current(config.keys) == "a,b"


def test_commas_are_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A list whose parts nobody has filled in would ask nobody for a key."""
    monkeypatch.setattr(secret_files, "LOOK_EVERY_S", 0.0)
    keys = tmp_path / "keys"
    keys.write_text(" , \n,")
    config, output = call("--keys-file", str(keys))
    assert config is None and "no secret between them" in output
    keys.write_text("a,b")
    config, _ = call("--keys-file", str(keys))
    assert config is not None
    keys.write_text(",")
    assert current(config.keys) == "a,b"


def test_what_could_not_be_read_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rights that are mended, or files that this process had too many of, change nothing that a file's stamp has. What
    is in the way is said once."""
    monkeypatch.setattr(secret_files, "LOOK_EVERY_S", 0.0)
    file = tmp_path / "token"
    file.write_text("first")
    config, _ = call("--token-file", str(file))
    assert config is not None
    file.write_text("second")

    def refused(path: str, *, many: bool) -> str:
        raise BadSecretFile(f"{path} cannot be read: Permission denied")

    with structlog.testing.capture_logs() as lines, monkeypatch.context() as closed:
        closed.setattr(secret_files, "read_secret", refused)
        assert [current(config.token) for _ in range(3)] == ["first"] * 3
    assert len(lines) == 1
    assert current(config.token) == "second"


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """It holds nothing a second time."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as apart:
        writing = apart.submit(pipe.write_text, "secret")
        config, output = call("--token-file", str(pipe))
        writing.result(60)
    assert config is not None and not isinstance(config.token, FileSecret) and current(config.token) == "secret", output


WARNED = """
import sys
from dataclasses import dataclass
from service.logs import configure_logs
from service.settings import setting, settings_command

@dataclass(frozen=True)
class Config:
    token: str = setting("", "credential", secret=True)

settings_command(Config, lambda config: configure_logs("test"), name="thing")()
"""


@pytest.mark.parametrize("given", ["line", "variable", "file"])
def test_a_secret_on_the_command_line_is_warned_of(given: str, tmp_path: Path) -> None:
    """In the log, without the secret; other ways are better, and are not warned of."""
    file = tmp_path / "token"
    file.write_text("sesame")
    arguments = {"line": ["--token", "sesame"], "variable": [], "file": ["--token-file", str(file)]}[given]
    environment = {**os.environ, **({"TRILBY_TOKEN": "sesame"} if given == "variable" else {})}
    result = subprocess.run(
        [sys.executable, "-c", WARNED, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment,
        timeout=60,
    )
    assert result.returncode == 0 and "sesame" not in result.stderr
    assert ("TRILBY_TOKEN or --token-file" in result.stderr) is (given == "line")
