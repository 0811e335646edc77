"""One gateway among several that share a redis: what it tells them, hears of them, and sends them."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, Final

from prometheus_client import Counter as Counted
from prometheus_client import Gauge

from gateway.config import GatewayConfig
from gateway.groups import shown
from gateway.key_book import KeyBook
from gateway.key_stores import IN_REDIS
from gateway.limits.limiter import Limiter, MemoryStore
from gateway.limits.redis_limits import RedisStore
from gateway.metrics import GatewayMetrics
from gateway.peer_client import PeerClient
from gateway.policy import Reason, pick_model
from gateway.registry.line import RedisLine
from gateway.registry.redis import RedisRegistry
from gateway.registry.redis_keys import records_in
from gateway.registry.redis_tls import tls_options
from gateway.registry.registry import AgentRecord, Peer
from gateway.request import AnyAsk
from gateway.responses.kept_in_redis import RedisResponses
from gateway.roster import Roster
from gateway.routing import Better, better_gateway

KEPT_WITHIN_S: Final = 5.0
KEPT_AT_ONCE: Final = 16
"""Stored responses have a connection to redis of their own, on which a round trip may take long: each is up to a
megabyte, and neither may limits wait for that, nor may redis count as gone."""

SHUNNED_S: Final = 5.0
"""For so long nothing is sent to a gateway that could not be reached."""


class Fleet:
    """All gateways, as one of them knows them.

    Attributes:
        registry: whose agents are known.
        limiter: for limits that hold for all gateways together.
        responses: those that all gateways know.
        client: the way to the others.
    """

    def __init__(self, config: GatewayConfig, book: KeyBook, metrics: GatewayMetrics) -> None:
        self.id = secrets.token_hex(8)
        self._config = config
        self._book = book
        self._roster: Roster | None = None
        self._draining = False
        self._shunned: dict[str, float] = {}
        self._sent: Counter[str] = Counter()
        self._sent_by = 0
        options = tls_options(config.redis, config.tls_cert, config.tls_key, config.tls_ca)
        self._line = RedisLine(config.redis, self._redis_changed, options)
        self._kept_line = RedisLine(
            config.redis, options=options, within_s=KEPT_WITHIN_S, batch=KEPT_AT_ONCE, of="stored responses"
        )
        self._store = RedisStore(self._line, self.id, MemoryStore())
        self.limiter = Limiter(self._store)
        self.registry = RedisRegistry(
            self._line, self.id, config.own_url, config.gateway_token, self._state, self._new_keys
        )
        self.responses = RedisResponses(self._kept_line, config.gateway_token)
        self.client = PeerClient(config)
        own = metrics.registry
        self._incidents = metrics.incidents
        self._up = Gauge("trilby_redis_connected", "Whether redis answers", registry=own)
        self._peers = Gauge("trilby_num_gateways", "Gateways known, this one among them", registry=own)
        self._peers.set_function(lambda: len(self.registry.peers) + 1)
        self.forwarded = Counted(
            "trilby_requests_forwarded_total",
            "Requests sent to other gateways, by how that went",
            ["outcome"],
            registry=own,
        )

    async def open(self) -> None:
        """Begin, but for the registry; waits once, and not for long, for redis to be there."""
        await self._kept_line.open()

    async def close(self) -> None:
        """End all connections but the registry's."""
        await self.client.close()
        await self._kept_line.close()

    def serve(self, roster: Roster) -> None:
        """Say from now on what this gateway has."""
        self._roster = roster

    def drain(self) -> None:
        """Say that this gateway takes nothing new."""
        self._draining = True
        self.registry.hurry()

    @property
    def up(self) -> bool:
        """Whether redis answers."""
        return self._line.up

    def better(self, ask: AnyAsk, passed_over: Collection[str] = (), full: Collection[str] = ()) -> Better | None:
        """Return the gateway that should answer a request, see ``better_gateway``; None: this one."""
        assert self._roster is not None
        if not self.registry.peers:
            return None
        model = pick_model(self.registry.known(), ask.model, ask.task)
        if isinstance(model, Reason):
            return None
        if self._sent_by != self.registry.beats:
            self._sent.clear()
            self._sent_by = self.registry.beats
        now = time.monotonic()
        self._shunned = {peer: until for peer, until in self._shunned.items() if until > now}
        wish, _ = self._roster.wish(ask, model.id)
        links = self._roster.links
        return better_gateway(
            [link.record for link in links],
            len(self._roster.waiting),
            self.registry.peers,
            wish,
            {link.key: link.held[ask.tenant] for link in links},
            self._sent,
            {*passed_over, *self._shunned},
            full,
        )

    @contextmanager
    def sending(self, peer: Peer) -> Iterator[None]:
        """A request is there until the block ends; it counts here until that gateway has told of it."""
        beats = self._sent_by
        self._sent[peer.id] += 1
        try:
            yield
        finally:
            # Else it is forgotten already. Where redis is gone nothing but this forgets it.
            if beats == self._sent_by:
                self._sent[peer.id] -= 1

    def shun(self, peer: Peer) -> None:
        """It could not be reached."""
        now = time.monotonic()
        if self._shunned.get(peer.id, 0.0) <= now:  # Else several requests have found out together.
            self._incidents.note(time.time(), "gateway_lost", peer.url, "others answer what it was asked")
        self._shunned[peer.id] = now + SHUNNED_S

    def broke_off(self, peer: Peer, tenant: str) -> None:
        """It was lost while it answered a request of this tenant, who had a part of the answer already."""
        self._incidents.note(time.time(), "gateway_lost", peer.url, "an answer broke off", tenant)

    def shown(self, most: int | None = None) -> dict[str, Any]:
        """Return what people see of it: all of it in GET /state, on the page ``most`` of each gateway's agents."""
        gateways = [
            {
                "url": peer.url,
                "waiting": peer.waiting,
                "agents": [_agent(each) for each in peer.agents[:most]],
                "more_agents": len(peer.agents[most:]) if most is not None else 0,
            }
            for peer in self.registry.peers
        ]
        redis = {"connected": self.up, "losses": self._line.losses}
        return {"url": self._config.own_url, "redis": redis, "gateways": gateways}

    def _state(self) -> tuple[int, bool]:
        return (0 if self._roster is None else len(self._roster.waiting)), self._draining

    def _redis_changed(self, up: bool) -> None:
        self._up.set(up)
        if not up:
            self._incidents.note(time.time(), "redis_lost", "", "serving goes on from memory")
        elif self._line.losses:
            self._incidents.note(time.time(), "redis_back", "", "it is used again")
        if up:
            self.registry.hurry()
            self._store.restate_all(self.limiter.open)

    def _new_keys(self, values: list[Any]) -> None:
        if self._config.key_store == IN_REDIS:
            self._book.replace(records_in(values, self._config.gateway_token))


def _agent(record: AgentRecord) -> dict[str, Any]:
    about = {name: getattr(record, name) for name in ("name", "running", "capacity", "draining", "cloud_connected")}
    group = {} if record.group is None else {"group": shown(record.group)}
    return {**about, "models": [model.id for model in record.models], **group}
