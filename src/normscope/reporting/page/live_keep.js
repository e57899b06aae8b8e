// What is kept of the page: a file with what is on screen, a link, and code that makes the same numbers.

class Keeper {
  // `state` is the page's; `asker` knows the answers on screen.
  constructor(state, asker) {
    Object.assign(this, { state, asker });
    this.snippets = document.getElementById("snippets");
    this.snippets.addEventListener("toggle", () => this.update());
    document.getElementById("save").addEventListener("click", () => this.save().catch((error) => this.say(error.message)));
    document.getElementById("link").addEventListener("click", () => this.copyLink());
    mountCopyButtons();
  }

  say(line) {
    document.getElementById("kept").textContent = line;
  }

  // Code is asked for only while it is seen.
  async update() {
    this.say("");
    document.getElementById("code").hidden = false;
    if (!this.snippets.open) return;
    try {
      const { python, command } = await this.asker.ask("code", 0, this.state.asked);
      document.getElementById("as-python").textContent = python;
      document.getElementById("as-command").textContent = command;
      document.getElementById("of-command").hidden = !command;
    } catch (error) {
      if (!(error instanceof Outdated)) document.getElementById("as-python").textContent = `# ${error.message}`;
    }
  }

  async copyLink() {
    try {
      await navigator.clipboard.writeText(location.origin + location.pathname + location.hash); // without a token
      this.say("Copied.");
    } catch {
      this.say("The address of this page is the link.");
    }
  }

  // This page with the answers that it shows, in one file that asks nobody.
  async save() {
    const page = await (await fetch(location.pathname + location.search)).text();
    const shown = ([slot]) => !/^(code|examples)/.test(slot) && (this.state.isPaired || !/ 1$|^pair/.test(slot)) && (this.state.has("through") || !/^(chained|carried)/.test(slot));
    const answers = Object.fromEntries([...this.asker.answers].filter(shown));
    const saved = JSON.stringify({ state: this.state.values.toString(), answers, when: new Date().toISOString().slice(0, 10) }).replaceAll("<", "\\u003c");
    const held = page.replace("; connect-src 'self'", "").replace('id="saved">null', () => `id="saved">${saved}`);
    download("normscope.html", "text/html", held);
  }
}

// Stands for the server on a page that was saved.
class SavedAnswers {
  constructor({ answers }) {
    this.answers = new Map(Object.entries(answers));
  }

  next() {}

  async ask(part, side) {
    const answer = this.answers.get(`${part} ${side}`);
    if (answer === undefined) throw new Error(`This file does not hold this (${part}).`);
    return JSON.parse(answer);
  }
}
