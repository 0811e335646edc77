"""What the portal knows of its devices and links, and what of it is missing for a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations

from msgspec.structs import replace

from device_agent.planning.profile import VERSION, Collective, DeviceProfile, LinkProfile, Profile


class Measures:
    """Of one model and dtype. What was measured once is kept, also of members that are gone."""

    def __init__(self, digest: str, dtype: str) -> None:
        self._digest, self._dtype = digest, dtype
        self._devices: dict[str, DeviceProfile] = {}
        self._links: dict[tuple[str, str], LinkProfile] = {}
        self._costs_s: dict[str, float] = {}
        self._together: dict[frozenset[str], tuple[tuple[Collective, ...], int]] = {}

    def take(self, profile: Profile) -> None:
        """What was measured before. Raises ``ValueError`` where that was another model, or in another dtype."""
        if (profile.digest, profile.dtype) != (self._digest, self._dtype):
            raise ValueError(f"the profile is of {profile.digest[:12]} in {profile.dtype}, not of this group's model")
        for device in profile.devices:
            self.device(device)
        names = [device.name for device in profile.devices]
        costs_s = {device.name: device.byte_cost_s for device in profile.devices}
        self.links(names, profile.links, profile.collectives, profile.one_shot_bytes, costs_s)

    def device(self, device: DeviceProfile) -> None:
        """A device was measured, or measured again."""
        self._devices[device.name] = device

    def links(
        self,
        names: Sequence[str],
        links: Iterable[LinkProfile],
        collectives: Sequence[Collective],
        one_shot_bytes: int,
        costs_s: Mapping[str, float],
    ) -> None:
        """Links were measured, exchanges among all of ``names``, and what a byte of these costs each."""
        self._costs_s.update(costs_s)
        self._links.update({(link.source, link.target): link for link in links})
        self._together[frozenset(names)] = tuple(collectives), one_shot_bytes

    def knows(self, name: str) -> bool:
        """Whether a device was measured."""
        return name in self._devices

    def forget(self, name: str) -> None:
        """A device is not what it was."""
        self._devices.pop(name, None)

    def knows_links(self, names: Sequence[str]) -> bool:
        """Whether the links between all of these were measured."""
        return all(pair in self._links for pair in permutations(names, 2))

    def profile(self, names: Sequence[str]) -> Profile:
        """Of these devices. Raises ``ValueError`` where something is missing."""
        missing = [name for name in names if name not in self._devices]
        if missing:
            raise ValueError(f"nothing was measured of {', '.join(missing)}")
        links = tuple(self._links[pair] for pair in permutations(names, 2) if pair in self._links)
        collectives, one_shot = self._together.get(frozenset(names)) or ((), None)
        # What was measured over the real links says more than what a device has found alone.
        devices = tuple(
            replace(device, byte_cost_s=self._costs_s.get(device.name, device.byte_cost_s))
            for device in map(self._devices.__getitem__, names)
        )
        more = {} if one_shot is None else {"one_shot_bytes": one_shot}
        return Profile(VERSION, self._digest, self._dtype, devices, links, collectives, **more)
