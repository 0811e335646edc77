"""The page in a real browser, where what it depends on does not behave: its storage, its gateway, the clock."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from browsers import chromium
from msgspec.structs import asdict, replace
from page_alone import AGENT, CHAT, EVENTS, INCIDENT, MODELS, NOW, REQUEST, alone, change, whole

from gateway.page.view import AgentView
from wire.observed_messages import CloudFigures

pytestmark = [pytest.mark.system, pytest.mark.asyncio(loop_scope="module")]

NO_STORAGE = """
for (const name of ["localStorage", "sessionStorage"]) {
  const get = () => { throw new DOMException("The operation is insecure.", "SecurityError"); };
  Object.defineProperty(window, name, { get });
}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Any]:
    """One for all of them: each has a window of its own."""
    async with chromium() as started:
        yield started


SAID = """() => {
  window.said = [];
  const live = document.getElementById("live");
  new MutationObserver(() => said.push(live.textContent)).observe(live, { childList: true, subtree: true });
}"""


async def test_a_stream_that_ends_as_planned_is_no_news(browser: Any) -> None:
    """The page asks again and says nothing, least of all to who has it read to them; of another end it does."""
    async with alone(browser) as looked:
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        await looked.page.evaluate(SAID)
        await looked.page.evaluate(f"last('{EVENTS}').say('event: again\\ndata: {{}}\\n\\n'); last('{EVENTS}').end()")
        await looked.asked(EVENTS, 2)
        await looked.told(whole(AGENT), begins=True)
        await looked.told(change(at=NOW + 500, agents=2))
        await looked.shows("#fleet-note", "1 more")
        assert await looked.page.evaluate("said") == []
        await looked.page.evaluate(f"last('{EVENTS}').end()")
        await looked.shows("#live", "has ended the stream")


async def test_a_browser_that_keeps_nothing(browser: Any) -> None:
    """The page works all the same, and has its theme and its key for as long as it is open."""
    async with alone(browser, NO_STORAGE) as looked:
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        await looked.page.click("#theme")
        assert await looked.page.evaluate("document.documentElement.dataset.theme") == "light"
        await looked.page.click("#key")
        await looked.page.fill("#key-text", "mine")
        await looked.page.keyboard.press("Enter")
        await looked.until("last('page/events').headers.Authorization === 'Bearer mine'")
        await looked.page.click("#key")
        await looked.page.click("#key-forget")
        await looked.until("!last('page/events').headers.Authorization")
        assert looked.errors == []


COMPOSING = """document.getElementById("say").dispatchEvent(
  new KeyboardEvent("keydown", { key: "Escape", bubbles: true, isComposing: true }))"""


async def test_escape_stops_an_answer_only_where_it_means_that(browser: Any) -> None:
    """Not where it closes the window that asks for a key, or a list, nor where an input method takes it."""
    async with alone(browser) as looked:
        page = looked.page
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        await looked.asks("Well?")
        await looked.answered("It", done=False, ends=False)
        await looked.shows("#talk .tok", "It")
        await page.click("#key")
        await page.keyboard.press("Escape")
        await looked.until("!document.querySelector('dialog[open]')")
        await page.locator("#draft").press("Escape")
        await page.evaluate(COMPOSING)
        assert not await page.evaluate(f"last('{CHAT}').aborted")
        assert await page.locator("#send").inner_text() == "Stop"
        await page.locator("#say").press("Escape")
        await looked.shows("#talk .sum", "stopped")
        assert await page.evaluate(f"last('{CHAT}').aborted")


