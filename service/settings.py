"""Settings: one frozen dataclass for each process, its fields turned into flags and environment variables.

    @dataclass(frozen=True)
    class GatewayConfig:
        port: int = setting(8000, "port to listen on")

    main = settings_command(GatewayConfig, run, name="trilby gateway", examples="trilby gateway --port 9000")

gives ``--port`` and ``TRILBY_PORT`` with the same meaning; a flag wins over the environment, the environment over the
default. A value that does not fit is refused with the name of the setting, never replaced by the default.

A field of type ``tuple[str, ...]`` is a flag that may be given more than once; its variable holds all values, separated
by commas or blanks.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, TypeVar, cast

import click

Config = TypeVar("Config")

ENVIRONMENT_PREFIX = "TRILBY_"


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
) -> Any:
    """A field of a settings dataclass.

    Args:
        default: the value when nothing is given; left out, the setting must be given.
        help: one line for people, with the unit.
        choices: the only words allowed.
        minimum, maximum: the range allowed, both ends included.
        secret: never printed.
    """
    metadata = {"help": help, "choices": tuple(choices), "minimum": minimum, "maximum": maximum, "secret": secret}
    if default is MISSING:
        return field(metadata=metadata)
    return field(default=default, metadata=metadata)


def settings_command(
    config_class: type[Config], run: Callable[[Config], None], *, name: str, examples: str = ""
) -> click.Command:
    """The command line of a process: parses flags and environment into ``config_class`` and calls ``run`` with it."""

    def call(**values: Any) -> None:
        try:
            config = config_class(**values)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        run(config)

    summary = (config_class.__doc__ or "").strip()
    epilog = "\b\nExamples:\n" + "\n".join("  " + line for line in examples.strip().splitlines()) if examples else None
    return click.Command(
        name,
        callback=call,
        params=options(config_class),
        help=summary,
        epilog=epilog,
        context_settings={"show_default": True, "max_content_width": 110},
    )


def options(config_class: type[Any]) -> list[click.Parameter]:
    """The click options of a settings dataclass, in the order of its fields."""
    hints = typing.get_type_hints(config_class)
    return [_option(each, hints[each.name]) for each in fields(config_class)]


@dataclass(frozen=True)
class Row:
    """One line of the table of settings."""

    flag: str
    variable: str
    default: str
    help: str


def table(config_class: type[Any]) -> list[Row]:
    """The settings of a dataclass as rows for the documentation."""
    return [
        Row(
            flag=_flag(each.name),
            variable=_variable(each.name),
            default=_shown(each.default),
            help=str(each.metadata.get("help", "")),
        )
        for each in fields(config_class)
    ]


def _shown(default: Any) -> str:
    if default is MISSING:
        return "required"
    if isinstance(default, tuple):
        return ",".join(default)
    return str(default if default is not None else "")


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _variable(name: str) -> str:
    return ENVIRONMENT_PREFIX + name.upper()


def _option(each: Field[Any], hint: Any) -> click.Option:
    required = each.default is MISSING
    many = typing.get_origin(hint) is tuple
    kind = str if many else _plain_type(hint)
    arguments: dict[str, Any] = {
        "help": each.metadata.get("help"),
        "envvar": _variable(each.name),
        "show_envvar": True,
        "required": required,
    }
    if not required:
        arguments["default"] = each.default
    if each.metadata.get("secret"):
        arguments["show_default"] = False
    if kind is bool:
        return click.Option([f"{_flag(each.name)}/--no-{each.name.replace('_', '-')}"], **arguments)
    option = _Words if many else click.Option
    return option([_flag(each.name)], multiple=many, type=_parameter_type(kind, each), **arguments)


class _Words(click.Option):
    """An option that may be repeated; its variable holds all values, separated by commas or blanks."""

    def value_from_envvar(self, ctx: click.Context) -> tuple[str, ...] | None:
        """The values in the variable; None when it is not set or empty."""
        given = self.resolve_envvar_value(ctx)
        return tuple(given.replace(",", " ").split()) or None if given is not None else None


def _plain_type(hint: Any) -> type:
    if isinstance(hint, types.UnionType) or typing.get_origin(hint) is typing.Union:
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    return cast("type", hint)


def _parameter_type(kind: type, each: Field[Any]) -> click.ParamType[Any]:
    low, high = each.metadata.get("minimum"), each.metadata.get("maximum")
    if each.metadata.get("choices"):
        return click.Choice(list(each.metadata["choices"]))
    if kind is int:
        return click.IntRange(low, high)
    if kind is float:
        return click.FloatRange(low, high)
    return click.STRING
