// What is known: the gateway's last word on everything, and a little of what was before.

export const WINDOW_MS = 20_000; // of the timeline
const RATE_MS = 4_000; // over which rates are means
const OVER_MS = 4_000; // for which a request that is over is still shown
const MAX_MARKS = 2000; // of one request: a hundred rounds a second
const MAX_ALL_MARKS = 60_000; // of all, each of which may have as many
const MAX_INCIDENTS = 200; // a gateway keeps 100 of what concerns everybody, and as many others
const HISTORY = 60;
const STALE_MS = 60_000; // after which a rate that nobody has asked for is forgotten

export class Store {
  constructor() {
    this.live = false; // What is known is what the gateway does now.
    this.operator = false;
    this.totals = null;
    this.fleet = null; // What is told of other gateways, where there are any.
    this.agents = new Map();
    this.requests = new Map();
    this.incidents = new Map();
    this.rates = new Map();
    this.history = new Map();
    this.pruned = 0;
  }

  // Other gateways: any of them may be sent what this one is asked.
  get peers() {
    return this.fleet?.gateways ?? [];
  }

  get now() {
    return this.totals ? this.totals.at : 0;
  }

  take(name, data) {
    this.live = true;
    this.operator = data.operator;
    this.totals = data.totals;
    if (data.fleet !== undefined) this.fleet = data.fleet;
    const now = this.now;
    if (name === "whole") this.startOver(data);
    for (const agent of data.agents ?? []) this.agents.set(agent.id, agent);
    for (const id of data.agents_gone ?? []) this.agents.delete(id);
    for (const request of data.requests ?? []) this.request(request, name === "whole" ? now : 0);
    for (const id of data.requests_gone ?? []) {
      const request = this.requests.get(id);
      if (request) request.over = now;
    }
    for (const id of data.requests_hidden ?? []) this.requests.delete(id); // It goes on, and others are shown.
    for (const [id, kind, end, took, rows, accepted] of data.marks ?? []) {
      this.requests.get(id)?.marks.push({ kind, end, took, rows, accepted });
    }
    for (const incident of data.incidents ?? []) this.incident(incident);
    this.forget(now);
  }

  // Perhaps another gateway tells it, whose sums are others.
  startOver(data) {
    const there = new Set(data.requests.map((request) => request.id));
    this.agents.clear();
    this.incidents.clear();
    this.rates.clear();
    for (const [id, request] of this.requests) {
      if (!there.has(id)) request.over ??= this.now;
      request.since = this.now; // What came since the last word is not told.
    }
  }

  // from: since when all marks of it are told, where it is new here.
  request(told, from) {
    const known = this.requests.get(told.id);
    const { marks, since } = known ?? { marks: [], since: from }; // Since then all marks are kept.
    this.requests.set(told.id, { ...told, marks, since, over: null });
  }

  incident(told) {
    this.incidents.delete(told.id);
    this.incidents.set(told.id, told);
    while (this.incidents.size > MAX_INCIDENTS) this.incidents.delete(this.incidents.keys().next().value);
  }

  // What is long past. A gateway's clock may be set back: what was then to come is as far away as what is past.
  forget(now) {
    for (const [id, request] of this.requests) {
      if (request.over !== null && Math.abs(now - request.over) > OVER_MS) {
        this.requests.delete(id);
        this.rates.delete(`tokens ${id}`);
        continue;
      }
      const { marks } = request;
      const most = Math.min(MAX_MARKS, Math.floor(MAX_ALL_MARKS / this.requests.size));
      let old = Math.max(0, marks.length - most);
      if (old) request.since = marks[old - 1].end;
      while (old < marks.length && Math.abs(now - marks[old].end) > WINDOW_MS) old += 1;
      if (old) marks.splice(0, old);
    }
    if (Math.abs(now - this.pruned) < STALE_MS) return;
    this.pruned = now;
    for (const [name, seen] of this.rates) {
      if (Math.abs(now - seen.at(-1)[0]) > STALE_MS) this.rates.delete(name);
    }
  }

  // How fast a number that only grows is growing, a second. It begins again where it, or the time, has become less.
  rate(name, number) {
    const now = this.now;
    let seen = this.rates.get(name);
    if (!seen || number < seen.at(-1)[1] || now < seen.at(-1)[0]) this.rates.set(name, (seen = []));
    if (!seen.length || seen.at(-1)[0] !== now) seen.push([now, number]);
    while (seen.length > 2 && now - seen[1][0] >= RATE_MS) seen.shift();
    const [at, first] = seen[0];
    return now > at ? ((number - first) * 1000) / (now - at) : 0;
  }

  // The last values of a figure, once for each time that something was told, however often it is drawn.
  remember(name, number) {
    let known = this.history.get(name);
    if (!known) this.history.set(name, (known = { at: null, seen: [] }));
    const { at, seen } = known;
    if (at === this.now) return seen;
    known.at = this.now;
    seen.push(number);
    if (seen.length > HISTORY) seen.shift();
    return seen;
  }

  // The clouds that devices are connected to. Many may stand behind one address, so they go by the names that they have made
  // up. Who has said none is the one of its address; where many are known there it can be any of them, and is left out.
  clouds() {
    const wires = [...this.agents.values()].flatMap((agent) => agent.wires).filter((wire) => wire.to !== "members");
    const known = new Map();
    for (const { to, cloud } of wires) {
      if (!known.has(to)) known.set(to, new Set());
      if (cloud?.id) known.get(to).add(cloud.id);
    }
    const found = new Map();
    for (const { to, state, cloud: figures } of wires) {
      const many = known.get(to).size > 1;
      if (many && !figures?.id) continue;
      const id = figures?.id || [...known.get(to)][0] || to;
      const cloud = found.get(id) ?? { id, name: many ? `${to} ${id}` : to, figures: null, states: [] };
      cloud.states.push(state);
      if (figures && (!cloud.figures || figures.steps >= cloud.figures.steps)) cloud.figures = figures;
      found.set(id, cloud);
    }
    return [...found.values()];
  }
}
