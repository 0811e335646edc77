// The page: what the gateway tells goes to each of its parts, a few times a second.

import { Chat } from "./chat.js";
import { byId, setAttribute, setText } from "./dom.js";
import { Feed } from "./feed.js";
import { Fleet } from "./fleet.js";
import { Flight } from "./flight.js";
import { Keys } from "./keys.js";
import { Models } from "./models.js";
import { Now } from "./now.js";
import { Store } from "./store.js";
import { setUpTheme } from "./theme.js";
import { Failures, Wires } from "./wires.js";

const HIDDEN_MS = 30_000; // A browser has six connections to a gateway for all its tabs.

const store = new Store();
const keys = new Keys(() => feed.start());
const models = new Models((operator) => (operator && keys.chat === keys.watch ? null : keys.chat));
const chat = new Chat({ key: () => keys.chat, models, refused: (why) => keys.ask("chat", why) });
const parts = [
  new Now(byId("now")),
  new Flight(byId("requests"), byId("flight-note")),
  new Fleet(byId("fleet"), byId("fleet-note")),
  new Wires(byId("wires")),
  new Failures(byId("failures")),
  chat,
];
const feed = new Feed({ key: () => keys.watch, told, lost, refused });

let due = false;

function told(name, data) {
  store.take(name, data);
  state(data.totals.draining ? "warns" : "live", data.totals.draining ? "the gateway drains" : "live");
  showSoon();
}

// What is shown is from before, until more is told.
function lost(word, text) {
  store.live = false;
  state(word, text);
  showSoon();
}

// A key that ends does so at any time: who is writing in the chat just then would write on in the window for the key, and
// is told in the header alone.
function refused(why) {
  if (!byId("ask").contains(document.activeElement)) keys.ask("watch", why);
}

// Once a frame at most, and not where nobody looks.
function showSoon() {
  if (due || document.hidden || !store.totals) return;
  due = true;
  requestAnimationFrame(() => {
    due = false;
    setText(byId("version"), store.totals.version);
    for (const part of parts) part.show(store);
  });
}

function state(word, text) {
  setAttribute(document.body, "data-told", store.live ? "now" : "before");
  setAttribute(byId("live"), "data-state", word);
  setText(byId("live"), text);
}

let hidden = 0;
function look() {
  clearTimeout(hidden);
  if (document.hidden) {
    hidden = setTimeout(() => feed.pause(), HIDDEN_MS);
  } else {
    feed.resume();
    showSoon();
  }
}
document.addEventListener("visibilitychange", look);
if (document.hidden) look(); // Opened in the background it is told nothing of that.
window.addEventListener("resize", showSoon);
document.addEventListener("keydown", (event) => {
  // Elsewhere the key closes a window or a list, or takes back what an input method has begun.
  const elsewhere = event.isComposing || event.target.closest("select") || document.querySelector("dialog[open]");
  if (event.key === "Escape" && !elsewhere) chat.stop();
  const typing = event.target.closest("input, textarea, select, dialog");
  if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
    event.preventDefault();
    byId("say").focus();
  }
});
setUpTheme(showSoon);
feed.start();
