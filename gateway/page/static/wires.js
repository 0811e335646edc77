// Bytes on each wire, and what went wrong.

import { el, Keyed, setText } from "./dom.js";
import { bytes, clock, ms, numbered } from "./words.js";

export class Wires {
  constructor(body) {
    this.rows = new Keyed(body, () => new WireRow());
  }

  show(store) {
    this.rows.show(wires(store).map((wire) => [wire.key, { wire, store }]));
  }
}

function wires(store) {
  const { totals } = store;
  const found = [{ key: "clients", name: "gateway – clients", out: totals.client_sent_bytes, back: totals.client_received_bytes, rtt: null }];
  if (store.peers.length) {
    found.push({ key: "gateways", name: "gateway – gateways that ask it", out: totals.gateway_sent_bytes, back: totals.gateway_received_bytes, rtt: null });
  }
  for (const agent of store.agents.values()) {
    found.push({ key: agent.id, name: `gateway – ${agent.name}`, out: agent.sent_bytes, back: agent.received_bytes, rtt: agent.rtt_ms, waits: agent.waiting_bytes });
    const ends = numbered(agent.wires.map((wire) => (wire.to === "members" ? "its group" : wire.to)));
    agent.wires.forEach((wire, at) => {
      found.push({ key: `${agent.id} ${ends[at]}`, name: `${agent.name} – ${ends[at]}`, out: wire.sent_bytes, back: wire.received_bytes, rtt: wire.rtt_ms });
    });
  }
  return found;
}

class WireRow {
  constructor() {
    this.cells = ["", "num", "num", "num"].map((name) => el("td", { class: name }));
    this.root = el("tr", {}, ...this.cells);
  }

  update({ wire, store }) {
    const [name, out, back, rtt] = this.cells;
    setText(name, wire.name);
    const waits = wire.waits ? ` · ${bytes(wire.waits)} wait` : "";
    setText(out, `${bytes(store.rate(`out ${wire.key}`, wire.out))}/s · ${bytes(wire.out)}` + waits);
    setText(back, `${bytes(store.rate(`back ${wire.key}`, wire.back))}/s · ${bytes(wire.back)}`);
    setText(rtt, ms(wire.rtt));
  }
}

const KINDS = {
  device_lost: "device gone",
  device_timeout: "device silent",
  device_draining: "device stopped",
  cloud_lost: "cloud out of reach",
  cloud_back: "cloud back",
  gateway_lost: "gateway out of reach",
  group_lost: "group broken",
  group_back: "group formed again",
  member_lost: "member gone",
  member_slow: "member left out: slow",
  sessions_restored: "sessions brought back",
  redis_lost: "redis gone",
  redis_back: "redis back",
};

export class Failures {
  constructor(list) {
    this.list = list;
    this.items = new Keyed(list, () => new Failure());
    this.none = el("li", { class: "empty", text: "Nothing, as far as this page has heard." });
  }

  show(store) {
    const newest = [...store.incidents.values()].reverse();
    this.items.show(newest.map((incident) => [incident.id, incident]));
    if (newest.length) this.none.remove();
    else if (!this.none.isConnected) this.list.append(this.none);
  }
}

class Failure {
  constructor() {
    this.time = el("time");
    this.what = el("b");
    this.done = el("span");
    this.root = el("li", {}, this.time, this.what, this.done);
  }

  update({ at, kind, who, done, times }) {
    setText(this.time, clock(at));
    const words = KINDS[kind] ?? kind.replaceAll("_", " ");
    setText(this.what, `${words}${who ? `: ${who}` : ""}${times > 1 ? ` (${times} times)` : ""}`);
    setText(this.done, done);
  }
}
