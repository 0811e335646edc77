"""An installation that answers many requests while somebody looks at its page."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import httpx

PROMPT: Final = "Tell me a long story about a fox who loses a key, and everybody it asks on its way. " * 4

ROWS: Final = "#requests tr:not(.over)"

WITHIN_MS: Final = 60_000


class Looked:
    """A page that is open, and whatever went wrong on it."""

    def __init__(self, page: Any) -> None:
        self.page = page
        self.errors: list[str] = []
        page.on("console", lambda each: self.errors.append(each.text) if each.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("requestfailed", lambda each: self.errors.append(f"{each.url} failed: {each.failure}"))

    async def until(self, expression: str) -> None:
        """Until this holds in the page, whose own rules let no text be run that Playwright could poll there."""
        deadline = time.monotonic() + WITHIN_MS / 1e3
        while not await self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            await asyncio.sleep(0.05)

    async def live(self) -> None:
        """Until it is told what the gateway does."""
        await self.page.wait_for_selector('#live[data-state="live"]', timeout=WITHIN_MS)

    async def ask(self, text: str) -> None:
        """Ask in its chat, and wait for the end of the answer."""
        before = await self.page.locator("#talk .sum:not(:empty)").count()
        await self.page.fill("#say", text)
        await self.page.press("#say", "Enter")
        await self.until(f"document.querySelectorAll('#talk .sum:not(:empty)').length > {before}")

    async def has_rows(self, count: int) -> None:
        """Until it shows so many requests in flight, or more."""
        await self.until(f"document.querySelectorAll({ROWS!r}).length >= {count}")


@asynccontextmanager
async def opened(browser: Any, url: str, **settings: Any) -> AsyncIterator[Looked]:
    """The page in a window of its own."""
    context = await browser.new_context(**settings)
    context.set_default_timeout(WITHIN_MS)
    try:
        looked = Looked(await context.new_page())
        await looked.page.goto(url)
        yield looked
    finally:
        await context.close()


@asynccontextmanager
async def answering(base: str, requests: int, tokens: int) -> AsyncIterator[None]:
    """So many streamed chats, until the block ends."""
    body = {
        "messages": [{"role": "user", "content": PROMPT}],
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0.8,
    }
    limits = httpx.Limits(max_connections=requests)
    async with httpx.AsyncClient(timeout=120, trust_env=False, verify=False, limits=limits) as client:

        async def one() -> None:
            while True:
                async with client.stream("POST", f"{base}/chat/completions", json=body) as reply:
                    async for _ in reply.aiter_bytes():
                        pass

        tasks = [asyncio.create_task(one()) for _ in range(requests)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
