// What is kept of the page: a link, and a file with what is on screen.

class Keeper {
  // `state` is the page's; `asker` has the file made.
  constructor(state, asker) {
    Object.assign(this, { state, asker });
    document.getElementById("save").addEventListener("click", () => this.save().catch((error) => this.say(error.message)));
    document.getElementById("link").addEventListener("click", () => this.copyLink());
  }

  say(line) {
    document.getElementById("kept").textContent = line;
  }

  async copyLink() {
    try {
      await navigator.clipboard.writeText(location.origin + location.pathname + location.hash); // without a token
      this.say("Copied.");
    } catch {
      this.say("The address of this page is the link.");
    }
  }

  async save() {
    download("normscope.html", "text/html", await this.asker.saved(this.state.asked));
    this.say("Saved.");
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
