// A chat with one of the models, whose answers say where each token came from.

import { Answer } from "./answer.js";
import { byId, el, setText } from "./dom.js";
import { headersOf, reasonOf } from "./feed.js";

const ID_CHARACTERS = 12; // of a request's id that the gateway tells
const NEAR_END = 40;

export class Chat {
  // key(): the API key to show; models: those that it may ask; refused(why): another key is needed.
  constructor({ key, models, refused }) {
    Object.assign(this, { key, models, refused });
    this.turns = [];
    this.agents = [];
    this.peers = 0; // other gateways
    this.running = null;
    this.answer = null;
    this.talk = byId("talk");
    this.say = byId("say");
    this.send = byId("send");
    this.model = byId("model");
    this.draft = byId("draft");
    this.wishes = new Map(); // Of a list: what was chosen there, or asked first.
    for (const list of [this.model, this.draft]) list.addEventListener("change", () => this.wishes.set(list, list.value));
    byId("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.ask();
    });
    this.say.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        if (!this.running) this.ask();
      }
    });
    byId("new-chat").addEventListener("click", () => this.startOver());
  }

  // The models and drafters that there are, and which device works on the answer.
  show(store) {
    const agents = (this.agents = [...store.agents.values()]);
    this.peers = store.peers.length;
    options(this.model, new Map(this.models.of(store).map((name) => [name, name])), this.wishes.get(this.model), "no model");
    const drafters = new Set(agents.flatMap((agent) => agent.drafts).filter((name) => name !== "none"));
    const drafts = new Map([["", "as usual"], ["none", "none"], ...[...drafters].map((name) => [name, name])]);
    options(this.draft, drafts, this.wishes.get(this.draft));
    if (!this.answer) return;
    for (const request of store.requests.values()) {
      if (request.request === this.answer.id) this.answer.agent = store.agents.get(request.agent) ?? null;
    }
    // What a device says of itself, its mode, can come after the answer.
    if (this.answer.agent) this.answer.agent = store.agents.get(this.answer.agent.id) ?? this.answer.agent;
  }

  // The device that has to answer: an answer can be whole before the page is told who works on it. With other gateways
  // nobody has to: they are sent requests, too.
  onlyAgent() {
    if (this.peers) return null;
    const able = this.agents.filter((agent) => agent.writes.includes(this.model.value));
    return able.length === 1 ? able[0] : null;
  }

  startOver() {
    this.stop();
    this.turns = [];
    this.answer = null;
    this.talk.replaceChildren();
    setText(byId("token"), "");
    this.say.focus();
  }

  stop() {
    this.running?.abort();
  }

  async ask() {
    const text = this.say.value.trim();
    if (!text) return;
    const running = (this.running = new AbortController());
    const id = `page-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16).padStart(8, "0")}`.slice(0, ID_CHARACTERS);
    const answer = (this.answer = new Answer(id, (words) => setText(byId("token"), words)));
    answer.agent = this.onlyAgent();
    const turns = [...this.turns, { role: "user", content: text }];
    const asked = el("article", { class: "said" }, el("p", { class: "who", text: "You" }), el("p", { class: "text", text }));
    this.talk.append(asked, answer.root);
    this.talk.scrollTop = this.talk.scrollHeight;
    this.say.value = "";
    if (!this.wishes.get(this.model)) this.wishes.set(this.model, this.model.value); // A chat goes on with who began it.
    setText(this.send, "Stop");
    try {
      const usage = await this.read(turns, id, answer, running.signal);
      answer.end({ usage, stopped: false });
    } catch (error) {
      if (running.signal.aborted) answer.end({ usage: null, stopped: true });
      else this.failed(error, text, asked, answer);
    } finally {
      if (this.running === running) {
        this.running = null;
        setText(this.send, "Send");
      }
    }
    if (answer.text && this.answer === answer) this.turns = [...turns, { role: "assistant", content: answer.text }];
  }

  failed(error, text, asked, answer) {
    answer.fail(error.message || "the connection was lost");
    if (!(error instanceof KeyNeeded)) return;
    asked.remove();
    answer.root.remove();
    this.say.value = text;
    this.refused(error.message);
  }

  async read(messages, id, answer, signal) {
    const body = { messages, stream: true, stream_options: { include_usage: true }, return_token_origins: true };
    if (this.model.value) body.model = this.model.value;
    if (this.draft.value) body.draft = this.draft.value;
    const headers = { ...headersOf(this.key()), "Content-Type": "application/json", "X-Request-Id": id };
    const reply = await fetch("v1/chat/completions", { method: "POST", headers, body: JSON.stringify(body), signal });
    if (reply.status === 401) throw new KeyNeeded(await reasonOf(reply));
    if (!reply.ok) throw new Error(await reasonOf(reply));
    let usage = null;
    for await (const data of dataOf(reply.body.getReader())) {
      const chunk = JSON.parse(data);
      if (chunk.error) throw new Error(chunk.error.message);
      usage = chunk.usage ?? usage;
      const ends = this.talk.scrollHeight - this.talk.scrollTop - this.talk.clientHeight < NEAR_END;
      for (const choice of chunk.choices) take(answer, choice);
      if (ends) this.talk.scrollTop = this.talk.scrollHeight;
    }
    return usage;
  }
}

class KeyNeeded extends Error {}

function take(answer, { delta, token_origins: origins = [] }) {
  if (delta.reasoning_content) answer.add(delta.reasoning_content, delta.content ? [] : origins, true);
  if (delta.content || (origins.length && !delta.reasoning_content)) answer.add(delta.content ?? "", origins);
}

// What the events of a stream say, up to the one that ends it. A stream that is over before was cut off on its way.
async function* dataOf(reader) {
  const decoder = new TextDecoder();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) throw new Error("the connection was lost before the answer was complete");
    rest += decoder.decode(value, { stream: true });
    const events = rest.split("\n\n");
    rest = events.pop();
    for (const event of events) {
      if (event === "data: [DONE]") return;
      if (event.startsWith("data: ")) yield event.slice("data: ".length);
    }
  }
}

// The options of a select, as they are now. Of the names that are there it has the one that people wish; else what it had.
// A device that is away for a moment takes its names with it: they are wished all the same once it is back.
function options(select, wanted, wish, none = "") {
  const names = wanted.size ? wanted : new Map([["", none]]);
  const now = [...select.options].map((option) => option.value).join("\n");
  if (now === [...names.keys()].join("\n")) return;
  const chosen = names.has(wish) ? wish : select.value;
  select.replaceChildren(...[...names].map(([value, text]) => el("option", { value, text })));
  if (names.has(chosen)) select.value = chosen;
}
