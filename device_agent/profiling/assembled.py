"""What the members of a group have measured, each for itself, as one profile. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from device_agent.planning.plan import ONE_SHOT_BYTES
from device_agent.planning.profile import VERSION, Collective, DeviceProfile, LinkProfile, Profile


def assembled(
    digest: str,
    dtype: str,
    devices: Sequence[DeviceProfile],
    links: Iterable[LinkProfile] = (),
    collectives: Iterable[Collective] = (),
    one_shot_bytes: int = ONE_SHOT_BYTES,
) -> Profile:
    """The profile of a group.

    Args:
        links: of all members, from each to each other.
        collectives: as one member has them; all have the same.

    Raises:
        ValueError: two devices have one name, or a link is missing, see `Profile`.
    """
    return Profile(VERSION, digest, dtype, tuple(devices), tuple(links), tuple(collectives), one_shot_bytes)
