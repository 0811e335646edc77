"""What a gateway or a cloud server tells by HTTP: whether it is well, its release, its devices, its clock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from service.doctor.ask import Answer, Asker, NoAnswer
from service.doctor.clock import skew
from service.doctor.finding import Finding, Say
from service.version import VERSION

GATEWAY: Final = "gateway"
CLOUD: Final = "cloud server"

USUAL_PORTS: Final = {GATEWAY: 8000, CLOUD: 8001}
"""Where nobody says otherwise."""

_STATUSES: Final = ("ok", "starting", "draining", "failed")
_KNOWS_VERSION: Final = (200, 401, 403)
"""What a gateway says to ``/version``, with and without a key; a cloud server has no such path."""


async def who_answers(asker: Asker) -> tuple[str, Answer]:
    """Which of Trilby's servers that is, empty where it is none of them, and what it says of its health. Raises
    ``NoAnswer``."""
    health = await asker.get("/health")
    if health.facts.get("status") not in _STATUSES:
        return "", health
    version = await asker.get("/version")
    return GATEWAY if version.status in _KNOWS_VERSION else CLOUD, health


async def looked_at(asker: Asker, wanted: str, say: Say) -> None:
    """Tell all of a server that should be a ``GATEWAY`` or a ``CLOUD``."""
    about = asker.place.websocket
    try:
        who, health = await who_answers(asker)
    except NoAnswer as error:
        say(Finding("health", "fail", error.seen, error.todo, about))
        return
    if (clock := skew(about, health.date, health.sent, health.got)) is not None:
        say(clock)
    if who != wanted:
        say(_other(about, wanted, who, health.status))
        return
    say(_health(about, wanted, str(health.facts["status"])))
    if wanted == GATEWAY:
        try:
            await _gateway(asker, say)
        except NoAnswer as error:
            say(Finding("devices", "fail", error.seen, error.todo, about))


def _other(about: str, wanted: str, who: str, status: int) -> Finding:
    """Somebody else answers. What hands on nothing but the socket for devices is a proxy, and all may be well."""
    if who:
        port = USUAL_PORTS[wanted]
        todo = f"Dial the port of the {wanted}: {port}, where nobody says otherwise."
        return Finding("health", "fail", f"a {who} answers there, and no {wanted}", todo, about)
    seen = f"no {wanted} answers to /health there (HTTP {status})"
    if status == 403:
        return Finding("health", "warn", seen, "Dial a name that it answers to: see its --allowed-hosts.", about)
    return Finding("health", "warn", seen, "Look at what listens there, or which paths a proxy hands on.", about)


def _health(about: str, who: str, status: str) -> Finding:
    if status == "ok":
        return Finding("health", "ok", f"the {who} is well", about=about)
    if status == "starting":
        todo = "Wait: a large model takes minutes. Its log says how far it is."
        return Finding("health", "warn", f"the {who} is loading its layers", todo, about)
    if status == "draining":
        todo = "Wait until it is over and start it again, or dial another one."
        return Finding("health", "warn", f"the {who} is stopping, and takes nothing new", todo, about)
    return Finding("health", "fail", f"the {who} says that it has failed", "Look at its log and start it again.", about)


async def _gateway(asker: Asker, say: Say) -> None:
    about = asker.place.websocket
    version = await asker.get("/version")
    if version.status != 200:
        say(_without_key(about, given=bool(asker.api_key)))
        ready = await asker.get("/ready")
        say(_devices(about, ready.status == 200, None))
        return
    if asker.api_key:
        say(Finding("API key", "ok", "it is accepted", about=about))
    say(same_release(about, str(version.facts.get("version", ""))))
    ready, state = await asker.get("/ready"), await asker.get("/state")
    agents = state.facts.get("agents")
    say(_devices(about, ready.status == 200, agents if isinstance(agents, list) else None))


def _without_key(about: str, *, given: bool) -> Finding:
    if given:
        todo = "Give another one (TRILBY_API_KEY, or --api-key-file FILE); trilby keys list says which there are."
        return Finding("API key", "fail", "it is refused", todo, about)
    todo = "Give one (TRILBY_API_KEY, or --api-key-file FILE), and its release and devices are looked at too."
    return Finding("API key", "warn", "it asks for one, and none was given", todo, about)


def same_release(about: str, there: str) -> Finding:
    """Whether the other side is of this release; ``there`` may be empty where it did not say."""
    if not there:
        return Finding("release", "ok", f"it does not say which; here it is {VERSION}", about=about)
    if there == VERSION:
        return Finding("release", "ok", f"{VERSION}, as here", about=about)
    todo = "Install the same release on all machines, the newer one."
    return Finding("release", "warn", f"{there}, and here it is {VERSION}", todo, about)


def _devices(about: str, ready: bool, agents: list[Any] | None) -> Finding:
    """What can answer requests there. agents: as ``/state`` has them; None: it was not told."""
    known = [each for each in agents or () if isinstance(each, Mapping)]
    figures: dict[str, float] = {} if agents is None else {"devices": len(known)}
    named = "; ".join(_described(each) for each in known[:_MOST_NAMED])
    named += f"; and {len(known) - _MOST_NAMED} more" if len(known) > _MOST_NAMED else ""
    if ready:
        return Finding("devices", "ok", named or "one can answer", about=about, figures=figures)
    if agents is not None and not known:
        todo = (
            "Start one: trilby device --gateway with this address; of one that runs its log says why it is not let in."
        )
        return Finding("devices", "warn", "no device is connected, so requests are refused", todo, about, figures)
    todo = "Look at that device's log, and run trilby doctor on its machine with its --cloud or --join."
    return Finding("devices", "warn", f"none can answer: {named or 'why is not told'}", todo, about, figures)


_MOST_NAMED: Final = 4


def _described(agent: Mapping[str, Any]) -> str:
    models = agent.get("models")
    named = ", ".join(map(str, models)) if isinstance(models, list) else ""
    words = [f"{agent.get('name')} with {named}"]
    if agent.get("cloud_connected") is False:
        words.append("does not reach its cloud or group")
    if agent.get("draining"):
        words.append("is stopping")
    return ", ".join(words)
