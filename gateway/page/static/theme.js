// Light, dark, or as the system has it.

import { byId, forgetColours, setText } from "./dom.js";
import { Kept } from "./kept.js";

const NAME = "trilby.theme";
const ORDER = ["auto", "light", "dark"];

// changed(): colours are others now.
export function setUpTheme(changed) {
  const button = byId("theme");
  const kept = new Kept("localStorage");
  let theme = ORDER.includes(kept.get(NAME)) ? kept.get(NAME) : "auto";

  function use(next) {
    theme = next;
    document.documentElement.dataset.theme = theme;
    kept.set(NAME, theme);
    setText(button, `Theme: ${theme}`);
    forgetColours();
    changed();
  }

  button.addEventListener("click", () => use(ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => use(theme));
  use(theme);
}
