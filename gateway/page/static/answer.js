// One answer as it comes: each token with where it came from, and at the end where its time went.

import { el, setText } from "./dom.js";
import { ms, percent, plural } from "./words.js";

const PHASES = ["device", "link", "queue", "step"];
const WHERE = { device: "on the device", link: "on the link", queue: "waiting in the cloud", step: "in the cloud's steps" };

export class Answer {
  // tell(words): shows what there is to say of a token.
  constructor(id, tell) {
    this.id = id;
    this.tell = tell;
    this.text = "";
    this.tokens = []; // [element, origins, number of the first]
    this.count = 0;
    this.rounds = new Map(); // by number: its first token's origin
    this.agent = null;
    this.began = performance.now();
    this.first = null;
    this.here = -1;
    this.body = el("div", { class: "text", tabindex: "0", role: "group", "aria-label": "Answer; the arrow keys walk through its tokens" });
    this.sum = el("p", { class: "sum" });
    this.time = el("div", { class: "time", role: "img", "aria-label": "" });
    this.time.hidden = true;
    this.split = el("ul", { class: "legend", "aria-label": "Where the time went" });
    this.split.hidden = true;
    this.root = el("article", { class: "said" }, el("p", { class: "who", text: "Model" }), this.body, this.time, this.split, this.sum);
    this.body.addEventListener("pointerover", (event) => this.show(this.tokens.findIndex(([part]) => part === event.target)));
    this.body.addEventListener("keydown", (event) => this.walk(event));
  }

  // More of it: text that is thought or said, and the origins of the tokens that are new.
  add(text, origins, thought = false) {
    for (const origin of origins) {
      if (!this.rounds.has(origin.round)) this.rounds.set(origin.round, origin);
    }
    if (text || origins.length) this.first ??= performance.now() - this.began;
    if (text) {
      const part = el("span", { class: `tok ${kindOf(origins)}${thought ? " thought" : ""}`, text });
      this.tokens.push([part, origins, this.count + 1]);
      this.body.append(part);
      if (!thought) this.text += text;
    }
    this.count += origins.length;
  }

  fail(words) {
    this.sum.className = "sum wrong";
    setText(this.sum, words);
  }

  // All is there, or it was stopped.
  end({ usage, stopped }) {
    const tokens = usage?.completion_tokens ?? this.count;
    const took = performance.now() - this.began;
    const behind = took - (this.first ?? took);
    const said = [plural(tokens, "token")];
    const details = usage?.completion_tokens_details;
    if (this.rounds.size > 1) said[0] += ` in ${plural(this.rounds.size - 1, "round")} behind the prompt`;
    if (details) {
      const drafted = details.accepted_prediction_tokens + details.rejected_prediction_tokens;
      said.push(`${percent(details.accepted_prediction_tokens, drafted)} of ${drafted} drafted kept`);
    }
    if (this.first !== null) said.push(`first after ${ms(this.first)}`);
    if (tokens > 1 && behind > 0) said.push(`${((tokens - 1) / (behind / 1000)).toFixed(1)} a second`);
    if (!this.count && tokens) said.push("this device does not say where tokens come from");
    if (stopped) said.push("stopped");
    setText(this.sum, said.join(" · "));
    this.showTime();
  }

  showTime() {
    const spent = Object.fromEntries(PHASES.map((phase) => [phase, 0]));
    let took = 0;
    for (const { took_ms, timings } of this.rounds.values()) {
      took += took_ms ?? 0;
      for (const phase of PHASES) spent[phase] += timings?.[`${phase}_ms`] ?? 0;
    }
    const told = PHASES.reduce((all, phase) => all + spent[phase], 0);
    if (!told) spent.whole = took; // Without a cloud there is nothing to tell apart.
    const whole = Math.max(took, told);
    if (!whole) return;
    const parts = told ? PHASES : ["whole"];
    const words = (part) => `${ms(spent[part])} ${WHERE[part] ?? this.place()}`;
    for (const name of parts) {
      const part = el("i", { class: name });
      part.style.width = `${(100 * spent[name]) / whole}%`;
      this.time.append(part);
      this.split.append(el("li", {}, el("i", { class: `sw ${name}` }), ` ${words(name)}`));
    }
    if (told && whole - told > 1) this.split.append(el("li", { text: `${ms(whole - told)} before and between` }));
    this.time.setAttribute("aria-label", parts.map(words).join(", "));
    this.time.hidden = this.split.hidden = false;
  }

  // Where all of it was computed, where no cloud had part in it.
  place() {
    if (this.agent?.group) return "in the group";
    return this.agent?.mode === "local" ? "on the device" : "in rounds, nobody says where";
  }

  walk(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step || !this.tokens.length) return;
    event.preventDefault();
    this.show(Math.min(this.tokens.length - 1, Math.max(0, this.here + step)));
    this.tokens[this.here][0].scrollIntoView({ block: "nearest" });
  }

  show(at) {
    if (at < 0) return;
    this.tokens[this.here]?.[0].classList.remove("here");
    this.here = at;
    const [part, origins, number] = this.tokens[at];
    part.classList.add("here");
    this.tell(this.wordsOf(origins, number));
  }

  wordsOf(origins, number) {
    if (!origins.length) return "Nothing is known of where this came from.";
    const several = origins.length > 1 ? `Tokens ${number} to ${number + origins.length - 1}` : `Token ${number}`;
    const by = this.agent?.mode ? ` by ${this.agent.mode}` : "";
    const mode = this.agent ? `${by} on ${this.agent.name}` : "";
    const drafters = [...new Set(origins.filter((origin) => origin.drafter).map((origin) => origin.drafter))];
    const came = drafters.length ? `drafted by ${drafters.join(" and ")}, verified${mode}` : `the model's own word${mode ? `, chosen${mode}` : ""}`;
    const { round } = origins.at(-1);
    const { took_ms, timings } = this.rounds.get(round) ?? {};
    const where = timings ? `: ${PHASES.map((phase) => `${phase} ${ms(timings[`${phase}_ms`])}`).join(", ")}` : "";
    const name = round ? `Round ${round}` : "The prompt";
    return `${several}: ${came}. ${name} took ${ms(took_ms)}${where}.`;
  }
}

function kindOf(origins) {
  if (!origins.length) return "";
  return origins.every((origin) => origin.drafter) ? "drafted" : "own";
}
