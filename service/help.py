"""``--help`` and ``--help-all``: options by section, and of those that tune only the second shows anything."""

from __future__ import annotations

import typing
from typing import Any, Final, Protocol

import click

HELP_ALL: Final = "--help-all"


class Sectioned(Protocol):
    """An option of a settings dataclass: its section, and whether it tunes."""

    section: str
    tunes: bool


class SettingsCommand(click.Command):
    """A command whose options are ``Sectioned``."""

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
            shown = ctx.meta.get(HELP_ALL) or not getattr(param, "tunes", False)
            record = param.get_help_record(ctx) if shown else None
            if record is not None:
                title = typing.cast(Sectioned, param).section if hasattr(param, "section") else "Help"
                sections.setdefault(title, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def _show_all(ctx: click.Context, param: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        ctx.meta[HELP_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()
