// The stream of what the gateway tells: read with fetch, since a browser's EventSource can show no key.

const FIRST_WAIT_MS = 500;
const LONGEST_WAIT_MS = 10_000;
const SILENT_MS = 15_000;

export class Feed {
  // told(name, data): an event; lost(word, text): nothing is told, and how bad that is; refused(why): a key is needed.
  constructor({ key, told, lost, refused }) {
    Object.assign(this, { key, told, lost, refused });
    this.round = 0;
    this.abort = null; // Of the stream that is read, or of the one before it.
    this.paused = false;
  }

  // Begin anew, with the key that there is now.
  start() {
    this.round += 1;
    this.paused = false;
    this.abort?.abort();
    this.run(this.round);
  }

  // Nobody looks: the connection is free for others, and nothing is gathered for it.
  pause() {
    if (!this.abort) return;
    this.paused = true;
    this.round += 1;
    this.abort.abort();
    this.lost("waits", "not told while nobody looked");
  }

  resume() {
    if (this.paused) this.start();
  }

  async run(round) {
    let wait = FIRST_WAIT_MS;
    while (round === this.round) {
      const abort = (this.abort = new AbortController());
      try {
        const asked = fetch("page/events", { headers: headersOf(this.key()), signal: abort.signal, cache: "no-store" });
        const answer = await soon(asked, abort);
        if (answer.status === 401) return this.needsKey("This gateway does not know that key.");
        if (!answer.ok) throw new Error(await soon(reasonOf(answer), abort));
        const why = await this.read(answer.body.getReader(), abort, () => (wait = FIRST_WAIT_MS));
        if (why === "key") return this.needsKey();
        if (round === this.round && why !== "again") this.lost("warns", "the gateway has ended the stream; trying again");
      } catch (error) {
        if (round !== this.round) return;
        this.lost("fails", `${error.name === "Error" ? error.message : "no connection"}; trying again`);
      }
      await new Promise((done) => setTimeout(done, wait));
      wait = Math.min(2 * wait, LONGEST_WAIT_MS);
    }
  }

  needsKey(why = "") {
    this.abort = null;
    this.lost("fails", "a key is needed");
    this.refused(why);
  }

  // Gives why the stream ends, where it says so. heard(): something was told, so it was worth asking.
  async read(reader, abort, heard) {
    const decoder = new TextDecoder();
    let rest = "";
    for (;;) {
      const { done, value } = await soon(reader.read(), abort);
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const events = rest.split("\n\n");
      rest = events.pop();
      for (const event of events) {
        const at = event.indexOf("\ndata: ");
        if (at <= 0) continue;
        const name = event.slice("event: ".length, at);
        if (name === "key" || name === "again") return name;
        this.told(name, JSON.parse(event.slice(at + "\ndata: ".length)));
        heard();
      }
    }
  }
}

// What is asked of the gateway, given up where nothing comes for too long: so headers may be late as well as what follows.
function soon(asked, abort) {
  const silent = setTimeout(() => abort.abort(), SILENT_MS);
  return asked.finally(() => clearTimeout(silent));
}

export function headersOf(key) {
  return key ? { Authorization: `Bearer ${key}` } : {};
}

export async function reasonOf(answer) {
  try {
    return (await answer.json()).error.message;
  } catch {
    return `the gateway answers ${answer.status}`;
  }
}
