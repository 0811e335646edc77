// The figures at the top.

import { cleared, colour, el, Keyed, setText } from "./dom.js";
import { count, percent, rate } from "./words.js";

export class Now {
  constructor(root) {
    this.tiles = new Keyed(root, (figure) => new Tile(figure));
  }

  show(store) {
    this.tiles.show(figures(store).map((figure) => [figure.name, { ...figure, seen: store.remember(figure.name, figure.value) }]));
  }
}

function figures(store) {
  const { totals } = store;
  const agents = [...store.agents.values()];
  const clouds = store.clouds().filter((cloud) => cloud.figures).map((cloud) => load(store, cloud));
  const here = store.peers.length ? " at this gateway" : "";
  let drafted = sum(agents, "proposed");
  let kept = sum(agents, "accepted");
  for (const request of store.requests.values()) {
    if (request.over !== null) continue;
    drafted += request.drafted;
    kept += request.accepted;
  }
  const found = [
    { name: "Answers now", value: totals.answers, text: count(totals.answers), more: totals.capacity ? `of ${count(totals.capacity)}${here}` : "" },
    { name: "Waiting", value: totals.waiting, text: count(totals.waiting), more: `of ${count(totals.max_waiting)}${here}` },
  ];
  const tokens = store.rate("tokens", totals.tokens);
  found.push({ name: "Tokens a second", value: tokens, text: rate(tokens), more: "" });
  found.push({ name: "Drafts kept", value: drafted ? kept / drafted : 0, text: percent(kept, drafted), more: drafted ? `of ${count(drafted)}` : "", most: 1 });
  if (clouds.length) {
    const busy = clouds.reduce((all, each) => all + each.busy, 0) / clouds.length;
    const used = clouds.reduce((all, each) => all + each.used, 0);
    const pages = clouds.reduce((all, each) => all + each.pages, 0);
    const rows = Math.max(...clouds.map((each) => each.rows));
    found.push({ name: "Cloud in steps", value: busy, text: percent(busy, 1), more: `${rate(rows)} rows a step`, most: 1 });
    found.push({ name: "KV pages in use", value: pages ? used / pages : 0, text: percent(used, pages), more: `of ${count(pages)}`, most: 1 });
  }
  found.push({ name: "Incidents so far", value: totals.incidents, text: count(totals.incidents), more: store.operator ? "" : "of all clients" });
  return found;
}

// Of a cloud: the share of time spent in steps, and the mean rows of one.
export function load(store, cloud) {
  const { steps, rows, step_us, pages, pages_used } = cloud.figures;
  const stepRate = store.rate(`steps ${cloud.id}`, steps);
  const rowRate = store.rate(`rows ${cloud.id}`, rows);
  const busy = store.rate(`busy ${cloud.id}`, step_us) / 1e6;
  return { busy: Math.min(1, busy), rows: stepRate > 0 ? rowRate / stepRate : 0, used: pages_used, pages };
}

class Tile {
  constructor({ name }) {
    this.number = el("span");
    this.more = el("small");
    this.canvas = el("canvas", { "aria-hidden": "true" });
    this.root = el("div", { class: "tile" }, el("dt", { text: name }), el("dd", {}, this.number, " ", this.more, this.canvas));
  }

  update({ text, more, seen, most }) {
    setText(this.number, text);
    setText(this.more, more);
    this.draw(seen, most ?? Math.max(1, ...seen));
  }

  draw(seen, most) {
    const paper = cleared(this.canvas);
    if (!paper || seen.length < 2) return;
    const { context, width, height } = paper;
    context.strokeStyle = colour("accent");
    context.lineWidth = 1.25;
    context.beginPath();
    seen.forEach((value, at) => {
      const x = width - ((seen.length - 1 - at) * width) / 59;
      const y = height - 2 - (Math.min(value, most) / most) * (height - 4);
      if (at) context.lineTo(x, y);
      else context.moveTo(x, y);
    });
    context.stroke();
  }
}

const sum = (items, name) => items.reduce((all, each) => all + each[name], 0);
