"""Where the other processes are, and what is shown to a group, as settings that several processes have."""

from __future__ import annotations

from dataclasses import dataclass

from service.settings import setting
from service.shared_settings import words


@dataclass(frozen=True)
class ServersSettings:
    """Whom it works with."""

    gateway: str = setting(
        "ws://127.0.0.1:8000",
        "gateway to serve; several, by commas: where one is lost the next is dialled",
        variable="gateway_url",
    )
    cloud: tuple[str, ...] = setting(
        ("ws://127.0.0.1:8001",),
        "cloud server with the middle layers; several times: the first is preferred",
        variable="cloud_url",
    )

    @property
    def gateways(self) -> tuple[str, ...]:
        """The gateways, one by one."""
        return words(self.gateway)


@dataclass(frozen=True)
class MemberSettings:
    """Its part in a group."""

    group_key: str = setting("", "secret that the members of a group share, 16 characters or more", secret=True)


@dataclass(frozen=True)
class JoinSettings:
    """Whose group it joins."""

    join: str = setting(
        "",
        "be a member of another device's group, whose --group-listen is HOST:PORT; auto: ask the gateway where, or the "
        "local network, which needs the extra lan",
        variable="group_join",
    )
