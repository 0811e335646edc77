// The keys that this tab shows to the gateway, and the window that asks for them. Nothing outlives the tab.

import { byId, setText } from "./dom.js";
import { Kept } from "./kept.js";

const NAMES = { watch: "trilby.key", chat: "trilby.chat-key" };
const WHY = {
  watch: "This gateway asks for a key: one of its API keys shows your own requests, the operator's token all of them.",
  chat: "A chat needs one of the gateway's API keys; the operator's token watches only.",
};
const UNSENDABLE = /[^\x20-\xff]/; // A browser sends no header with such characters, and says only that it has failed.

export class Keys {
  // changed(): another key is there for watching.
  constructor(changed) {
    this.changed = changed;
    this.kept = new Kept("sessionStorage");
    this.kind = "watch";
    this.dialog = byId("ask-key");
    this.text = byId("key-text");
    byId("key").addEventListener("click", () => this.ask("watch"));
    byId("key-close").addEventListener("click", () => this.dialog.close());
    byId("key-forget").addEventListener("click", () => this.forget());
    byId("key-form").addEventListener("submit", (event) => {
      event.preventDefault();
      const key = this.text.value.trim();
      if (!key) this.dialog.close(); // Nothing is forgotten but by the button for that.
      else if (UNSENDABLE.test(key)) this.ask(this.kind, "That cannot be a key: it has characters that no header can have.");
      else this.keep(key);
    });
  }

  get watch() {
    return this.kept.get(NAMES.watch) ?? "";
  }

  get chat() {
    return this.kept.get(NAMES.chat) ?? this.watch;
  }

  ask(kind, why = "") {
    this.kind = kind;
    this.text.value = "";
    setText(byId("key-why"), why ? `${why} ${WHY[kind]}` : WHY[kind]);
    if (!this.dialog.open) this.dialog.showModal();
    this.text.focus();
  }

  // Who shows another key for watching is another, and does not chat with the one of before.
  keep(key) {
    if (this.kind === "watch") this.kept.forget(NAMES.chat);
    this.kept.set(NAMES[this.kind], key);
    this.dialog.close();
    if (this.kind === "watch") this.changed();
  }

  forget() {
    Object.values(NAMES).forEach((name) => this.kept.forget(name));
    this.dialog.close();
    this.changed();
  }
}
