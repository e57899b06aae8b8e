// What the live page keeps in its address, and how it asks its server.

// The values after "#": everything that a link needs to show the same.
class LiveState {
  // `saved` is what the address says where it says nothing.
  constructor(saved = "") {
    this.saved = saved;
    this.read();
  }

  read() {
    this.values = new URLSearchParams(location.hash.slice(1) || this.saved);
  }

  get(name) {
    return this.values.get(name) ?? "";
  }

  has(name) {
    return this.values.has(name);
  }

  // Values that are empty or undefined are left out; `before` may be empty.
  set(changes) {
    for (const [name, value] of Object.entries(changes)) {
      if (value === undefined || (value === "" && name !== "before")) this.values.delete(name);
      else this.values.set(name, value);
    }
    history.replaceState(null, "", `${location.pathname}${location.search}#${this.values}`);
  }

  // What the explorer keeps, in place of what it kept before.
  setView(kept) {
    for (const name of VIEW) this.values.delete(name);
    this.set(Object.fromEntries(kept));
  }

  // Whether the reader has chosen what the explorer shows.
  get hasView() {
    return VIEW.some((name) => this.has(name));
  }

  get asked() {
    return Object.fromEntries(this.values);
  }

  // Whether there is anything to compare with.
  get isPaired() {
    return (this.has("before") && this.get("before") !== this.get("text")) ||
      (this.has("compare") && this.get("compare") !== (this.get("model") || "1"));
  }
}

const VIEW = ["sentence", "layer", "head", "measure", "minus", "scale", "token", "log", "hideSelf", "words"];

// An answer that is not needed any more.
class Outdated extends Error {}

// Asks the server. Once the page has a newer state, it no longer needs what older ones are waiting for; the server stops computing
// it.
class Asker {
  constructor() {
    this.tab = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, "0")).join("");
    this.round = 0;
    this.waiting = new Map();
    this.token = new URLSearchParams(location.search).get("token");
  }

  // The page has a new state.
  next() {
    this.round++;
    for (const controller of this.waiting.values()) controller.abort();
  }

  async ask(part, side, state) {
    const slot = `${part} ${side}`;
    this.waiting.get(slot)?.abort();
    const controller = new AbortController();
    this.waiting.set(slot, controller);
    try {
      const response = await this.post("answer", { part, side, state, tab: this.tab, number: this.round }, controller.signal);
      const answer = await response.json();
      if (answer.outdated) throw new Outdated();
      if (answer.error) throw new Error(answer.error);
      return answer;
    } catch (error) {
      if (error.name === "AbortError") throw new Outdated();
      throw error;
    } finally {
      if (this.waiting.get(slot) === controller) this.waiting.delete(slot);
    }
  }

  // The page as it shows a state, in one file that needs no server.
  async saved(state) {
    const response = await this.post("saved", { state });
    if (response.ok) return response.text();
    throw new Error((await response.json()).error ?? "The server stops.");
  }

  async post(where, body, signal) {
    const headers = { "Content-Type": "application/json", ...(this.token && { "X-Normscope-Token": this.token }) };
    try {
      return await fetch(where, { method: "POST", headers, body: JSON.stringify(body), signal });
    } catch (error) {
      throw error instanceof TypeError ? new Error("The server does not answer. Is it still running?") : error;
    }
  }
}

// A bar at the top of the page while something takes longer than a blink.
class Progress {
  constructor(node) {
    Object.assign(this, { node, running: 0 });
  }

  async during(promise) {
    this.running++;
    const timer = setTimeout(() => { this.node.hidden = !this.running; }, 300);
    try {
      return await promise;
    } finally {
      clearTimeout(timer);
      this.running--;
      if (!this.running) this.node.hidden = true;
    }
  }
}
