"""What ``trilby serve`` says of what it serves, by what its gateway knows."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from service.model_kinds import READS_IMAGES, undivided
from service.modes import NO_DRAFT

ANSWERS_WITHIN_S = 10.0
"""A gateway on a machine whose processes have all just been started."""


def drafting_line(drafters: list[str]) -> str:
    """What drafts, the device's own choice being the first of ``drafters``."""
    if not drafters or drafters == [NO_DRAFT]:
        return "It does not draft."
    first, *others = drafters
    chosen = "It drafts only when asked to" if first == NO_DRAFT else f"It drafts with: {first}"
    return f"{chosen} (a request may name another in its field 'draft': {', '.join(others)})."


def example(base: str, model: str, tasks: list[str], *, has_keys: bool) -> str:
    """What to type to see the model do something."""
    key = " -H 'Authorization: Bearer YOUR_KEY'" if has_keys else ""
    path, body, chat = (
        "chat/completions",
        '{"messages": [{"role": "user", "content": "Tell me a story about a fox."}]}',
        "",
    )
    if tasks and "generate" not in tasks:
        path, body = ("embeddings" if "embed" in tasks else "classify"), '{"input": "The fox jumps over the lazy dog."}'
        if undivided(model) == READS_IMAGES:
            body = '{"input": "data:image/jpeg;base64,\'$(base64 -w0 PHOTO.jpg)\'"}'
    elif undivided(model):
        path, body = "completions", '{"prompt": "translate English to German: The fox sleeps."}'
    else:
        usual = base.startswith("http:") and base.endswith(":8000")
        chat = f"  .venv/bin/trilby chat{'' if usual else f' --url {base}/v1'}\n"
    return f"{chat}  curl {base}/v1/{path}{key} -H 'Content-Type: application/json' \\\n    -d '{body}'"


def agents_of(base: str, keys: tuple[str, ...], verify: ssl.SSLContext | bool) -> Any:
    """The devices that have connected, as the gateway knows them."""
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    try:
        reply = httpx.get(f"{base}/state", headers=headers, timeout=ANSWERS_WITHIN_S, trust_env=False, verify=verify)
        return reply.json()["agents"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []  # It has gone again: whoever waits for its end says so.


def each_of(agents: Any, member: str) -> list[str]:
    """What agents' models have of something, each once, whatever names the models have."""
    try:
        return list(dict.fromkeys(str(one) for agent in agents for some in agent[member].values() for one in some))
    except (KeyError, TypeError, AttributeError):
        return []


def group_lines(agents: Any) -> list[str]:
    """What each device of a group holds of the model; none where no agent has a group."""
    lines: list[str] = []
    try:
        for group in [agent["group"] for agent in agents if agent.get("group")]:
            width = max((len(each["name"]) for each in group["members"]), default=0)
            lines += [f"  {each['name']:<{width}}  {_part(each)}" for each in group["members"]]
            if group["why"]:
                lines.append(f"  {group['why']}")
    except (KeyError, TypeError, AttributeError):
        return []
    return lines


def _part(member: Mapping[str, Any]) -> str:
    if member["state"] != "working":
        return f"{member['state']}: {member['why']}" if member["why"] else str(member["state"])
    words = [f"layers {member['layers']}" if member["layers"] else "no layers"]
    if member["heads"]:
        words.append(f"{member['heads']} heads")
    if member["rows_share"] is not None:
        words.append(f"{member['rows_share']:.0%} of a prompt's rows")
    words.append(f"{member['memory_mb']} MB")
    if member["streamed"]:
        words.append(f"and {member['streamed_mb']} MB a step from its disk ({member['streamed']})")
    return ", ".join(words)
