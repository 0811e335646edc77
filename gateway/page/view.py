"""What the page is told: agents, requests and sums, as they are now. Pure, but that it reads what changes meanwhile.

Names, numbers and codes; of a request the beginning of its id, its model and its counts, never a text or a token id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, Final

import msgspec

from gateway.agents import AgentLink
from gateway.delivery import Desk
from gateway.groups import shown
from gateway.observation import Passed
from gateway.tickets import Ticket
from service.version import VERSION
from wire.observed_messages import ObservedRequest, Wire

MAX_AGENTS: Final = 64
"""Agents of a gateway that are shown, those that came first; of the others the page says how many there are."""

MAX_REQUESTS: Final = 200
"""Requests that are shown, chosen in turns, tenant by tenant: who asks much hides nobody else's. Of the others the page
says how many there are."""

ID_CHARACTERS: Final = 12
"""Of a request's id: enough to find it in a log, and the client's own words beyond that stay out."""

encode: Final = msgspec.json.Encoder().encode


class RequestView(msgspec.Struct, frozen=True):
    """A prompt that an agent works on. ``began`` in milliseconds since 1970; ``ttft_ms`` None until its first token.
    Rows of the prompt: all, those left from an earlier turn, those sent on, those answered."""

    id: str
    request: str
    agent: str
    model: str
    stage: str
    began: int
    ttft_ms: float | None
    choices: int
    prompt: int
    cached: int
    sent: int
    answered: int
    tokens: int
    rounds: int
    drafted: int
    accepted: int
    restored: int


class AgentView(msgspec.Struct, frozen=True):
    """A device. ``writes``: those of its models that answer chats; ``drafts``: its drafters, its own choice first.
    ``tells``: it says what it does, which the last members are made of; an older one does not."""

    id: str
    name: str
    models: list[str]
    writes: list[str]
    drafts: list[str]
    running: int
    capacity: int
    waiting_bytes: int
    draining: bool
    cloud: bool | None
    since: int
    rtt_ms: float | None
    sent_bytes: int
    received_bytes: int
    proposed: int
    accepted: int
    restored: int
    group: dict[str, Any] | None
    tells: bool
    version: str
    mode: str
    wires: list[dict[str, Any]]
    lost_marks: int


class Totals(msgspec.Struct, frozen=True):
    """Sums of this gateway. ``at`` in milliseconds since 1970; ``agents`` and ``running`` count those too that are not
    shown, as do ``answers``, which agents generate now, of the ``capacity`` that they have for these: a prompt that is
    ``running`` may have several. Bytes are those of all clients, and of other gateways that ask for theirs, but for
    what watchers are told."""

    at: int
    version: str
    draining: bool
    agents: int
    running: int
    answers: int
    capacity: int
    waiting: int
    max_waiting: int
    tokens: int
    incidents: int
    client_sent_bytes: int
    client_received_bytes: int
    gateway_sent_bytes: int
    gateway_received_bytes: int
    watchers: int


@dataclass(frozen=True)
class Seen:
    """One look at all of it, as JSON: agents and requests by their ids, requests with their tenants. ``fleet``: what
    there is to say of other gateways; null where this one is alone. ``running``: the ids of all requests that are, of
    which not all may be shown."""

    totals: bytes
    agents: Mapping[str, bytes]
    requests: Mapping[str, tuple[str, bytes]]
    fleet: bytes = b"null"
    running: frozenset[str] = frozenset()


def seen(desk: Desk, now: float, monotonic: float, watchers: int, fleet: dict[str, Any] | None) -> Seen:
    """Look at all of it.

    Args:
        now: seconds since 1970; ``monotonic``: the same moment of that clock.
        fleet: what there is to say of other gateways.
    """
    links = desk.roster.links
    records = [link.record for link in links]
    agents = {link.key: encode(agent_view(link, now - monotonic)) for link in links[:MAX_AGENTS]}
    requests: dict[str, tuple[str, bytes]] = {}
    for tenant, link, ticket in islice(_in_turns(links), MAX_REQUESTS):
        view = request_view(link, ticket)
        requests[view.id] = tenant, encode(view)
    metrics = desk.metrics
    totals = Totals(
        at=int(now * 1e3),
        version=VERSION,
        draining=desk.dispatcher.draining,
        agents=len(links),
        running=desk.roster.running,
        answers=sum(each.running for each in records),
        capacity=sum(each.capacity for each in records),
        waiting=len(desk.roster.waiting),
        max_waiting=desk.config.max_waiting,
        tokens=metrics.tokens,
        incidents=metrics.incidents.number,
        client_sent_bytes=metrics.from_clients.sent,
        client_received_bytes=metrics.from_clients.received,
        gateway_sent_bytes=metrics.from_gateways.sent,
        gateway_received_bytes=metrics.from_gateways.received,
        watchers=watchers,
    )
    running = frozenset(request_key(link.key, ticket.number) for link in links for _, ticket in link.asked)
    return Seen(encode(totals), agents, requests, encode(fleet), running)


def request_view(link: AgentLink, ticket: Ticket) -> RequestView:
    """Return what is shown of a prompt: what the agent has said of it last, and what is known here."""
    answer, meter = ticket.answer, ticket.answer.meter
    known = link.observation.of(ticket.number)
    told = known if known is not None else _unobserved(ticket)
    first_s = meter.first_token_s
    return RequestView(
        id=request_key(link.key, ticket.number),
        request=meter.request_id[:ID_CHARACTERS],
        agent=link.key,
        model=answer.model,
        stage=told.stage,
        began=int(meter.since * 1e3),
        ttft_ms=None if first_s is None else round(first_s * 1e3, 1),
        choices=ticket.choices,
        prompt=told.prompt_rows or answer.total.prompt_tokens,
        cached=told.cached_rows,
        sent=told.sent_rows,
        answered=told.answered_rows,
        tokens=told.tokens,
        rounds=told.rounds,
        drafted=told.drafted,
        accepted=told.accepted,
        restored=told.restored,
    )


def agent_view(link: AgentLink, epoch: float) -> AgentView:
    """Return what is shown of a device. ``epoch``: when the monotonic clock was 0, in seconds since 1970."""
    record, observed, rtt_s = link.record, link.observation.last, link.stream.rtt_s
    return AgentView(
        id=link.key,
        name=record.name,
        models=[model.id for model in record.models],
        writes=[model.id for model in record.models if "generate" in model.tasks],
        drafts=list(dict.fromkeys(drafter for model in record.models for drafter in model.drafts)),
        running=record.running,
        capacity=record.capacity,
        waiting_bytes=link.stream.queued_bytes,
        draining=record.draining,
        cloud=record.cloud_connected,
        since=round(epoch + link.since),
        rtt_ms=None if rtt_s is None else round(rtt_s * 1e3, 2),
        sent_bytes=link.stream.sent_bytes,
        received_bytes=link.stream.received_bytes,
        proposed=link.proposed,
        accepted=link.accepted,
        restored=link.restored,
        group=None if link.group is None else shown(link.group),
        tells=observed is not None,
        version="" if observed is None else observed.version,
        mode="" if observed is None else observed.mode,
        wires=[] if observed is None else [_wire(each) for each in observed.wires],
        lost_marks=link.observation.lost,
    )


def mark_view(key: str, passed: Passed) -> bytes:
    """Return a chunk or a round as the page takes it: request, kind, end and length in milliseconds, rows, accepted."""
    mark = passed.mark
    said = (key, mark.kind, int(passed.at * 1e3), round(mark.took_us / 1e3, 1), mark.rows, mark.accepted)
    return encode(said)


def request_key(agent: str, number: int) -> str:
    """What the page calls a prompt at an agent."""
    return f"{agent}/{number}"


def _in_turns(links: Iterable[AgentLink]) -> Iterator[tuple[str, AgentLink, Ticket]]:
    """What agents work on: the first prompt of each tenant, then the second of each, and so on."""
    asked: dict[str, list[tuple[str, AgentLink, Ticket]]] = {}
    for link in links:
        for room, ticket in link.asked:
            asked.setdefault(room.tenant, []).append((room.tenant, link, ticket))
    for turn in zip_longest(*asked.values()):
        yield from filter(None, turn)


def _unobserved(ticket: Ticket) -> ObservedRequest:
    """What is known here of a prompt of which the agent says nothing."""
    if not ticket.accepted.done():
        return ObservedRequest(ticket.number, "waits")
    generated = ticket.answer.generated
    return ObservedRequest(ticket.number, "generates" if generated else "prefills", tokens=generated)


def _wire(wire: Wire) -> dict[str, Any]:
    cloud = None
    if wire.cloud is not None:
        cloud = {name: getattr(wire.cloud, name) for name in wire.cloud.__struct_fields__}
    return {
        "to": wire.to,
        "state": wire.state,
        "rtt_ms": round(wire.rtt_us / 1e3, 2) if wire.rtt_us else None,
        "sent_bytes": wire.sent_bytes,
        "received_bytes": wire.received_bytes,
        "cloud": cloud,
    }
