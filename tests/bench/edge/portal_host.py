"""The portal of real members on the testbed, which computes nothing: what series and hand-overs begin with."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from bench.edge.groups import TERMINAL
from bench.edge.job import PORT, SECRET

from device_agent.group.asking.submodel import GroupSubmodel
from device_agent.group.formation.planned import ModePlanner
from device_agent.group.host import GroupHost
from device_agent.planning.task import Work
from split_model.checkpoint import Checkpoint


def portal_host(
    mode: str, address: str, model: str, devices: Sequence[str], work: Work, finds_slow: bool = False
) -> GroupHost:
    """A host that is not running yet, for exactly these devices, measured before they are planned with.

    finds_slow: whether members that are slow beside their plan are planned without.
    """
    checkpoint = Checkpoint.open(model)
    spec = checkpoint.spec
    planner = ModePlanner(mode, spec, "float32", TERMINAL, work)
    return GroupHost(
        checkpoint=checkpoint,
        submodel=GroupSubmodel(spec.hidden_size, torch.float32, max_positions=spec.max_positions),
        planner=planner,
        wanted=devices,
        first_layer=0,
        dtype="float32",
        key=SECRET,
        address=address,
        port=PORT,
        name=TERMINAL,
        measured=True,
        expects=planner.expects if finds_slow else None,
    )
