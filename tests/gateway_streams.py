"""A gateway as its clients see it: OpenAI's, and server-sent events."""

from __future__ import annotations

from typing import Any

import openai


async def events_of(response: Any) -> list[str]:
    """The data of each event of a stream."""
    text = (await response.aread()).decode()
    assert text.endswith("\n\n")
    events = text.removesuffix("\n\n").split("\n\n")
    assert all(event.startswith(("data: ", ": ")) and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events if event.startswith("data: ")]


async def stream(gateway: Any, path: Any, body: Any) -> Any:
    async with gateway.http.stream("POST", path, json=body) as response:
        assert response.status_code == 200
        return response.headers, await events_of(response)


def client(gateway: Any) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=gateway.url + "/v1", api_key="none", max_retries=0)
