// Other texts: those that were typed, and examples from a corpus, ranked by a number.

const REMEMBERED = 20;
const TYPED = "normscope texts"; // the name under which the browser keeps what was typed

class OtherTexts {
  // `onText(text)` hears of a chosen text, `onRanking(name)` of a chosen ranking.
  constructor(root, rankings, { onText, onRanking }) {
    Object.assign(this, { onText, typed: this.remembered() });
    this.history = make("ol", { className: "texts" });
    this.examples = make("ol", { className: "texts" });
    this.note = make("p", { className: "faint" });
    this.choice = make("select", { name: "examples", "aria-label": "examples", onchange: () => onRanking(this.choice.value || undefined) },
      new Option("…", ""), ...Object.entries(rankings).map(([name, title]) => new Option(title, name)));
    root.append(make("div", { className: "other-texts" }, make("div", {}, make("h3", {}, "Typed before"), this.history),
      make("div", {}, make("h3", {}, "Examples with the ", this.choice), this.note, this.examples)));
    this.draw();
  }

  // What the browser remembers, which anything may have written.
  remembered() {
    try {
      const texts = JSON.parse(localStorage.getItem(TYPED));
      return Array.isArray(texts) ? texts.filter((text) => typeof text === "string").slice(0, REMEMBERED) : [];
    } catch {
      return [];
    }
  }

  // A text that was typed and read: a text that grows by a few letters takes the place of what it was.
  add(text) {
    if (this.typed[0] === text) return;
    const grows = this.typed.length && (text.startsWith(this.typed[0]) || this.typed[0].startsWith(text));
    this.typed = [text, ...(grows ? this.typed.slice(1) : this.typed).filter((each) => each !== text)].slice(0, REMEMBERED);
    try {
      localStorage.setItem(TYPED, JSON.stringify(this.typed));
    } catch { /* the browser keeps nothing */ }
    this.draw();
  }

  draw() {
    this.history.replaceChildren(...this.typed.map((text) => this.row(text)));
  }

  row(text, value) {
    return make("li", {}, make("button", { type: "button", title: text, onclick: () => this.onText(text) }, text), ...(value === undefined ? [] : [make("b", {}, formatPercentage(value))]));
  }

  // The examples of a ranking: `searched` is how many texts were measured.
  show(ranking, { searched, examples } = {}, line = "") {
    this.choice.value = ranking;
    this.note.textContent = line || (searched ? `The first of ${searched} texts, measured over all layers.` : "");
    this.examples.replaceChildren(...(examples ?? []).map(({ text, value }) => this.row(text, value)));
  }
}