async def test_a_key_that_ends_while_somebody_writes(browser: Any) -> None:
    """Whoever writes in the chat goes on there, and is told in the header; anybody else is asked for a key."""
    async with alone(browser) as looked:
        page = looked.page
        for writes in (True, False):
            await looked.told(whole(AGENT), begins=True)
            asked = await page.evaluate(f"of('{EVENTS}').length")
            await looked.live()
            if writes:
                await page.focus("#say")
                await page.keyboard.type("How mu")
            else:
                await page.evaluate("document.activeElement.blur()")
            await page.evaluate(f"last('{EVENTS}').end()")
            await looked.asked(EVENTS, asked + 1)
            await page.evaluate(f"last('{EVENTS}').refuse(401, 'That key has ended.')")
            await looked.shows("#live", "a key is needed")
            if writes:
                await page.keyboard.type("ch is it?")
                assert await page.input_value("#say") == "How much is it?"
                await page.click("#key")
                await page.fill("#key-text", "another")
                await page.keyboard.press("Enter")
                await looked.asked(EVENTS, asked + 2)
            else:
                await page.wait_for_selector("#ask-key[open]")


async def test_a_key_is_kept_until_there_is_another(browser: Any) -> None:
    """Not the chat's beside another one for watching; and an empty field is no wish to forget any."""
    keys = "[sessionStorage['trilby.key'], sessionStorage['trilby.chat-key']]"
    async with alone(browser) as looked:
        page = looked.page
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        for key in ("boss", "mine", ""):
            if key == "mine":
                await looked.asks("Well?")
                await looked.asked(CHAT)
                await page.evaluate(f"last('{CHAT}').refuse(401, 'It watches only.')")
                await page.wait_for_selector("#ask-key[open]")
            else:
                await page.click("#key")
            await page.fill("#key-text", key)
            await page.keyboard.press("Enter")
            await looked.until("!document.querySelector('dialog[open]')")
        assert await page.evaluate(keys) == ["boss", "mine"]
        await page.click("#key")
        await page.fill("#key-text", "another")
        await page.keyboard.press("Enter")
        await looked.until("sessionStorage['trilby.key'] === 'another'")
        assert await page.evaluate(keys) == ["another", None]


async def test_what_cannot_be_a_key(browser: Any) -> None:
    """It is said at once: to send it fails in the browser, which looks as if the gateway were away."""
    async with alone(browser) as looked:
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        await looked.page.click("#key")
        await looked.page.fill("#key-text", "sk–ключ")
        await looked.page.keyboard.press("Enter")
        await looked.shows("#key-why", "cannot be a key")
        assert await looked.page.locator("#ask-key[open]").count() == 1
        assert await looked.page.evaluate(f"[sessionStorage.length, of('{EVENTS}').length]") == [0, 1]


async def test_a_choice_outlives_the_device_that_it_needs(browser: Any) -> None:
    """While that is away another model is shown; once it is back what was chosen is, or what a chat began with."""
    other = replace(AGENT, id="b", writes=["beta"], drafts=["none", "eagle"])
    async with alone(browser) as looked:
        page = looked.page
        await looked.told(whole(AGENT, other), begins=True)
        await looked.shows("#model", "beta")
        await page.select_option("#model", "beta")
        await page.select_option("#draft", "eagle")
        await looked.told(whole(AGENT))
        await looked.until("!document.querySelector('#model').textContent.includes('beta')")
        assert [await page.input_value(each) for each in ("#model", "#draft")] == ["alpha", ""]
        await looked.told(whole(AGENT, other))
        await looked.shows("#model", "beta")
        assert [await page.input_value(each) for each in ("#model", "#draft")] == ["beta", "eagle"]
    async with alone(browser) as looked:
        await looked.told(whole(other, AGENT), begins=True)
        await looked.shows("#model", "beta")
        await looked.asks("Well?")
        await looked.told(whole(AGENT))
        await looked.until("!document.querySelector('#model').textContent.includes('beta')")
        await looked.told(whole(AGENT, other))
        await looked.shows("#model", "beta")
        assert await looked.page.input_value("#model") == "beta"


CHOICES = "[...document.querySelectorAll('#model option')].map((option) => option.value).join()"


