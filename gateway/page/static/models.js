// The models that the chat may ask: those that the gateway lists for the chat's key, other gateways' among them.

import { headersOf } from "./feed.js";

export class Models {
  // key(operator): the chat's key, empty where it has none; null: an operator's token, which chats with nobody.
  constructor(key) {
    this.key = key;
    this.listed = null;
    this.asked = "";
  }

  // Their names; they are asked for anew where devices, or the key, are others than before. Until the gateway has answered, and
  // where it does not, all that devices here write.
  of(store) {
    const agents = [...store.agents.values()];
    const all = [...agents, ...store.peers.flatMap((peer) => peer.agents)];
    const key = this.key(store.operator);
    const asked = JSON.stringify([key, all.map((agent) => [agent.name, agent.models])]);
    if (asked !== this.asked) {
      this.asked = asked;
      this.ask(asked, key);
    }
    return this.listed ?? [...new Set(agents.flatMap((agent) => agent.writes))];
  }

  async ask(asked, key) {
    const listed = key === null ? null : await this.list(key).catch(() => null);
    if (asked === this.asked) this.listed = listed;
  }

  async list(key) {
    const reply = await fetch("v1/models", { headers: headersOf(key) });
    const { data } = await reply.json();
    return data.filter((model) => model.tasks.includes("generate")).map((model) => model.id);
  }
}
