// Devices, clouds and groups: what they are, how they are, how busy.

import { el, Keyed, setAttribute, setText } from "./dom.js";
import { load } from "./now.js";
import { asOf, count, ms, numbered, percent, plural, rate, span } from "./words.js";

export class Fleet {
  constructor(root, note) {
    this.note = note;
    this.cards = new Keyed(root, () => new Card());
  }

  show(store) {
    const items = [];
    for (const agent of store.agents.values()) items.push([`device ${agent.id}`, device(agent, store.now)]);
    for (const cloud of store.clouds()) items.push([`cloud ${cloud.id}`, cloudCard(store, cloud)]);
    for (const gateway of store.peers) items.push([`gateway ${gateway.url}`, gatewayCard(gateway)]);
    this.cards.show(items);
    const hidden = store.totals.agents - store.agents.size;
    const more = hidden > 0 ? `, ${count(hidden)} more are not shown` : "";
    const here = store.peers.length ? " at this gateway" : "";
    const redis = store.fleet && !store.fleet.redis.connected ? "; redis is gone, serving goes on from memory" : "";
    const devices = store.totals.agents ? plural(store.totals.agents, "device") : "no device is connected";
    setText(this.note, `${devices}${here}${more}${redis}${asOf(store)}`);
  }
}

// A card: title, health [state, words], lines of text, bars [name, share, words], and members [name, words].

function device(agent, now) {
  const lines = [];
  const models = agent.models.join(", ");
  const parts = [agent.mode && `mode ${agent.mode}`, agent.drafts.length && `drafts with ${agent.drafts[0]}`, agent.version && `version ${agent.version}`, `here for ${span(now / 1000 - agent.since)}`];
  lines.push(models, parts.filter(Boolean).join(" · "));
  if (!agent.tells) lines.push("It says nothing of its work: it is of an older release, or has just come.");
  if (agent.lost_marks) lines.push(`${count(agent.lost_marks)} chunks or rounds too many to be told`);
  if (agent.restored) lines.push(`${plural(agent.restored, "session")} brought back to a cloud so far`);
  const members = [];
  if (agent.group) {
    const { name, mode, epoch, why } = agent.group;
    lines.push(`group ${name}, ${mode}, plan ${epoch}${why ? `: ${why}` : ""}`);
    for (const member of agent.group.members) {
      const does = [member.state, member.layers && `layers ${member.layers}`, member.heads && `heads ${member.heads}`, member.step_ms && `${ms(member.step_ms)} a step`, member.why];
      members.push([member.name, does.filter(Boolean).join(", ")]);
    }
  }
  for (const wire of agent.wires) {
    if (wire.to !== "members") members.push([`cloud ${wire.to}`, wire.state + (wire.rtt_ms === null ? "" : `, ${ms(wire.rtt_ms)} away`)]);
  }
  const bars = [["answers", agent.capacity ? agent.running / agent.capacity : 0, `${count(agent.running)} of ${count(agent.capacity)}`]];
  if (agent.proposed) bars.push(["drafts kept", agent.accepted / agent.proposed, percent(agent.accepted, agent.proposed)]);
  return { title: agent.name, kind: "device", health: health(agent), lines, bars, members };
}

const CLOUDS = { draining: "stops soon", refused: "refuses it" };

function health(agent) {
  if (agent.draining) return ["warn", "stops soon"];
  if (agent.cloud === false) return ["bad", agent.group ? "its group is not formed" : "no cloud"];
  if (agent.group && !agent.group.formed) return ["warn", "its group is being formed"];
  const { state } = agent.wires.find((wire) => wire.state !== "ready") ?? {};
  if (state) return ["warn", `one of its clouds ${CLOUDS[state] ?? `is ${state}`}`];
  return ["good", "well"];
}

