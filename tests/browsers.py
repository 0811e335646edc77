"""Debian's Chromium, driven by Playwright, for tests of the page; and axe-core, which looks for what keeps people out.

Where one of them is not there, whoever asks is skipped with the reason. `make test-page` installs them.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from processes import ROOT

PROGRAMS: Final = ("chromium", "chromium-browser", "google-chrome")

QUIET: Final = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)
"""Started by root, it has no sandbox; and it is to look for nobody on the network."""

AXE: Final = "axe-core@4.14.1"
KEPT: Final = ROOT / "build" / "axe-core"
FETCH_WITHIN_S: Final = 120

RULES: Final = ("wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice")

WANTED: Final = """async (rules) => {
    const found = await axe.run(document, {runOnly: rules});
    return found.violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.target.join(" ")).join(", ")}`);
}"""


@asynccontextmanager
async def chromium() -> AsyncIterator[Any]:
    """A browser, as Playwright has it."""
    playwright = pytest.importorskip("playwright.async_api", reason="Playwright is not installed: make test-page")
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("there is no Chromium here: make test-page")
    async with playwright.async_playwright() as playing:
        browser = await playing.chromium.launch(executable_path=program, args=list(QUIET))
        try:
            yield browser
        finally:
            await browser.close()


def axe() -> str:
    """The source of axe-core, fetched with npm once."""
    found = KEPT / "node_modules" / "axe-core" / "axe.min.js"
    if not found.exists():
        _fetch(KEPT)
    if not found.exists():
        pytest.skip("axe-core is not there and npm cannot fetch it: make test-page")
    return found.read_text()


async def barriers(page: Any, source: str) -> list[str]:
    """What axe finds on a page as it is now, each with where."""
    await page.evaluate(source)
    found: list[str] = await page.evaluate(WANTED, list(RULES))
    return found


def _fetch(folder: Path) -> None:
    npm = shutil.which("npm")
    if npm is None:
        return
    folder.mkdir(parents=True, exist_ok=True)
    command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", str(folder), AXE]
    subprocess.run(command, capture_output=True, timeout=FETCH_WITHIN_S, check=False)
