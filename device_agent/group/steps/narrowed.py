"""What members are told of heads that sessions leave out, beside the steps themselves."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from device_agent.group.holding.held import HeldLayer
from device_agent.group.holding.narrowing import Narrowing
from device_agent.group.messages.heads import BadGroupHead
from device_agent.group.rows.sending import Tag
from peers.collectives import Collectives


def take_means(
    narrowing: Narrowing | None,
    collectives: Collectives,
    layers: Sequence[HeldLayer],
    portal: int,
    given: torch.Tensor | None,
) -> None:
    """given: the portal's own; None: it comes from the portal. Raises ``BadGroupHead``, ``PeerLost``, ``EpochOver``."""
    if narrowing is None:
        raise BadGroupHead("no session leaves heads out here")
    if given is None:
        spec = narrowing.spec
        given = torch.empty((len(layers), spec.num_heads, spec.head_dim))
        collectives.receive(given, portal, Tag.MEANS).wait()
    narrowing.take_means(given)
