// Making and keeping elements. Text goes in as text alone, never as markup.

export function el(tag, props = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name === "text") made.textContent = value;
    else if (name === "class") made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

export const byId = (id) => document.getElementById(id);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

// The children of a parent, one for each item by its key: those that stay are kept, and so is their order.
export class Keyed {
  constructor(parent, create) {
    this.parent = parent;
    this.create = create;
    this.parts = new Map();
  }

  show(items) {
    const there = new Set(items.map(([key]) => key));
    for (const [key, part] of this.parts) {
      if (there.has(key)) continue;
      part.root.remove();
      this.parts.delete(key);
    }
    let place = this.parent.firstElementChild;
    for (const [key, item] of items) {
      let part = this.parts.get(key);
      if (!part) this.parts.set(key, (part = this.create(item)));
      if (part.root === place) place = place.nextElementSibling;
      else this.parent.insertBefore(part.root, place);
      part.update(item);
    }
  }
}

// Colours as canvases need them: of the theme that holds now.
const probe = el("span", { class: "away", "aria-hidden": "true" });
let colours = new Map();

export function colour(name) {
  if (!colours.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(--${name})`;
    colours.set(name, getComputedStyle(probe).color);
  }
  return colours.get(name);
}

export function forgetColours() {
  colours = new Map();
}

// A canvas cleared and scaled for this screen: its context, width and height in CSS pixels. None while it is not shown.
export function cleared(canvas, size = { width: canvas.clientWidth, height: canvas.clientHeight }) {
  const { width, height } = size;
  if (!width || !height) return null;
  const scale = window.devicePixelRatio || 1;
  const context = canvas.getContext("2d");
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}
