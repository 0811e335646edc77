"""``python -m service.doctor``, which is ``trilby doctor``: what is wrong here, and what to do about it."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import fields
from functools import partial
from typing import Final

from service.doctor import machine
from service.doctor.apart import examined
from service.doctor.ask import Asker
from service.doctor.check import Check, hanging
from service.doctor.clock import kept_pace
from service.doctor.config import DoctorConfig
from service.doctor.finding import Finding, Say
from service.doctor.place import Place
from service.doctor.ports import port_of
from service.doctor.reach import reached
from service.doctor.report import Report
from service.doctor.served import CLOUD, GATEWAY, USUAL_PORTS, looked_at
from service.secret_files import current
from service.settings import settings_command
from service.stopping import end_at_once
from tls.contexts import BadTlsFile, Tls

EXAMPLES = """
trilby doctor                                                     this machine, and what trilby serve has on it
trilby doctor --model ~/models/Qwen3-0.6B --split 4 --dtype bfloat16
trilby doctor --gateway ws://gateway.local:8000 --cloud ws://cloud.local:8001 --model DIR --split 2
TRILBY_GROUP_KEY=… trilby doctor --join 10.0.0.1:8003
trilby doctor --json > doctor.json
"""

NOT_DIALLED: Final = ("dialled", "TLS files", "health")
"""Checks of a link without which the others need not be tried."""

QUICK_S, LINK_S = 15.0, 45.0
"""What a check of this machine may take, and one of a link with all its questions."""


def run(config: DoctorConfig) -> None:
    """Look at everything, print, and end with 1 where something fails."""
    end_at_once()
    report = Report(config.json, _secrets(config))
    wall, began = time.time(), time.monotonic()
    for check in checks(config):
        report.run(check)
    unreachable = {each.about for each in report.findings if each.check in NOT_DIALLED and each.status == "fail"}
    examined(config, unreachable, report.say, report.doing)
    report.say(kept_pace(time.time() - wall, time.monotonic() - began))
    status = report.end(time.monotonic() - began)
    if hanging():  # It would keep this process, as the name servers do that one look-up waits for.
        sys.stdout.flush()
        os._exit(status)
    raise SystemExit(status)


def checks(config: DoctorConfig) -> Iterator[Check]:
    """All that needs neither PyTorch nor the wire, in the order in which it is told."""
    yield Check("python and packages", QUICK_S, machine.python)
    yield Check("memory", QUICK_S, machine.memory)
    yield Check("disk", QUICK_S, machine.disk)
    yield Check("clock", QUICK_S, machine.clock)
    links = [*((GATEWAY, place) for place in config.gateways), *((CLOUD, place) for place in config.clouds)]
    if not links and not config.join:
        for who, port in USUAL_PORTS.items():
            yield Check(f"port {port}", LINK_S, partial(port_of, who, port, current(config.api_key)))
    for who, place in links:
        yield Check(who, LINK_S, partial(_link, config, place, who), place.websocket)


def _link(config: DoctorConfig, place: Place, who: str, say: Say) -> None:
    try:
        tls = config.tls() if place.secure else None
    except BadTlsFile as error:
        todo = "Name other files with --tls-cert, --tls-key and --tls-ca, or make these readable."
        say(Finding("TLS files", "fail", str(error), todo, place.websocket))
        return
    context = (tls or Tls()).dialling() if place.secure else None
    api_key = current(config.api_key) if who == GATEWAY else ""
    asyncio.run(_dialled_and_asked(Asker(place, context, api_key), who, say))


async def _dialled_and_asked(asker: Asker, who: str, say: Say) -> None:
    found = await reached(asker.place, asker.context)
    say(found)
    if found.status != "fail":
        await looked_at(asker, who, say)


def _secrets(config: DoctorConfig) -> list[str]:
    """What is never shown: the secrets themselves, also those that came from files."""
    return [current(getattr(config, each.name)) for each in fields(config) if each.metadata["secret"]]


main = settings_command(DoctorConfig, run, name="trilby doctor", examples=EXAMPLES)

if __name__ == "__main__":
    main(prog_name=main.name)
