"""What was measured of the devices of a group and of the links between them. Pure: who measures and keeps it is others.

Written and read as JSON, strictly: a file comes from other machines.
"""

from __future__ import annotations

import msgspec

from device_agent.planning.plan import ONE_SHOT_BYTES
from device_agent.planning.table import Table
from split_model.offload.form import Decoding, coded_pays, loaded_bytes_s

VERSION = 3
MAX_DEVICES = 64
MAX_BYTES = 64 << 20

AXES = {
    "query": ("rows", "groups"),
    "key_value": ("rows", "groups"),
    "attend": ("rows", "positions", "groups"),
    "reordered": ("rows", "positions"),
    "output": ("rows", "groups"),
    "up": ("rows", "columns"),
    "down": ("rows", "columns"),
    "norm": ("rows",),
    "embedding": ("rows",),
    "head": ("rows",),
}
"""What is measured of one layer, by its sizes: the projections of queries, and of keys and values; attention of rows to
so many positions each; attention in the order of Voltage's Eq. 8 from hidden states to heads, all heads at once; the
output projection; the MLP's first product with its activation; its second; a norm with its residual; then of the whole
model the embedding and the head. Groups are KV heads with their queries."""

OPTIONAL = frozenset({"reordered"})


class DeviceProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One device.

    Attributes:
        memory_bytes: how much a plan may use of its memory.
        disk_bytes: room for weights on its disk.
        seconds: for each part of `AXES` what it takes here; those of `OPTIONAL` may be missing.
        byte_cost_s: seconds of computing that it loses for each byte that it sends, one coming meanwhile.
        read_bytes_s: bytes a second of reading weights from its disk, one behind the other and past the system's cache;
            0: not measured, so nothing can be planned to be read while it is used.
        decoding: of weights that lie coded on the disk; None: they lie as they are.
    """

    name: str
    memory_bytes: int
    disk_bytes: int
    seconds: dict[str, Table]
    byte_cost_s: float = 0.0
    read_bytes_s: float = 0.0
    decoding: Decoding | None = None

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a device has no name")
        if min(self.memory_bytes, self.disk_bytes) < 0:
            raise ValueError(f"{self.name}: memory_bytes and disk_bytes must be 0 or more")
        if not 0 <= self.byte_cost_s < float("inf"):
            raise ValueError(f"{self.name}: byte_cost_s is {self.byte_cost_s}; it must be 0 or more, and finite")
        if not 0 <= self.read_bytes_s < float("inf"):
            raise ValueError(f"{self.name}: read_bytes_s is {self.read_bytes_s}; it must be 0 or more, and finite")
        for part, table in self.seconds.items():
            if part not in AXES:
                raise ValueError(f"{self.name}: {part!r} is not one of {', '.join(AXES)}")
            if len(table.axes) != len(AXES[part]):
                raise ValueError(f"{self.name}: {part} must be measured by {', '.join(AXES[part])}")
        missing = [part for part in AXES if part not in self.seconds and part not in OPTIONAL]
        if missing:
            raise ValueError(f"{self.name}: nothing was measured of {', '.join(missing)}")

    @property
    def codes(self) -> bool:
        """Whether what it streams is there sooner where it lies coded on the disk."""
        return self.decoding is not None and coded_pays(self.read_bytes_s, self.decoding)

    def loaded_bytes_s(self, coded: bool) -> float:
        """Bytes of weights a second that are read for their use; 0: not measured."""
        return loaded_bytes_s(self.read_bytes_s, self.decoding) if coded and self.decoding else self.read_bytes_s

    def lost_s(self, size: int, coded: bool) -> float:
        """Seconds that computing loses to decoding so many bytes of weights."""
        return self.decoding.lost * size / self.decoding.bytes_s if coded and self.decoding else 0.0


class LinkProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From one device to another. Each device sends and receives at once, over one port each way.

    Attributes:
        source, target: names of devices.
        bytes_s: bandwidth, in bytes a second.
        rtt_s: seconds of a round trip of a small message.
    """

    source: str
    target: str
    bytes_s: float
    rtt_s: float

    def __post_init__(self) -> None:
        if not 0 < self.bytes_s < float("inf") or not 0 <= self.rtt_s < float("inf"):
            raise ValueError(f"the link from {self.source} to {self.target} has no bandwidth or no round trip")


class Collective(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An exchange among so many devices, measured by ring and with even parts.

    Attributes:
        kind: "all_gather", "reduce_scatter" or "all_reduce".
        seconds: by the bytes of all parts together.
    """

    kind: str
    devices: int
    seconds: Table

    def __post_init__(self) -> None:
        if self.kind not in ("all_gather", "reduce_scatter", "all_reduce"):
            raise ValueError(f"{self.kind!r} is not all_gather, reduce_scatter or all_reduce")
        if self.devices < 2 or len(self.seconds.axes) != 1:
            raise ValueError(f"{self.kind} must be measured among 2 devices or more, by bytes")


class Profile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All that is known of a group for one model.

    Attributes:
        digest: of the model whose layers were measured.
        dtype: in which it was measured, "float32", "bfloat16" or "float16".
        links: from each device to each other.
        one_shot_bytes: what all members' parts together have at most these bytes goes from each to all at once; what is
            more goes round a ring.
    """

    version: int
    digest: str
    dtype: str
    devices: tuple[DeviceProfile, ...]
    links: tuple[LinkProfile, ...]
    collectives: tuple[Collective, ...] = ()
    one_shot_bytes: int = ONE_SHOT_BYTES

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise ValueError(f"version is {self.version}; this Trilby reads {VERSION}")
        names = [device.name for device in self.devices]
        if not 1 <= len(names) <= MAX_DEVICES or len(set(names)) != len(names):
            raise ValueError(f"devices must be 1 to {MAX_DEVICES}, each with a name of its own")
        if self.one_shot_bytes < 0:
            raise ValueError(f"one_shot_bytes is {self.one_shot_bytes}; it must be 0 or more")
        pairs = [(link.source, link.target) for link in self.links]
        wanted = {(source, target) for source in names for target in names if source != target}
        for source, target in pairs:
            if (source, target) not in wanted:
                raise ValueError(f"a link from {source!r} to {target!r} joins no two devices of the group")
        if len(set(pairs)) != len(pairs):
            raise ValueError("two links go from the same device to the same device")
        for source, target in sorted(wanted - set(pairs)):
            raise ValueError(f"no link from {source} to {target} was measured")


def written(profile: Profile) -> str:
    """The profile as JSON."""
    return msgspec.json.format(msgspec.json.encode(profile), indent=1).decode()


def read(text: str | bytes, digest: str | None = None) -> Profile:
    """A profile from JSON.

    digest: of the model that is to be planned for; None: whatever was measured is taken.

    Raises ValueError, saying what is wrong and where, for what is no profile or is one of another model.
    """
    if len(text) > MAX_BYTES:
        raise ValueError(f"a profile of {len(text)} bytes is too long; the most is {MAX_BYTES}")
    try:
        profile = msgspec.json.decode(text, type=Profile)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ValueError(f"this is no profile: {error}") from None
    if digest is not None and profile.digest != digest:
        raise ValueError(f"the profile is of the model {profile.digest}, not of {digest}")
    return profile