async def test_the_chat_offers_what_its_key_may_ask(browser: Any) -> None:
    """As the gateway lists it, other gateways' models too; it is asked again where devices or the key are others, and
    an operator's token, which chats with nobody, is not shown for it."""
    other = replace(AGENT, id="b", writes=["beta"], models=["beta", "vectors"])
    async with alone(browser) as looked:
        page = looked.page
        await looked.told(whole(AGENT, other), begins=True)
        await looked.until(f"{CHOICES} === 'alpha,beta'")
        await looked.lists("beta", "elsewhere", vectors=["embed"])
        await looked.told(change(at=NOW + 500))
        await looked.until(f"{CHOICES} === 'beta,elsewhere'")
        assert await page.input_value("#model") == "beta"
        assert await page.evaluate(f"of('{MODELS}').length") == 1
        await looked.told(whole(AGENT))
        await looked.asked(MODELS, 2)
        await page.click("#key")
        await page.fill("#key-text", "mine")
        await page.keyboard.press("Enter")
        await looked.asked(EVENTS, 2)
        await looked.told(whole(AGENT), begins=True)
        await looked.asked(MODELS, 3)
        assert await page.evaluate(f"last('{MODELS}').headers.Authorization") == "Bearer mine"
        await looked.lists("mine alone")
        await looked.until("document.getElementById('live').textContent === 'live'")
        await looked.told(change(at=NOW + 1000))
        await looked.until(f"{CHOICES} === 'mine alone'")
        await looked.told(whole(AGENT, operator=True))
        await looked.until(f"{CHOICES} === 'alpha'")
        assert await page.evaluate(f"of('{MODELS}').length") == 3


async def test_another_gateway_has_other_sums(browser: Any) -> None:
    """Where the next stream is another's, nothing is taken for growth that was there before."""
    async with alone(browser) as looked:
        await looked.told(whole(AGENT, tokens=100), begins=True)
        await looked.tile("Tokens a second", "0.0")
        await looked.told(change(tokens=300, at=NOW + 2000))
        await looked.tile("Tokens a second", "100")
        await looked.page.evaluate(f"last('{EVENTS}').end()")
        await looked.asked(EVENTS, 2)
        await looked.told(whole(AGENT, tokens=100_000, at=NOW + 3000), begins=True)
        await looked.tile("Tokens a second", "0.0")


async def test_a_clock_that_is_set_back(browser: Any) -> None:
    """Rates begin anew there, and what is over goes all the same."""
    async with alone(browser) as looked:
        await looked.told(whole(AGENT, requests=[REQUEST], tokens=100), begins=True)
        await looked.tile("Tokens a second", "0.0")
        await looked.told(change(tokens=300, at=NOW + 2000, gone=[REQUEST.id]))
        await looked.tile("Tokens a second", "100")
        await looked.until("document.querySelectorAll('#requests tr.over').length === 1")
        await looked.told(change(tokens=400, at=NOW - 60_000))
        await looked.tile("Tokens a second", "0.0")
        await looked.told(change(tokens=600, at=NOW - 58_000))
        await looked.tile("Tokens a second", "100")
        assert await looked.page.locator("#requests tr").count() == 0


async def test_a_request_that_makes_way_is_not_over(browser: Any) -> None:
    """It goes at once, while one that is over is seen to be for a while."""
    other = replace(REQUEST, id="a/2", request="page-2")
    async with alone(browser) as looked:
        await looked.told(whole(AGENT, requests=[REQUEST, other], running=2), begins=True)
        await looked.shows("#requests", "page-2")
        await looked.told(change(at=NOW + 500, gone=[REQUEST.id, other.id], still=[other.id], running=1))
        await looked.until("document.querySelectorAll('#requests tr').length === 1")
        await looked.shows("#requests tr.over", "page-1")


