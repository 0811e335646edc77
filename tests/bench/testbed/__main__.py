"""The testbed's command line: ``python -m bench.testbed``."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import click
from bench.testbed.bed import Testbed
from bench.testbed.leftovers import clean as clean_leftovers
from bench.testbed.machine import too_large
from bench.testbed.possible import NotPossible, check_possible, obstacle
from bench.testbed.scenario import BadScenario, load

EXAMPLES = """\b
Examples (PYTHONPATH=tests):
  python -m bench.testbed check
  python -m bench.testbed up tests/bench/testbed/scenarios/smoke.toml --set up_mb_s=0.5
  python -m bench.testbed clean
"""


@click.group(epilog=EXAMPLES)
def main() -> None:
    """Hosts, links and processes as a scenario declares them, made of network namespaces, veth, tbf and cgroups."""


@main.command()
def check() -> None:
    """Say whether this machine can carry a testbed; exit status 1 where it cannot."""
    if obstacle():
        raise click.ClickException(obstacle())
    click.echo("A testbed can be made here.")


@main.command()
def clean() -> None:
    """Remove what killed testbeds have left behind; those of running processes are left alone."""
    _possible()
    removed = clean_leftovers()
    click.echo(f"Removed: {', '.join(removed)}." if removed else "There was nothing to remove.")


@main.command(epilog=EXAMPLES)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--set", "given", multiple=True, metavar="NAME=VALUE", help="what a {placeholder} stands for")
@click.option("--folder", type=click.Path(file_okay=False, path_type=Path), default=Path("build/testbed"),
              show_default=True, help="where logs go")  # fmt: skip
@click.option("--bare", is_flag=True, help="start no processes")
def up(file: Path, given: tuple[str, ...], folder: Path, bare: bool) -> None:
    """Bring a scenario up, say how to reach its hosts, and keep it until Ctrl-C."""
    _possible()
    for each in given:
        if "=" not in each:
            raise click.BadParameter(f"{each} is not NAME=VALUE", param_hint="--set")
    variables = dict(each.split("=", 1) for each in given)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        scenario = load(file, variables)
        if large := too_large(scenario.cores_total, os.cpu_count() or 1):
            click.echo(f"{large} No host is sure to get what it is given.", err=True)
        with Testbed(scenario, folder) as bed:
            for host in bed.scenario.hosts:
                quota = f"{host.cores:g} cores" if host.cores else "no CPU quota"
                click.echo(f"{host.name}: {quota}; nsenter --net=/run/netns/{bed.namespace(host.name)} bash")
            for link in bed.scenario.links:
                click.echo(f"{link.a} reaches {link.b} at {bed.address(link.a, link.b)}")
            if not bare:
                click.echo("Starting the processes …")
                bed.start(variables=variables)
            click.echo(f"Up; logs are in {folder}. Ctrl-C removes it all.")
            signal.pause()
    except KeyboardInterrupt:
        click.echo("Removed.")
    except (BadScenario, RuntimeError) as error:
        raise click.ClickException(str(error)) from None


def _possible() -> None:
    try:
        check_possible()
    except NotPossible as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main(prog_name="python -m bench.testbed")
