// What the browser keeps for the page. Where it is told to keep nothing, even to ask it is an error: then the page keeps
// it itself, until it is left.

export class Kept {
  // where: "localStorage" or "sessionStorage".
  constructor(where) {
    this.where = where;
    this.own = new Map();
  }

  get(name) {
    if (this.own.has(name)) return this.own.get(name);
    return this.tried((storage) => storage.getItem(name));
  }

  set(name, value) {
    this.own.set(name, value);
    this.tried((storage) => storage.setItem(name, value));
  }

  forget(name) {
    this.own.delete(name);
    this.tried((storage) => storage.removeItem(name));
  }

  tried(use) {
    try {
      return use(window[this.where]);
    } catch {
      return null;
    }
  }
}
