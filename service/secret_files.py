"""Secrets from files: whoever can list processes reads their command lines, and some can read their environments.

Each setting that is a secret has a companion, ``--device-token-file`` beside ``--device-token``, that names a file to
read it from. It is looked at again while the process runs: ``current`` of the setting is what is in it now.
"""

from __future__ import annotations

from dataclasses import Field, fields
from pathlib import Path
from time import monotonic
from typing import Any, Final

import click
import structlog
from click.core import ParameterSource

from service.logs import say_once_configured
from service.setting_names import ENDING, flag_of, variable_of

MAX_BYTES: Final = 64 * 2**10
"""A larger file is not one of secrets."""

LOOK_EVERY_S: Final = 1.0
"""A file is looked at again no more often."""

log = structlog.get_logger()


class BadSecretFile(ValueError):
    """The message says which file, and what is wrong with it; it holds nothing of what is in it."""


class FileSecret(str):
    """A secret as it was when the process began, and the file that it came from."""

    def __new__(cls, path: str, *, many: bool) -> FileSecret:
        """Raises ``BadSecretFile``."""
        stamp = _stamp(path)
        made = super().__new__(cls, read_secret(path, many=many))
        made.path, made._many, made._seen, made._now, made._look_at = path, many, stamp, str(made), 0.0
        made._why = ""
        return made

    path: str
    _many: bool
    _seen: object
    _now: str
    _look_at: float
    _why: str

    def read_again(self) -> str:
        """What the file holds now; where that cannot be used, which is said once, what it held before."""
        if monotonic() < self._look_at:
            return self._now
        self._look_at = monotonic() + LOOK_EVERY_S
        stamp = _stamp(self.path)
        if stamp != self._seen:
            try:
                self._now = read_secret(self.path, many=self._many)
            except BadSecretFile as error:
                self._seen = None  # It may be made readable without any change, or was unreadable for a moment only.
                if self._why != (why := str(error)):
                    log.error("a file of secrets cannot be used; what it held before stays", why=why)
                self._why = why
            else:
                self._seen, self._why = stamp, ""
                log.info("a file of secrets was read again", file=self.path)
        return self._now


def current(secret: str) -> str:
    """The secret as it is now, a plain string, wherever it came from."""
    return secret.read_again() if isinstance(secret, FileSecret) else secret


def _stamp(path: str) -> object:
    try:
        found = Path(path).expanduser().stat()
    except (OSError, RuntimeError, ValueError):
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def read_secret(path: str, *, many: bool) -> str:
    """What a file holds, without blanks around it.

    Args:
        many: several secrets, one a line or with commas between them; they are given back with commas.

    Raises:
        BadSecretFile: it cannot be read, is empty, too large or no text, or has more lines than one; or no secret at
            all between commas.
    """
    try:
        with Path(path).expanduser().open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, RuntimeError, ValueError) as error:
        raise BadSecretFile(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}") from error
    if len(data) > MAX_BYTES:
        raise BadSecretFile(f"{path} has more than {MAX_BYTES} bytes: it holds something else")
    try:
        lines = [line.strip() for line in data.decode("utf-8-sig").splitlines() if line.strip()]
    except UnicodeDecodeError as error:
        raise BadSecretFile(f"{path} is not text in UTF-8") from error
    if not lines:
        raise BadSecretFile(f"{path} is empty")
    if len(lines) > 1 and not many:
        raise BadSecretFile(f"{path} has {len(lines)} lines, and one secret is wanted")
    if many and not any(each.strip() for line in lines for each in line.split(",")):
        raise BadSecretFile(f"{path} has commas only, and no secret between them")
    return ",".join(lines)


def take_secrets(config_class: type[Any], values: dict[str, Any]) -> None:
    """Put what files hold in the place of the files' names, among the ``values`` of the command that click runs now.

    Raises:
        ValueError: a file cannot be taken, or the secret is given beside it.
    """
    context = click.get_current_context()
    for each in fields(config_class):
        if not each.metadata.get("secret"):
            continue
        flag, file_flag = flag_of(each.name), flag_of(each.name + ENDING)
        path, secret = values.pop(each.name + ENDING), values[each.name]
        source = context.get_parameter_source(each.name)
        if path and secret and source is not ParameterSource.DEFAULT:
            raise ValueError(f"{file_flag} and {flag} ({variable_of(each)}) are both given: leave one out")
        if path:
            try:
                values[each.name] = _from(path, many=each.metadata["many"])
            except BadSecretFile as error:
                raise ValueError(f"{file_flag}: {error}") from error
        elif secret and source is ParameterSource.COMMANDLINE:
            better = f"{variable_of(each)} or {file_flag}"
            say_once_configured("others on this machine can read a secret on a command line", flag=flag, better=better)


def _from(path: str, *, many: bool) -> str:
    """What is no file but a pipe can be read only once."""
    is_file = _stamp(path) is not None and Path(path).expanduser().is_file()
    return FileSecret(path, many=many) if is_file else read_secret(path, many=many)


def file_help(each: Field[Any]) -> str:
    """What the companion of a secret does, in one line."""
    lines = ", one a line or with commas between them" if each.metadata["many"] else ""
    return f"file to read {flag_of(each.name)} from{lines}"
