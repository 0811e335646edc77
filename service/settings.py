"""Settings: one frozen dataclass for each process, its fields turned into flags and environment variables.

    @dataclass(frozen=True)
    class Listening:
        '''Where it listens.'''

        port: int = setting(8000, "port to listen on")

    @dataclass(frozen=True)
    class GatewayConfig(Listening):
        '''Serve an API.'''

    main = settings_command(GatewayConfig, run, name="trilby gateway", examples="trilby gateway --port 9000")

gives ``--port`` and ``TRILBY_PORT`` with the same meaning; a flag wins over the environment, the environment over the
default. A value that does not fit is refused with the name of the setting, never replaced by the default.

A setting is declared once. Those that several processes have stand in a base class that their dataclasses share; each
base is one idea, and a section of ``--help`` with its docstring's first line above it. ``--help`` shows what a user
decides, ``--help-all`` also what tunes.

A field of type ``tuple[str, ...]`` is a flag that may be given more than once; its variable holds all values, separated
by commas or blanks. A secret may also come from a file: ``--token-file`` and ``TRILBY_TOKEN_FILE`` for ``--token``.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, field, fields
from inspect import get_annotations
from types import MappingProxyType
from typing import Any, Final, Literal, TypeVar

import click

from service.secret_files import FileSecret, file_help, take_secrets
from service.setting_names import ENDING, command_line, flag_of, variable_of

Config = TypeVar("Config")

HELP_ALL: Final = "--help-all"


def setting(
    default: Any = MISSING,
    help: str = "",
    *,
    usual: Any = None,
    choices: Sequence[str] = (),
    minimum: float | None = None,
    maximum: float | None = None,
    secret: bool = False,
    many: bool = False,
    tunes: bool = False,
    argument: bool = False,
    variable: str = "",
) -> Any:
    """A field of a settings dataclass. Of a ``Literal`` its words are the only ones allowed.

    Args:
        default: the value when nothing is given; left out, and without ``usual``, the setting must be given.
        help: one line for people, with the unit.
        usual: the value that ``settle`` gives where nothing was given and nothing else says; until then it is None.
        choices: the only words allowed.
        minimum, maximum: the range allowed, both ends included.
        secret: never printed, and has a companion that names a file to read it from.
        many: of a secret: several of them, with commas between them, in a file also one a line.
        tunes: see ``tuning``.
        argument: given without a flag, in the place that a command has for it: ``trilby bench URL``.
        variable: the variable's name where it is not the field's: what two processes mean differently has two.
    """
    metadata = {"help": help, "usual": usual, "choices": tuple(choices), "minimum": minimum, "maximum": maximum}
    metadata |= {"secret": secret, "many": many, "tunes": tunes, "argument": argument, "variable": variable}
    if usual is not None:
        default = None
    return field(metadata=metadata) if default is MISSING else field(default=default, metadata=metadata)


def tuning(default: Any = MISSING, help: str = "", **about: Any) -> Any:
    """A ``setting`` that is not what a user decides: ``--help-all`` shows it, ``--help`` does not."""
    return setting(default, help, tunes=True, **about)


def changed(base: type[Any], name: str, default: Any, **metadata: Any) -> Any:
    """The setting ``name`` of ``base`` with another default, and what else differs, in a dataclass derived from it."""
    return field(default=default, metadata={**base.__dataclass_fields__[name].metadata, **metadata})


def settle(config: Any, part: type[Any], said: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Give the settings that ``config`` has from ``part``, and nobody has given, the values in ``said``, else their
    usual ones; for ``__post_init__``."""
    for each in fields(part):
        usual = each.metadata["usual"]
        if usual is not None and getattr(config, each.name) is None:
            object.__setattr__(config, each.name, said.get(each.name, usual))


def words_of(config: Any, part: type[Any]) -> list[str]:
    """The settings that ``config`` has from its base ``part`` as a command line, but for secrets, which everybody on
    the machine could read there."""
    shared = (each for each in fields(part) if not each.metadata["secret"])
    return command_line(**{each.name: getattr(config, each.name) for each in shared})


def secrets_of(config: Any) -> dict[str, str]:
    """The secrets of ``config`` as environment variables; of those that came from files, the files."""
    found = [(each, getattr(config, each.name)) for each in fields(config) if each.metadata["secret"]]
    return {
        variable_of(each, ENDING if isinstance(secret, FileSecret) else ""): getattr(secret, "path", secret)
        for each, secret in found
    }


def settings_command(
    config_class: type[Config], run: Callable[[Config], None], *, name: str, examples: str = ""
) -> click.Command:
    """The command line of a process: parses flags and environment into ``config_class`` and calls ``run`` with it."""

    def call(**values: Any) -> None:
        try:
            take_secrets(config_class, values)
            config = config_class(**values)
        except ValueError as error:
            raise click.UsageError(str(error)) from error
        run(config)

    summary = (config_class.__doc__ or "").strip()
    epilog = f"Flags that tune, and all variables: {HELP_ALL}, docs/settings.md."
    if examples:
        epilog += "\n\n\b\nExamples:\n" + "\n".join("  " + line for line in examples.strip().splitlines())
    return _SettingsCommand(
        name,
        callback=call,
        params=_options(config_class),
        help=summary,
        epilog=epilog,
        context_settings={"show_default": True, "max_content_width": 110},
    )


