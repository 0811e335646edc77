"""``python -m service.bench``, which is ``trilby bench``: how fast an OpenAI-compatible server answers under load."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from service.api_server import ServerError, model_of, shown
from service.bars import Bars
from service.bench.config import BenchConfig
from service.bench.measuring import measured
from service.bench.plot import plot
from service.bench.prompts import BadPrompts, drawn, read
from service.bench.report import facts, remarks, table
from service.settings import settings_command
from service.stopping import end_in_order
from service.version import VERSION

REDRAW_S = 0.5
"""Drawing a bar takes milliseconds, for which nothing is sent."""

EXAMPLES = """
trilby bench
trilby bench http://gateway.local:8000/v1 --rate 0.5,1,2,4,8 --plot load.svg
trilby bench https://api.example/v1 --api-key-file ~/.key --model NAME --rate 2 --seconds 300 --json load.json
trilby bench --prompts prompts.jsonl --max-tokens 128 --ignore-eos --goodput ttft:500,itl:50
"""


def run(config: BenchConfig) -> None:
    """Measure and print."""
    end_in_order()
    config = config.seeded()
    try:
        prompts = read(config.prompts) if config.prompts else drawn(config.words, config.seed)
        with config.client() as client:
            model = model_of(client, config.model, lambda line: click.echo(line, err=True))
        _check_written(config)
        with Bars(Console(stderr=True), redraw_s=REDRAW_S) as bars:
            found = asyncio.run(measured(config, model, prompts, bars))
    except (BadPrompts, ServerError, OSError) as error:
        raise SystemExit(str(error)) from error
    if not found:
        raise SystemExit("Nothing was measured.")
    click.echo(f"{shown(config.base)}, {model}: {_described(config)}\n")
    click.echo(table(found, config.limits()))
    for line in remarks(found):
        click.echo(f"\n{line}", err=True)
    if config.json:
        told = {"url": shown(config.base), "model": model, "version": VERSION, "load": _load(config)}
        text = json.dumps({**told, "rates": facts(found)}, indent=1, allow_nan=False)
        Path(config.json).write_text(text + "\n", encoding="utf-8")
    if config.plot:
        Path(config.plot).write_text(plot(sorted(found, key=lambda each: each.rate)), encoding="utf-8")
    if not any(each.answered for each in found):
        raise SystemExit(1)


def _check_written(config: BenchConfig) -> None:
    """Raises OSError where a file that is to be written cannot be: now, not when all is measured."""
    for path in filter(None, (config.json, config.plot)):
        folder = Path(path).absolute().parent
        if (
            not folder.is_dir()
            or not os.access(path if Path(path).exists() else folder, os.W_OK)
            or Path(path).is_dir()
        ):
            raise OSError(f"{path} cannot be written.")


def _described(config: BenchConfig) -> str:
    asked = f"the prompts of {config.prompts}" if config.prompts else f"prompts of {config.words} words or a few more"
    return (
        f"{config.arrivals} arrivals, {config.seconds_each:g} s at each rate; {asked}, answers of "
        f"{'' if config.ignore_eos else 'at most '}{config.max_tokens} tokens. Again: --seed {config.seed}."
    )


def _load(config: BenchConfig) -> dict[str, Any]:
    """What was sent, for programs."""
    names = ("arrivals", "drain_s", "seed", "prompts", "words", "max_tokens", "ignore_eos", "body", "goodput")
    return {"seconds": config.seconds_each, **{name: getattr(config, name) for name in names}}


main = settings_command(BenchConfig, run, name="trilby bench", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
