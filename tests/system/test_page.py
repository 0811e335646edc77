"""The page in a real browser, over a real installation: what people see, how soon, and what it costs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsers import axe, barriers, chromium
from forked import ForkedProcess
from processes import free_port
from serving import Serving
from watched_page import answering, opened

from gateway.page.view import ID_CHARACTERS

pytestmark = pytest.mark.system

REQUESTS, BUSY = 50, 40
FIRST_PAINT_MS = 1000
MEASURED_S = 5.0
PHONE = {"width": 360, "height": 740}
DESK = {"width": 1440, "height": 900}


def metric(base: str, name: str) -> float:
    """A value of the gateway's metrics."""
    text = httpx.get(base.removesuffix("/v1") + "/metrics", timeout=10, trust_env=False, verify=False).text
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name} "))


@pytest.mark.slow
async def test_fifty_requests_as_people_see_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first paint is there within a second, each request has its row with chunks and rounds, the chat says where
    its tokens came from; light and dark, on a desk and on a phone nothing keeps anybody out; no error is told, and
    telling all this takes the gateway a hundredth of a core."""
    monkeypatch.setenv("TRILBY_MAX_NUM_SEQS", "80")
    async with chromium() as browser:
        source = axe()
        serving = Serving(tmp_path / "log", forked=True)
        await asyncio.to_thread(serving.__enter__)
        try:
            await look(browser, serving.base, source)
        finally:
            await asyncio.to_thread(serving.__exit__)


async def look(browser: Any, base: str, source: str) -> None:
    """All of it, in one window."""
    url = base.removesuffix("/v1") + "/"
    async with opened(browser, url, viewport=DESK, color_scheme="light") as looked:
        page = looked.page
        await looked.live()
        paint = await page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert paint <= FIRST_PAINT_MS
        await looked.until("document.querySelector('.watch').innerText.includes('mode hat')")
        await page.keyboard.press("/")
        assert await page.evaluate("document.activeElement.id") == "say"
        await looked.ask("How much is 12 plus 7?")
        assert await page.locator("#talk .tok").count() > 3 and await page.locator("#talk .tok.own").count() > 0
        assert "first after" in await page.locator("#talk .sum").first.inner_text()
        await page.locator("#talk .text[tabindex]").first.focus()
        await page.keyboard.press("ArrowRight")
        told = await page.locator("#token").inner_text()
        assert told.startswith("Token 1: the model's own word, chosen by hat on device") and "step" in told

        async with answering(base, REQUESTS, 400):
            await looked.has_rows(REQUESTS)
            began = metric(base, "trilby_page_seconds_total")
            await asyncio.sleep(MEASURED_S)
            assert (metric(base, "trilby_page_seconds_total") - began) / MEASURED_S <= 0.01
            busy = 'canvas:not([aria-label^="0 chunks and 0 rounds"])'
            await looked.until(f"document.querySelectorAll('#requests {busy}').length >= {BUSY}")
            ids = await page.locator("#requests td.code").all_inner_texts()
            assert len(set(ids)) == len(ids) and all(len(each) <= ID_CHARACTERS for each in ids)
            assert "fox" not in await page.locator(".watch").inner_text()
            for scheme in ("light", "dark"):
                await page.emulate_media(color_scheme=scheme)
                for size in (DESK, PHONE):
                    await page.set_viewport_size(size)
                    assert await barriers(page, source) == [], (scheme, size)
                    wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
                    assert await page.evaluate(wide) == 0, (scheme, size)
        await looked.until("document.querySelectorAll('#requests tr').length === 0")
        assert looked.errors == []


async def test_a_key_is_asked_for(tmp_path: Path) -> None:
    """By the page, of whoever opens it; a wrong one is said to be wrong, and none is kept beyond the tab."""
    port = free_port()
    environment = {"TRILBY_API_KEYS": "right", "TRILBY_OPERATOR_TOKEN": "boss"}
    started = ForkedProcess("gateway", "--port", str(port), log=tmp_path / "log", port=port, environment=environment)
    async with chromium() as browser:
        await asyncio.to_thread(started.__enter__)
        try:
            async with opened(browser, f"http://127.0.0.1:{port}/") as looked:
                page = looked.page
                for key, why in (("wrong", "asks for a key"), ("boss", "does not know that key")):
                    await page.wait_for_selector("#ask-key[open]")
                    assert why in await page.locator("#key-why").inner_text()
                    await page.fill("#key-text", key)
                    await page.keyboard.press("Enter")
                await looked.live()
                assert await page.evaluate("[sessionStorage['trilby.key'], JSON.stringify(localStorage)]") == [
                    "boss",
                    '{"trilby.theme":"auto"}',
                ]
                await page.click("#theme")
                assert await page.evaluate("document.documentElement.dataset.theme") == "light"
                assert len(looked.errors) == 1 and "401" in looked.errors[0]  # The wrong key's.
        finally:
            await asyncio.to_thread(lambda: started.__exit__(None, None, None))