def _options(config_class: type[Any]) -> list[click.Parameter]:
    """The options of a settings dataclass, in the order of its fields, each with its section."""
    hints = typing.get_type_hints(config_class)
    params: list[click.Parameter] = []
    for each in fields(config_class):
        section = _section(config_class, each.name)
        if each.metadata["argument"]:
            params.append(_Argument(each, section, _parameter_type(hints[each.name], each)))
            continue
        params.append(_option(each, hints[each.name], section))
        if each.metadata["secret"]:
            name, variable = each.name + ENDING, variable_of(each, ENDING)
            params.append(
                _Option([flag_of(name)], section, tunes=True, default="", help=file_help(each), envvar=variable)
            )
    return params


def _section(config_class: type[Any], name: str) -> str:
    """The first line of the docstring of the class that declares a field."""
    bases = (base for base in reversed(config_class.__mro__) if name in get_annotations(base))
    declaring = next(bases)
    return "Options" if declaring is config_class else (declaring.__doc__ or "").strip().splitlines()[0].rstrip(".")


class _Option(click.Option):
    """An option that knows its section of ``--help`` and whether it tunes; repeated, its variable holds all values."""

    def __init__(self, names: list[str], section: str, tunes: bool, **about: Any) -> None:
        super().__init__(names, show_envvar=True, **about)
        self.section, self.tunes = section, tunes

    def value_from_envvar(self, ctx: click.Context) -> Any:
        """Of one that may be repeated: the words in the variable; None when it is not set or empty."""
        if not self.multiple:
            return super().value_from_envvar(ctx)
        given = self.resolve_envvar_value(ctx)
        return tuple(given.replace(",", " ").split()) or None if given is not None else None


class _Argument(click.Argument):
    """A setting without a flag, shown in its section like the others."""

    tunes = False

    def __init__(self, each: Field[Any], section: str, kind: click.ParamType[Any]) -> None:
        variable = variable_of(each)
        super().__init__([each.name], type=kind, envvar=variable, required=False, default=each.default)
        self.section = section
        self._about = f"{each.metadata['help']}  [env var: {variable}; default: {each.default}]"

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        """What ``--help`` says of it."""
        return self.name.upper(), self._about


def _option(each: Field[Any], hint: Any, section: str) -> click.Option:
    about: dict[str, Any] = {"help": each.metadata["help"], "envvar": variable_of(each)}
    about |= {"required": True} if each.default is MISSING else {"default": each.default}
    if each.metadata["usual"] is not None:
        about["show_default"] = str(each.metadata["usual"])
    if each.default == "" or each.metadata["secret"]:
        about["show_default"] = False
    if each.metadata["secret"]:
        about |= {"help": f"{about['help']}; or {flag_of(each.name + ENDING)} FILE"}
    name = flag_of(each.name)
    if hint is bool:
        name += f"/--no-{name[2:]}"
    else:
        about |= {"type": _parameter_type(hint, each), "multiple": typing.get_origin(hint) is tuple}
    return _Option([name], section, each.metadata["tunes"], **about)


def _parameter_type(hint: Any, each: Field[Any]) -> click.ParamType[Any]:
    if isinstance(hint, types.UnionType):
        hint = next(each for each in typing.get_args(hint) if each is not type(None))
    words = typing.get_args(hint) if typing.get_origin(hint) is Literal else each.metadata["choices"]
    if words:
        return click.Choice(list(words))
    low, high = each.metadata["minimum"], each.metadata["maximum"]
    if hint is int:
        return click.IntRange(low, high)
    return _Number(low, high) if hint is float else click.STRING


class _Number(click.FloatRange):
    """A number, and not what says that it is none: that is neither below a limit nor above one."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found = float(super().convert(value, param, ctx))
        if math.isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


class _SettingsCommand(click.Command):
    """A command with ``--help``, which shows what a user decides, and ``--help-all``, which also shows what tunes."""

    def __init__(self, name: str, **about: Any) -> None:
        super().__init__(name, **about)
        self.params.append(
            click.Option(
                [HELP_ALL],
                is_flag=True,
                is_eager=True,
                expose_value=False,
                callback=_show_all,
                help="Show these and all others, which tune.",
            )
        )

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options that are to be shown, each section under its title."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            ours = param if isinstance(param, _Option | _Argument) else None
            shown = ctx.meta.get(HELP_ALL) or not (ours and ours.tunes)
            record = param.get_help_record(ctx) if shown else None
            if record is not None:
                title = ours.section if ours else "Help"
                sections.setdefault(title, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _show_all(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