async def test_a_lane_says_how_much_it_shows(browser: Any) -> None:
    """Twenty seconds of fifty rounds a second; of more than are kept as much as there is."""
    label = "document.querySelector('#requests canvas').getAttribute('aria-label')"
    async with alone(browser) as looked:
        await looked.told(whole(AGENT, requests=[REQUEST]), begins=True)
        for per_s, words in ((50, "1000 rounds in the last 20 seconds"), (400, "2000 rounds in the last 5 seconds")):
            request = replace(REQUEST, id=f"a/{per_s}")
            await looked.told(whole(AGENT))
            await looked.told(change(at=NOW + 10_000))  # What was there before is gone.
            await looked.told(whole(AGENT, requests=[request]))
            marks = [(request.id, "round", NOW + 1000 * at // per_s, 1.0, 1, 0) for at in range(20 * per_s)]
            await looked.told(change(marks=marks, at=NOW + 20_000))
            await looked.until(f"{label} === '0 chunks and {words}'")


async def test_a_lane_does_not_show_what_nobody_told(browser: Any) -> None:
    """Of a request that was there before the page, and of the time for which the page was not told anything."""
    label = "document.querySelector('#requests canvas').getAttribute('aria-label')"
    async with alone(browser) as looked:
        await looked.told(whole(AGENT, requests=[REQUEST]), begins=True)
        await looked.until(f"{label} === '0 chunks and 0 rounds in the last 0 seconds'")
        await looked.told(change(at=NOW + 5_000, requests=[REQUEST]))
        await looked.until(f"{label} === '0 chunks and 0 rounds in the last 5 seconds'")
        await looked.told(whole(AGENT, requests=[REQUEST], at=NOW + 60_000))
        await looked.until(f"{label} === '0 chunks and 0 rounds in the last 0 seconds'")


POINTS = """
{
  const paper = CanvasRenderingContext2D.prototype;
  const { beginPath, lineTo, stroke } = paper;
  let points = 0;
  paper.beginPath = function () { points = 1; beginPath.call(this); };
  paper.lineTo = function (...at) { points += 1; lineTo.apply(this, at); };
  paper.stroke = function () { window.points = points; window.strokes = (window.strokes ?? 0) + 1; stroke.call(this); };
}
"""
"""Of the line that was drawn last, and how many were."""


async def test_what_is_drawn_again_is_no_news(browser: Any) -> None:
    """A figure's line has a point for each time that something was told, not for each size that a window had."""
    async with alone(browser, POINTS) as looked:
        await looked.told(whole(AGENT), begins=True)
        for half in (1, 2):
            await looked.live()
            await looked.told(change(at=NOW + 500 * half, tokens=half))
            await looked.until(f"window.points === {1 + half}")
        for width in (900, 1000, 1100):
            drawn = await looked.page.evaluate("strokes")
            await looked.page.set_viewport_size({"width": width, "height": 700})
            await looked.until(f"strokes > {drawn}")
        assert await looked.page.evaluate("points") == 3


HURRIED = """
window.waits = [];
const timeout = window.setTimeout;
window.setTimeout = (what, ms) => { waits.push(ms); return timeout(what, ms / 50); };
"""
"""All waits are a fiftieth, and known."""

LOOKED_AT = """
const timeout = window.setTimeout;
window.setTimeout = (what, ms) => timeout(what, ms === 30_000 ? 600 : ms);
window.looks = (at) => {
  Object.defineProperty(document, "hidden", { value: !at, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
};
"""


async def test_a_page_that_nobody_looks_at_holds_no_stream(browser: Any) -> None:
    """After a while it ends it, and asks anew when somebody looks again; who looks away for a moment misses nothing."""
    ended = f"last('{EVENTS}').aborted"
    async with alone(browser, LOOKED_AT) as looked:
        page = looked.page
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        await page.evaluate("looks(false); looks(true)")
        await looked.told(change(at=NOW + 500))
        await asyncio.sleep(1.2)
        assert not await page.evaluate(ended) and await page.evaluate(f"of('{EVENTS}').length") == 1
        await page.evaluate("looks(false)")
        await looked.until(ended)
        await asyncio.sleep(0.8)
        assert await page.evaluate(f"of('{EVENTS}').length") == 1
        await page.evaluate("looks(true)")
        await looked.asked(EVENTS, 2)
        await looked.shows("#fleet-note", "as of")
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        assert looked.errors == []


TEXT = json.dumps(whole(AGENT).decode())
"""What a gateway tells first, as a script has it."""


async def test_a_gateway_that_never_answers_is_asked_again(browser: Any) -> None:
    """As one is that falls silent later on: whatever is in between may have lost the question."""
    second = f"window.called = (call) => {{ if (of('{EVENTS}').length === 2) call.begin({TEXT}); }};"
    async with alone(browser, HURRIED, second) as looked:
        await looked.asked(EVENTS, 3)
        assert await looked.page.evaluate(f"of('{EVENTS}').slice(0, 2).every((each) => each.aborted)")
        assert looked.errors == []


async def test_a_gateway_that_tells_nothing_is_asked_less_and_less(browser: Any) -> None:
    """Not twice a second for ever: one that stops answers with a stream that has ended. One that tells something is
    asked again soon."""
    at_once = "window.text = ''; window.called = (call) => { call.begin(text); call.end(); };"
    waits = "waits.filter((each) => each < 15_000)"
    async with alone(browser, HURRIED, at_once) as looked:
        await looked.until(f"{waits}.length >= 4")
        assert await looked.page.evaluate(f"{waits}.slice(0, 4)") == [500, 1000, 2000, 4000]
        await looked.page.evaluate(f"text = {TEXT}")
        await looked.until(f"{waits}.length >= 8 && {waits}.slice(-2).every((each) => each === 500)")


@pytest.mark.parametrize(
    ("agent", "words"),
    [
        (replace(AGENT, mode="local"), "300 ms on the device"),
        (replace(AGENT, mode="galaxy", group={"name": "home", "mode": "galaxy", "epoch": 1, "formed": True,
            "why": "", "members": []}), "300 ms in the group"),
        (AGENT, "300 ms in rounds, nobody says where"),
    ],
)  # fmt: skip
async def test_an_answer_without_a_cloud_has_its_time(browser: Any, agent: AgentView, words: str) -> None:
    """As one part: there is nothing that it could be parted into."""
    async with alone(browser) as looked:
        await looked.told(whole(agent), begins=True)
        await looked.live()
        await looked.asks("Well?")
        await looked.answered("It", token_origins=[{"round": 1, "drafter": None, "took_ms": 300.0}])
        await looked.shows("#talk .legend", words)
        assert await looked.page.locator("#talk .time i").count() == 1
        assert await looked.page.get_attribute("#talk .time", "aria-label") == words


async def test_an_answer_that_is_cut_off_is_not_taken_for_a_whole_one(browser: Any) -> None:
    """Where the connection ends in good order before the stream has said that it is complete, as a proxy does it."""
    async with alone(browser) as looked:
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        for times, (done, words) in enumerate([(True, "first after"), (False, "the connection was lost")], 1):
            await looked.asks("Well?")
            await looked.asked(CHAT, times)
            await looked.answered("It", " is", done=done)
            await looked.shows(f"#talk article:nth-child({2 * times}) .sum", words)
            await looked.shows("#send", "Send")


async def test_answers_are_counted_beside_their_room(browser: Any) -> None:
    """Which is that of all devices, not of the prompts that have these answers."""
    async with alone(browser) as looked:
        await looked.told(whole(AGENT, running=1, answers=3, capacity=12), begins=True)
        await looked.tile("Answers now", "3 of 12")


async def test_what_is_shown_from_before_is_said_to_be(browser: Any) -> None:
    """While nothing is told: of when it is, with no colour that says how anything is now; in sight wherever one
    reads."""
    colour = "getComputedStyle(document.querySelector('.health'), '::before').color"
    async with alone(browser) as looked:
        page = looked.page
        await looked.told(whole(AGENT), begins=True)
        await looked.live()
        well = await page.evaluate(colour)
        await page.evaluate(f"last('{EVENTS}').end()")
        for note in ("#flight-note", "#fleet-note"):
            await looked.shows(note, ", as of ")
        assert await page.evaluate(colour) != well
        await page.set_viewport_size({"width": 1000, "height": 400})
        await page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
        assert await page.evaluate("scrollY > 0 && document.getElementById('live').getBoundingClientRect().top >= 0")
        await looked.asked(EVENTS, 2)
        await looked.told(whole(AGENT, at=NOW + 1000), begins=True)
        await looked.until("!document.querySelector('.watch').textContent.includes('as of')")
        assert await page.evaluate(colour) == well


@pytest.mark.parametrize(
    ("state", "words"), [("draining", "stops soon"), ("refused", "refuses it"), ("away", "is away")]
)
async def test_what_a_devices_cloud_does(browser: Any, state: str, words: str) -> None:
    """One that drains or refuses is not away."""
    wire = {"to": "cloud:80", "rtt_ms": 1.0, "sent_bytes": 0, "received_bytes": 0, "cloud": None}
    async with alone(browser) as looked:
        wires = [wire | {"state": "ready"}, wire | {"state": state}]
        await looked.told(whole(replace(AGENT, wires=wires)), begins=True)
        await looked.shows("#fleet .health", f"one of its clouds {words}")


async def test_sums_that_are_not_ones_own(browser: Any) -> None:
    """What went wrong is counted for all clients, and listed for those that it is about: that is said, but to who sees
    all of it."""
    incidents = [replace(INCIDENT, times=3)]
    async with alone(browser) as looked:
        await looked.told(whole(AGENT, incidents=incidents), begins=True)
        await looked.tile("Incidents so far", "3 of all clients")
        await looked.told(whole(AGENT, incidents=incidents, operator=True))
        await looked.tile("Incidents so far", "3")


async def test_a_phone_does_not_grow_the_page(browser: Any) -> None:
    """As iOS does where one begins to write in something smaller than 16 pixels."""
    small = """[...document.querySelectorAll("input, select, textarea")]
      .map((each) => parseFloat(getComputedStyle(each).fontSize)).filter((size) => size < 16)"""
    async with alone(browser) as looked:
        await looked.page.set_viewport_size({"width": 360, "height": 740})
        assert await looked.page.evaluate(small) == []


async def test_when_something_went_wrong(browser: Any) -> None:
    """Five past midnight is 00:05; what was on another day has its day."""
    async with alone(browser) as looked:
        midnight = await looked.page.evaluate("new Date().setHours(0, 5, 0, 0)")
        before = await looked.page.evaluate("new Date(2026, 0, 2, 0, 5).getTime()")
        incidents = [replace(INCIDENT, id=id, at=at) for id, at in enumerate((before, midnight))]
        await looked.told(whole(incidents=incidents), begins=True)
        await looked.shows("#failures li:nth-child(2)", "cloud out of reach")
        told = [each.split() for each in await looked.page.locator("#failures time").all_inner_texts()]
        assert [each[-1] for each in told] == ["00:05:00"] * 2 and [len(each) for each in told] == [1, 3]


async def test_two_connections_to_one_address_are_two(browser: Any) -> None:
    """A device has a further one where a cloud is full: each has its row and its rate, and its line at the device."""

    def device(*sent: int) -> AgentView:
        wire = {"to": "cloud:80", "state": "ready", "rtt_ms": 1.0, "received_bytes": 0, "cloud": None}
        return replace(AGENT, wires=[{**wire, "sent_bytes": each} for each in sent])

    rows = """[...document.querySelectorAll("#wires tr")].slice(2)
      .map((row) => [...row.children].slice(0, 2).map((cell) => cell.textContent).join(": "))"""
    lines = "[...document.querySelectorAll('#fleet .members li span:first-child')].map((name) => name.textContent)"
    async with alone(browser) as looked:
        await looked.told(whole(device(900_000_000, 1000)), begins=True)
        await looked.live()
        await looked.told(change(device(900_002_000, 2000), at=NOW + 2000))
        await looked.shows("#wires tr:nth-child(4)", "2.0 kB")
        assert await looked.page.evaluate(rows) == [
            "kitchen – cloud:80: 1.0 kB/s · 900 MB",
            "kitchen – cloud:80 (2): 500 B/s · 2.0 kB",
        ]
        assert await looked.page.evaluate(lines) == ["cloud cloud:80", "cloud cloud:80 (2)"]


async def test_what_other_gateways_have(browser: Any) -> None:
    """Their devices are told with what keeps these from answering; what is this gateway's alone is said to be so, and
    no device is said to have answered that need not have."""
    kitchen = {"name": "kitchen", "running": 1, "capacity": 8, "draining": False, "cloud_connected": True}
    shed = {"name": "shed", "running": 0, "capacity": 4, "draining": False, "cloud_connected": False}
    agents = [{**each, "models": ["beta"]} for each in (kitchen, shed)]
    other = {"url": "http://other", "waiting": 0, "agents": agents, "more_agents": 3}
    fleet = {"url": "http://this", "redis": {"connected": True, "losses": 0}, "gateways": [other]}
    card = "#fleet .card:last-child"
    async with alone(browser) as looked:
        await looked.told(whole(fleet=fleet), begins=True)
        await looked.shows("#fleet-note", "no device is connected at this gateway")
        await looked.shows("#flight-note", "nobody asks this gateway's devices anything just now")
        await looked.tile("Answers now", "0 of 8 at this gateway")
        await looked.shows(f"{card} .health", "1 of its 2 devices can answer")
        await looked.shows(f"{card} .members li:nth-child(1)", "1 of 8, beta")
        await looked.shows(f"{card} .members li:nth-child(2)", "0 of 4, beta, no cloud")
        await looked.shows(card, "3 more of its devices are not shown")
        await looked.shows("#wires", "gateway – gateways that ask it")
        other["agents"] = [{**agents[0], "draining": True}]
        await looked.told(whole(AGENT, fleet=fleet))
        await looked.shows(f"{card} .health", "none of its devices can answer")
        for gateways, words in (([other], "own word."), ([], "own word, chosen by hat on kitchen.")):
            await looked.told(whole(AGENT, fleet=fleet | {"gateways": gateways}))
            await looked.until(f"document.querySelectorAll('#fleet .card').length === {1 + len(gateways)}")
            await looked.asks("Well?")
            await looked.answered("It", token_origins=[{"round": 1, "drafter": None, "took_ms": 1.0}])
            await looked.shows("#talk .sum", "first after")
            await looked.page.press("#talk .text[tabindex]", "ArrowRight")
            told = await looked.page.locator("#token").inner_text()
            assert told.startswith(f"Token 1: the model's {words}")
            await looked.page.click("#new-chat")


CLOUDS = """[...document.querySelectorAll("#fleet .card")]
  .map((card) => `${card.querySelector("h3").textContent}: ${card.querySelector(".health").textContent}`)
  .filter((words) => words.startsWith("cloud"))"""


async def test_clouds_behind_one_address_are_told_apart(browser: Any) -> None:
    """Each has its card and its figures, and both are in the sums. One that says no name, or is known by several
    addresses, is one."""

    def device(id: str, to: str, cloud: str, used: int, state: str = "ready") -> AgentView:
        figures = asdict(CloudFigures("1", 0, 0, 0, 0, 0, 0, 0, used, 100, 1, cloud)) if state == "ready" else None
        wire = {"to": to, "state": state, "rtt_ms": 1.0, "sent_bytes": 0, "received_bytes": 0, "cloud": figures}
        return replace(AGENT, id=id, name=id, wires=[wire])

    pods = [device("a", "cloud:80", "one", 10), device("b", "cloud:80", "two", 30)]
    away = device("c", "cloud:80", "", 0, "away")
    others = [device("d", "10.0.0.1:80", "two", 30), device("e", "old:80", "", 5)]
    async with alone(browser) as looked:
        await looked.told(whole(*pods, away, *others), begins=True)
        await looked.tile("KV pages in use", "15 % of 300")
        names = ["cloud cloud:80 one: well", "cloud cloud:80 two: well", "cloud old:80: well"]
        assert await looked.page.evaluate(CLOUDS) == names
        await looked.told(whole(pods[0], away))
        await looked.tile("KV pages in use", "10 % of 100")
        assert await looked.page.evaluate(CLOUDS) == ["cloud cloud:80: away"]
