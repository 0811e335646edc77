// Requests in flight: a row for each, with its chunks and rounds on a timeline.

import { cleared, colour, el, Keyed, setAttribute, setText } from "./dom.js";
import { WINDOW_MS } from "./store.js";
import { asOf, count, ms, percent, plural, rate } from "./words.js";

const DOING = { reads: "reads the prompt", waits: "waits", prefills: "prefills", generates: "generates" };
const TALLEST = 8; // rows of a round that fill the lane
const LEAST_WIDTH = 1.5;

export class Flight {
  constructor(body, note) {
    this.body = body;
    this.note = note;
    this.rows = new Keyed(body, () => new Row());
  }

  show(store) {
    const requests = [...store.requests.values()];
    const lane = this.rows.parts.values().next().value?.canvas;
    const size = lane ? { width: lane.clientWidth, height: lane.clientHeight } : undefined; // All lanes are alike.
    this.rows.show(requests.map((request) => [request.id, { request, store, size }]));
    const open = requests.filter((request) => request.over === null).length;
    const { running } = store.totals;
    const own = store.operator ? "" : ": each client sees its own";
    const shown = running > open ? `${count(open)} of ${count(running)} shown${own}` : plural(open, "request");
    const nobody = `nobody asks ${store.peers.length ? "this gateway's devices " : ""}anything just now`;
    setText(this.note, (open || running ? shown : nobody) + asOf(store));
  }
}

class Row {
  constructor() {
    this.root = el("tr");
    const cell = (name) => {
      const made = el("td", { class: name });
      this.root.append(made);
      return made;
    };
    this.name = cell("code");
    this.model = cell("wide");
    this.device = cell("wide");
    this.doing = cell("");
    this.prompt = cell("num wide");
    this.tokens = cell("num");
    this.drafts = cell("num wide");
    this.first = cell("num wide");
    this.canvas = el("canvas", { role: "img" });
    cell("lane").append(this.canvas);
  }

  update({ request, store, size }) {
    setText(this.name, request.request || "–");
    setText(this.model, request.model);
    setText(this.device, store.agents.get(request.agent)?.name ?? "–");
    setAttribute(this.root, "class", request.over === null ? "" : "over");
    setText(this.doing, request.over === null ? doing(request) : "over");
    setText(this.prompt, prompt(request));
    const speed = store.rate(`tokens ${request.id}`, request.tokens);
    setText(this.tokens, request.tokens ? `${count(request.tokens)}${request.over === null && speed ? ` · ${rate(speed)}/s` : ""}` : "–");
    setText(this.drafts, request.drafted ? `${percent(request.accepted, request.drafted)} of ${count(request.drafted)}` : "–");
    setText(this.first, ms(request.ttft_ms));
    const known = Math.max(0, Math.min(WINDOW_MS, store.now - request.since));
    this.draw(request.marks, store.now, known, size);
    const chunks = request.marks.filter((mark) => mark.kind === "chunk").length;
    setAttribute(this.canvas, "aria-label", `${plural(chunks, "chunk")} and ${plural(request.marks.length - chunks, "round")} in the last ${Math.round(known / 1000)} seconds`);
  }

  // The line is as long as what is known: where very many rounds came, that may be less than the lane shows.
  draw(marks, now, known, size) {
    const paper = cleared(this.canvas, size);
    if (!paper) return;
    const { context, width, height } = paper;
    const scale = width / WINDOW_MS;
    context.fillStyle = colour("line");
    context.fillRect(width - known * scale, height - 1, known * scale, 1);
    for (const mark of marks) {
      const wide = Math.max(LEAST_WIDTH, mark.took * scale - 0.5);
      const left = width - (now - mark.end) * scale - wide;
      if (mark.kind === "chunk") {
        context.fillStyle = colour("chunk");
        context.fillRect(left, height * 0.25, wide, height * 0.75 - 1);
        continue;
      }
      const all = (Math.min(mark.rows, TALLEST) / TALLEST) * (height - 1);
      const gained = all * Math.min(1, (mark.accepted + 1) / mark.rows);
      context.fillStyle = colour("vain");
      context.fillRect(left, height - 1 - all, wide, all - gained);
      context.fillStyle = colour("draft");
      context.fillRect(left, height - 1 - gained, wide, gained);
    }
  }
}

function doing(request) {
  const restored = request.restored ? `, brought back ${count(request.restored)}×` : "";
  const several = request.choices > 1 ? ` ${request.choices} answers` : "";
  return `${DOING[request.stage] ?? request.stage}${several}${restored}`;
}

function prompt(request) {
  const cached = request.cached ? `${count(request.cached)} kept, ` : "";
  if (request.stage === "prefills" && request.sent) {
    return `${cached}${count(request.cached + request.answered)} of ${count(request.prompt)}`;
  }
  return request.prompt ? `${cached}${count(request.prompt)}` : "–";
}
