"""`python -m device_agent.profiling`, which is `trilby profile`: measures this device, or several on this machine."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import click
from rich.console import Console

from device_agent.planning.profile import Profile, written
from device_agent.planning.shape import ModelShape
from device_agent.profiling.assembled import assembled
from device_agent.profiling.compute import Told
from device_agent.profiling.config import MeasureSettings, ProfileConfig
from device_agent.profiling.kept_profiles import keep
from device_agent.profiling.measuring import measure_of, opened
from device_agent.profiling.together import as_first
from device_agent.profiling.words import profile_words
from peers.board import PeerLost
from service.bars import Bars
from service.children import Children
from service.logs import configure_logs
from service.python_module import python_module
from service.settings import settings_command, words_of
from service.stopping import end_at_once
from split_model.checkpoint import Checkpoint
from split_model.errors import ModelError
from split_model.free_memory import free_bytes
from split_model.hub import identity

NAME: Final = "device"
"""What this device is called in plans; the others' names have a number behind it, as in trilby serve."""

EXAMPLES = """
trilby profile --model ~/models/Qwen3-0.6B
trilby profile --model ~/models/Qwen3-0.6B --dtype bfloat16 --devices 3 --out home.json
trilby plan --mode all --model ~/models/Qwen3-0.6B --profiles home.json
"""


def run(config: ProfileConfig) -> None:
    """Measure, show, keep."""
    end_at_once()
    configure_logs("profile", "warning", "text")
    try:
        checkpoint = opened(config)
        with _bar() as told:
            profile = _alone(config, checkpoint, told) if config.devices == 1 else _several(config, checkpoint, told)
    except (ModelError, ValueError, OSError, PeerLost) as error:
        raise SystemExit(f"Cannot measure {config.model}: {error}") from None
    spec = checkpoint.spec
    click.echo(profile_words(profile, ModelShape.of(spec, config.dtype), spec.max_positions))
    _keep(config, profile)


def _alone(config: ProfileConfig, checkpoint: Checkpoint, told: Told) -> Profile:
    device = measure_of(config, checkpoint, NAME, told)()
    return assembled(identity(checkpoint), config.dtype, [device])


def _several(config: ProfileConfig, checkpoint: Checkpoint, told: Told) -> Profile:
    """This process is the first of them."""
    each = replace(
        config,
        threads=config.threads or max(1, (os.cpu_count() or 2) // config.devices),
        memory=config.memory or str(free_bytes() // 10**6 // config.devices),
    )
    names = [NAME, *(f"{NAME}-{number}" for number in range(2, config.devices + 1))]
    key = os.environ["TRILBY_GROUP_KEY"] = secrets.token_urlsafe(32)
    children = Children()

    def start(where: str) -> None:
        for name in names[1:]:
            words = [*words_of(each, MeasureSettings), "--name", name, "--join", where]
            children.start(name, [*python_module("device_agent.profiling.member"), *words])

    def look() -> None:
        ended = children.ended()
        if ended is not None:
            raise SystemExit(f"{ended[0]} ended by itself (exit status {ended[1]}); see its message above.")

    try:
        measure = measure_of(each, checkpoint, NAME, told)
        digest = identity(checkpoint)
        return asyncio.run(as_first(names, key, start, look, measure, config.quick, digest, config.dtype))
    finally:
        children.stop()


@contextmanager
def _bar() -> Iterator[Told]:
    """How far it is, in percent: it is shown on a terminal, and elsewhere in a line now and then."""
    with Bars(Console(stderr=True)) as bars, bars.bar("measuring", 100, "%") as more:
        shown = 0

        def told(done: int, total: int) -> None:
            nonlocal shown
            percent = 100 * done // total
            more(percent - shown)
            shown = percent

        yield told


def _keep(config: ProfileConfig, profile: Profile) -> None:
    where = []
    try:
        where.append(str(keep(profile)))
    except OSError as error:
        click.echo(f"It cannot be kept: {error}", err=True)
    if config.out:
        try:
            Path(config.out).write_text(written(profile), encoding="utf-8")
        except OSError as error:
            raise SystemExit(f"Cannot write {config.out}: {error}") from None
        where.insert(0, config.out)
    if where:
        click.echo(f"Kept as {' and '.join(where)}. See what it is good for:")
        click.echo(f"  trilby plan --mode all --model {config.model} --profiles {where[0]}")


main = settings_command(ProfileConfig, run, name="trilby profile", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
