// Light, dark, or as the system has it.

import { byId, forgetColours, setText } from "./dom.js";

const NAME = "trilby.theme";
const ORDER = ["auto", "light", "dark"];

// changed(): colours are others now.
export function setUpTheme(changed) {
  const button = byId("theme");
  let theme = ORDER.includes(localStorage.getItem(NAME)) ? localStorage.getItem(NAME) : "auto";

  function use(next) {
    theme = next;
    document.documentElement.dataset.theme = theme;
    localStorage.setItem(NAME, theme);
    setText(button, `Theme: ${theme}`);
    forgetColours();
    changed();
  }

  button.addEventListener("click", () => use(ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length]));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => use(theme));
  use(theme);
}
