"""``python -m device_agent.doctor``, which ``trilby doctor`` starts: what only PyTorch and the wire can tell.

It writes a line of JSON for each finding, and one for what it looks at. PyTorch is imported within the checks that need
it, so that links are looked at where it is broken.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from device_agent.doctor.cloud import look_at_cloud
from device_agent.doctor.gateway import look_at_gateway
from device_agent.doctor.group import look_at_group
from service.addresses import host_and_port
from service.doctor.apart import DOING
from service.doctor.check import Check, run
from service.doctor.config import AUTO, DoctorConfig
from service.doctor.finding import Finding, Say, line_of
from service.doctor.place import Place
from service.settings import settings_command, tuning
from service.stopping import end_at_once

if TYPE_CHECKING:
    from device_agent.doctor.model import ModelHere

IMPORT_S, GPU_S, MODEL_S, LINK_S = 90.0, 60.0, 90.0, 45.0
"""What checks may take: to import PyTorch from a slow disk; to wake a GPU's driver; to read samples of all weights; to
ask a server over a slow link."""

REINSTALL: Final = "Install it again for this machine, as make serve does (PIP_FLAGS says from where)."


@dataclass(frozen=True)
class ExamineConfig(DoctorConfig):
    """What trilby doctor looks at in a process of its own."""

    unreachable: tuple[str, ...] = tuning((), "links that need not be tried again")


def examine(config: ExamineConfig) -> None:
    """Look at everything, and end."""
    end_at_once()
    os.environ["HF_HUB_OFFLINE"] = "1"  # Nobody wants gigabytes fetched by a look.
    for check in checks(config):
        about = f"{check.about} " if check.about else ""
        click.echo(json.dumps({DOING: f"{about}{check.name} … (up to {check.within_s:g} s)"}))
        run(check, lambda finding: click.echo(line_of(finding)))
    os._exit(0)  # Whatever hangs in a library need not end.


def checks(config: ExamineConfig) -> Iterator[Check]:
    """All of them; what the model's finds out those of clouds go by."""
    found: list[ModelHere] = []
    yield Check("PyTorch", IMPORT_S, partial(_engine, config))
    yield Check("GPU", GPU_S, partial(_gpus, config))
    if config.model:
        yield Check("model", MODEL_S, partial(_model, config, found))
    for place in config.gateways:
        if place.websocket not in config.unreachable:
            yield Check("hello", LINK_S, partial(_apart, partial(look_at_gateway, place, config)), place.websocket)
    for place in config.clouds:
        if place.websocket not in config.unreachable:
            hello = found[0].hello if found else None
            look = partial(look_at_cloud, place, config, hello)
            yield Check("hello", LINK_S, partial(_apart, look), place.websocket)
    if config.join:
        yield Check("group", LINK_S, partial(_group, config), config.join)


def _engine(config: ExamineConfig, say: Say) -> None:
    try:
        from device_agent.doctor import engine
    except Exception as error:  # A library of its is missing, or another machine's, or of another time.
        say(Finding("PyTorch", "fail", f"it cannot be imported: {error}", REINSTALL))
        return
    engine.torch_build(say)
    engine.kernels(config.dtype, say)


def _gpus(config: ExamineConfig, say: Say) -> None:
    try:
        from device_agent.doctor import engine
    except Exception:
        return  # It was said.
    engine.gpus(config.device, say)


def _model(config: ExamineConfig, found: list[ModelHere], say: Say) -> None:
    try:
        from device_agent.doctor import model
    except Exception as error:
        say(Finding("model", "fail", f"what reads models cannot be imported: {error}", REINSTALL))
        return
    here = model.opened(config, say)
    if here is not None:
        found.append(here)
        model.room(config, here, say)


def _group(config: ExamineConfig, say: Say) -> None:
    if config.join == AUTO:
        todo = "Give the portal's address, --join HOST:PORT: it is its --group-listen."
        say(Finding("group", "warn", "where it is to be found is not looked up here", todo, AUTO))
        return
    host, port = host_and_port("--join", config.join)
    place = Place(host, port, secure=bool(config.tls_cert))
    _apart(partial(look_at_group, place, config), say)


def _apart(look: Callable[[Say], Coroutine[Any, Any, None]], say: Say) -> None:
    asyncio.run(look(say))


main = settings_command(ExamineConfig, examine, name="python -m device_agent.doctor")

if __name__ == "__main__":
    main(prog_name=main.name)
