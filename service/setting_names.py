"""What a setting is called on the command line and in the environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import Field
from typing import Any

ENVIRONMENT_PREFIX = "TRILBY_"

ENDING = "_file"
"""What the companion of a secret has at its end: it names a file to read the secret from."""


def flag_of(name: str) -> str:
    """``device_token`` is ``--device-token``."""
    return "--" + name.replace("_", "-")


def variable_of(each: Field[Any], ending: str = "") -> str:
    """``device_token`` is ``TRILBY_DEVICE_TOKEN``, where its declaration does not say another name."""
    return ENVIRONMENT_PREFIX + ((each.metadata.get("variable") or each.name) + ending).upper()


def command_line(**settings: Any) -> list[str]:
    """Settings as words of a command line, by their names with underscores; None says nothing."""
    return [word for name, value in settings.items() for word in _words(name, value)]


def _words(name: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag_of(name) if value else flag_of(f"no_{name}")]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [word for each in value for word in (flag_of(name), each)]
    return [flag_of(name), str(value)]