function cloudCard(store, cloud) {
  const lines = [];
  const bars = [];
  if (cloud.figures) {
    const { version, sessions, parked, waiting_rows, most_rows, devices, pages, pages_used } = cloud.figures;
    const { busy, rows } = load(store, cloud);
    lines.push(`version ${version} · ${plural(devices, "device")} · ${count(sessions)} sessions open, ${count(parked)} kept`);
    lines.push(`${rate(rows)} rows a step, ${count(most_rows)} at most; ${count(waiting_rows)} wait`);
    bars.push(["in steps", busy, percent(busy, 1)]);
    bars.push(["KV pages", pages ? pages_used / pages : 0, `${count(pages_used)} of ${count(pages)}`]);
  } else {
    lines.push("Nothing is known of its load.");
  }
  const { states } = cloud;
  const well = states.every((state) => state === "ready");
  const worst = states.includes("ready") ? "warn" : "bad";
  const words = well ? "well" : states.find((state) => state !== "ready");
  return { title: cloud.name, kind: "cloud", health: [well ? "good" : worst, words], lines, bars, members: [] };
}

function gatewayCard({ url, waiting, agents, more_agents: more }) {
  const lines = [`${plural(waiting, "request")} waiting`];
  if (more) lines.push(`${count(more)} more of its devices are not shown`);
  const members = agents.map((each) => {
    const { name, mode, formed } = each.group ?? {};
    const group = name && `group ${name}, ${mode}${formed ? "" : ", not formed"}`;
    const does = [`${count(each.running)} of ${count(each.capacity)}`, ...each.models, group, ...hindrances(each)];
    return [each.name, does.filter(Boolean).join(", ")];
  });
  return { title: url, kind: "gateway", health: gatewayHealth(agents), lines, bars: [], members };
}

function gatewayHealth(agents) {
  const well = agents.filter((each) => !hindrances(each).length).length;
  if (!agents.length) return ["warn", "no device is connected to it"];
  if (!well) return ["bad", "none of its devices can answer"];
  return well === agents.length ? ["good", "well"] : ["warn", `${count(well)} of its ${count(agents.length)} devices can answer`];
}

// Why another gateway's device answers nothing new, or nothing at all.
function hindrances({ draining, cloud_connected: cloud, group }) {
  return [draining && "stops soon", cloud === false && (group ? "waits for its group" : "no cloud")].filter(Boolean);
}

class Card {
  constructor() {
    this.kind = el("small");
    this.name = el("span");
    this.title = el("h3", {}, this.kind, " ", this.name);
    this.health = el("span", { class: "health" });
    this.lines = el("div");
    this.bars = el("div");
    this.members = el("ul", { class: "members" });
    this.root = el("li", { class: "card" }, el("div", { class: "head" }, this.title, this.health), this.lines, this.bars, this.members);
    this.lineParts = new Keyed(this.lines, () => new Line());
    this.barParts = new Keyed(this.bars, ([name]) => new Bar(name));
    this.memberParts = new Keyed(this.members, () => new Member());
  }

  update({ title, kind, health: [state, words], lines, bars, members }) {
    setText(this.kind, kind);
    setText(this.name, title);
    setAttribute(this.health, "data-state", state);
    setText(this.health, words);
    this.lineParts.show(lines.filter(Boolean).map((line, at) => [at, line]));
    this.barParts.show(bars.map((bar) => [bar[0], bar]));
    const names = numbered(members.map(([name]) => name)); // A device may have two connections to one address.
    this.memberParts.show(members.map(([, does], at) => [names[at], [names[at], does]]));
    this.members.hidden = !members.length;
  }
}

class Line {
  constructor() {
    this.root = el("p");
  }

  update(text) {
    setText(this.root, text);
  }
}

class Bar {
  constructor(name) {
    this.fill = el("div", { class: "fill" });
    this.words = el("span");
    this.track = el("div", { class: "track", role: "meter", "aria-label": name, "aria-valuemin": "0", "aria-valuemax": "100" }, this.fill);
    this.root = el("div", { class: "bar" }, el("span", { text: name }), this.track, this.words);
  }

  update([, share, words]) {
    const shown = String(Math.round(100 * Math.min(1, share)));
    if (this.shown !== shown) {
      this.shown = shown;
      this.fill.style.width = `${shown}%`;
      setAttribute(this.track, "aria-valuenow", shown);
      setAttribute(this.track, "aria-valuetext", words);
    }
    setText(this.words, words);
  }
}

class Member {
  constructor() {
    this.name = el("span");
    this.words = el("span", { class: "soft" });
    this.root = el("li", {}, this.name, this.words);
  }

  update([name, words]) {
    setText(this.name, name);
    setText(this.words, words);
  }
}
