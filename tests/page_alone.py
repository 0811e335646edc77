"""The page alone in a real browser: what it asks of its gateway a test answers, as late and as wrongly as it likes."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

from watched_page import Looked

from gateway.incidents import EVERYBODY, Incident
from gateway.page.changes import Audience, all_of, between
from gateway.page.files import FILES, HEADERS, START
from gateway.page.view import AgentView, RequestView, Seen, Totals, encode

URL: Final = "http://localhost/"
"""Nobody is asked there: the files come from this process."""

EVENTS: Final = "page/events"
CHAT: Final = "v1/chat/completions"
MODELS: Final = "v1/models"

NOW: Final = 1_800_000_000_000

AGENT: Final = AgentView(
    id="a", name="kitchen", models=["alpha"], writes=["alpha"], drafts=["none"], running=0, capacity=8,
    waiting_bytes=0, draining=False, cloud=True, since=NOW // 1000, rtt_ms=None, sent_bytes=0, received_bytes=0,
    proposed=0, accepted=0, restored=0, group=None, tells=True, version="1", mode="hat", wires=[], lost_marks=0,
)  # fmt: skip

REQUEST: Final = RequestView(
    id="a/1", request="page-1", agent="a", model="alpha", stage="generates", began=NOW, ttft_ms=1.0, choices=1,
    prompt=4, cached=0, sent=4, answered=4, tokens=3, rounds=2, drafted=2, accepted=1, restored=0,
)  # fmt: skip

INCIDENT: Final = Incident(1, 1, NOW, "cloud_lost", "kitchen", "it dials again", 1, EVERYBODY)

IDLE: Final[dict[str, Any]] = {
    "at": NOW, "version": "1", "draining": False, "agents": 1, "running": 0, "answers": 0, "capacity": 8,
    "waiting": 0, "max_waiting": 64, "tokens": 0, "incidents": 0, "client_sent_bytes": 0, "client_received_bytes": 0,
    "gateway_sent_bytes": 0, "gateway_received_bytes": 0, "watchers": 1,
}  # fmt: skip

CALLS: Final = """
{
  class Call {
    constructor(path, { headers = {}, body = null, signal = null } = {}) {
      new Headers(headers); // Which throws where fetch would.
      Object.assign(this, { path, headers, body: JSON.parse(body), aborted: false });
      this.stream = new ReadableStream({ start: (out) => (this.out = out) });
      this.reply = new Promise((answer, fail) => Object.assign(this, { answer, fail }));
      signal?.addEventListener("abort", () => this.abort(signal.reason));
    }
    begin(text = "") {
      this.answer(new Response(this.stream));
      if (text) this.say(text);
    }
    say(text) { this.out.enqueue(new TextEncoder().encode(text)); }
    end() { this.out.close(); }
    refuse(status, message) { this.answer(new Response(JSON.stringify({ error: { message } }), { status })); }
    whole(data) { this.answer(new Response(JSON.stringify(data))); }
    abort(reason) {
      this.aborted = true;
      this.fail(reason);
      this.out.error(reason);
    }
  }
  const calls = (window.calls = []);
  window.of = (path) => calls.filter((call) => call.path === path);
  window.last = (path) => of(path).at(-1);
  window.fetch = async (path, options) => {
    const call = new Call(path, options);
    calls.push(call);
    window.called?.(call); // What a test would have done at once.
    return call.reply;
  };
}
"""
"""In the place of fetch: what was asked, and what answers it."""


class Alone(Looked):
    """The page, and what it has asked."""

    async def asked(self, path: str, times: int = 1) -> None:
        """Until it has asked this so often."""
        await self.until(f"of('{path}').length >= {times}")

    async def told(self, event: bytes, begins: bool = False) -> None:
        """Have its gateway tell this, where ``begins`` as the first of a stream that it has asked for."""
        if begins:
            await self.asked(EVENTS)
        verb = "begin" if begins else "say"
        await self.page.evaluate(f"(text) => last('{EVENTS}').{verb}(text)", event.decode())

    async def asks(self, text: str) -> None:
        """Ask in its chat."""
        await self.page.fill("#say", text)
        await self.page.press("#say", "Enter")

    async def lists(self, *models: str, **others: Sequence[str]) -> None:
        """Answer what it asked last with these models, which generate, and with others by their tasks."""
        tasks = {**{model: ("generate",) for model in models}, **others}
        cards = [{"id": model, "tasks": its} for model, its in tasks.items()]
        await self.asked(MODELS)
        await self.page.evaluate(f"(data) => last('{MODELS}').whole({{ data }})", cards)

    async def answered(self, *words: str, done: bool = True, ends: bool = True, **about: Any) -> None:
        """Answer its chat with these words: ``done`` says that they are all, ``ends`` ends the stream; ``about``: more
        of what is said of each."""
        await self.asked(CHAT)
        events = [encode({"choices": [{"delta": {"content": word}, **about}]}).decode() for word in words]
        text = "".join(f"data: {each}\n\n" for each in [*events, *(["[DONE]"] if done else [])])
        ending = f"last('{CHAT}').end();" if ends else ""
        await self.page.evaluate(f"(text) => {{ last('{CHAT}').begin(text); {ending} }}", text)

    async def shows(self, place: str, words: str) -> None:
        """Until this place of it has these words."""
        await self.until(f"document.querySelector({place!r})?.textContent.includes({words!r})")

    async def tile(self, name: str, words: str) -> None:
        """Until the figure of this name is told in these words."""
        tiles = "[...document.querySelectorAll('#now .tile')]"
        found = f"{tiles}.find((each) => each.querySelector('dt').textContent === {name!r})"
        await self.until(f"{found}?.querySelector('dd').textContent.trim() === {words!r}")


@asynccontextmanager
async def alone(browser: Any, *scripts: str) -> AsyncIterator[Alone]:
    """The page in a window of its own, before anything of it has run but these scripts."""
    context = await browser.new_context()
    try:
        await context.route("**/*", _file)
        for script in (CALLS, *scripts):
            await context.add_init_script(script)
        looked = Alone(await context.new_page())
        await looked.page.goto(URL)
        yield looked
    finally:
        await context.close()


def whole(
    *agents: AgentView,
    requests: Sequence[RequestView] = (),
    incidents: Sequence[Incident] = (),
    operator: bool = False,
    **totals: Any,
) -> bytes:
    """The event that tells all there is."""
    totals = {"incidents": sum(each.times for each in incidents)} | totals
    return all_of(_seen(agents, requests, totals), incidents).told(Audience("", operator))


def change(
    *agents: AgentView,
    requests: Sequence[RequestView] = (),
    gone: Sequence[str] = (),
    still: Sequence[str] = (),
    marks: Sequence[Any] = (),
    **totals: Any,
) -> bytes:
    """The event that tells these agents and requests, which are new or others by now, these marks, as ``mark_view`` has
    them, and that these requests (by id) are gone: over, or ``still`` running."""
    before = Seen(b"", {}, {id: ("", b"") for id in gone}, encode(totals.get("fleet")))
    now = dataclasses.replace(_seen(agents, requests, totals), running=frozenset(still))
    return between(before, now, [("", encode(each)) for each in marks], ()).told(Audience(""))


def _seen(agents: Sequence[AgentView], requests: Sequence[RequestView], totals: dict[str, Any]) -> Seen:
    fleet = encode(totals.pop("fleet", None))
    told = Totals(**{**IDLE, "agents": len(agents), **totals})
    theirs = {each.id: ("", encode(each)) for each in requests}
    return Seen(encode(told), {each.id: encode(each) for each in agents}, theirs, fleet)


async def _file(route: Any) -> None:
    found = FILES.get(urlsplit(route.request.url).path.removeprefix("/").removeprefix("page/") or START)
    if found is None:
        await route.fulfill(status=404)
    else:
        await route.fulfill(body=found.data, content_type=found.type, headers=HEADERS)
