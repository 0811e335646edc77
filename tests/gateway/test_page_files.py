"""The page's own files: what browsers get, what clients get, and what is in them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gateway.config import GatewayConfig
from gateway.page.files import FILES, PATHS, POLICY, START

BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MOST_BYTES = 300_000


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_browser_gets_the_page(gateway: Any, method: str) -> None:
    """With rules that let nothing run but its own files, and once more only where it has changed."""
    page = await gateway.http.request(method, "/", headers=BROWSER)
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")
    assert page.headers["content-security-policy"] == POLICY and "unsafe" not in POLICY
    assert page.headers["x-content-type-options"] == "nosniff" and page.headers["vary"] == "accept"
    assert bool(page.content) is (method == "GET")
    again = await gateway.http.request(method, "/", headers=BROWSER | {"if-none-match": page.headers["etag"]})
    assert again.status_code == 304 and not again.content
    other = await gateway.http.request(method, "/", headers=BROWSER | {"if-none-match": '"another"'})
    assert other.status_code == 200


async def test_each_file_is_there(gateway: Any) -> None:
    """By its type, each with the same rules."""
    for path in sorted(PATHS - {"/"}):
        found = await gateway.http.get(path)
        assert found.status_code == 200 and found.headers["content-security-policy"] == POLICY, path
        assert found.content == FILES[path.removeprefix("/page/")].data
    for path in ("/page", "/page/", "/page/index.html", "/page/files.py", "/page/../app.py", "/page/%2e%2e/app.py"):
        assert (await gateway.http.get(path, headers=BROWSER)).status_code == 404, path


@pytest.mark.parametrize("accept", ["*/*", "application/json", ""])
async def test_clients_of_the_api_get_what_they_got(gateway: Any, accept: str) -> None:
    """There is nothing at / for them."""
    reply = await gateway.http.get("/", headers={"accept": accept})
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "not_found"


async def test_no_key_is_asked_for_files_and_no_other_name_is_answered(serving: Any) -> None:
    """The page asks for the key; what Host and Origin say is looked at all the same."""
    async with serving(GatewayConfig(api_keys="one")) as gateway:
        assert (await gateway.http.get("/", headers=BROWSER)).status_code == 200
        assert (await gateway.http.get("/page/app.js")).status_code == 200
        assert (await gateway.http.get("/", headers=BROWSER | {"host": "evil.test"})).status_code == 403
        assert (await gateway.http.get("/page/app.js", headers={"origin": "http://evil.test"})).status_code == 403


def test_all_of_it_is_small() -> None:
    """And none of it is from elsewhere, or would have to be built."""
    assert sum(len(each.data) for each in FILES.values()) <= MOST_BYTES
    for name, each in FILES.items():
        text = each.data.decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?://|//cdn|@import", text), name


def test_nothing_in_the_page_is_inline() -> None:
    """No script, style or handler that the rules would have to allow; what it names is there."""
    page = FILES[START].data.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)|javascript:", page)
    named = set(re.findall(r'(?:href|src)="(page/[^"]+)"', page))
    modules = [each.data.decode() for name, each in FILES.items() if name.endswith(".js")]
    imported = {f"page/{name}" for text in modules for name in re.findall(r'from "\./([^"]+)"', text)}
    assert named and imported and named | imported <= {path.removeprefix("/") for path in PATHS}


SINKS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(")


@pytest.mark.parametrize("sink", SINKS)
def test_no_text_becomes_markup(sink: str) -> None:
    """What comes from outside is shown as text; there is no way for it to be anything else."""
    assert all(sink.encode() not in each.data for each in FILES.values())
