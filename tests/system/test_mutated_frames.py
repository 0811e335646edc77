"""Some hundreds of wrong frames at each door of an installation; ``make test-frames`` sends a million at all doors."""

from __future__ import annotations

import random

import pytest
from faults.listeners import FabricDoor, FabricLinks, Http, Listener, TokenSocket, cloud_door, gateway_door
from installation import Installation

pytestmark = pytest.mark.system

BATCHES = 25


@pytest.mark.parametrize("name", ["http", "agents", "stream", "cloud", "link doors", "links"])
def test_wrong_frames_harm_nobody(name: str, installation: Installation) -> None:
    """Each connection is answered or ended, and a normal request is served behind them all."""
    base = installation.base
    made: dict[str, Listener] = {
        "http": Http(installation.gateway_port, base),
        "agents": gateway_door(installation.gateway_port, base),
        "stream": TokenSocket(installation.gateway_port, base),
        "cloud": cloud_door(installation.cloud_port, base),
        "link doors": FabricDoor(),
        "links": FabricLinks(),
    }
    for batch in range(BATCHES):
        made[name].attack(random.Random(f"ci/{name}/{batch}"))
    made[name].check()
