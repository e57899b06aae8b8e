// The texts that were typed before, which the browser remembers.

const REMEMBERED = 20;
const TYPED = "normscope texts"; // the name under which the browser keeps what was typed

class TypedTexts {
  // `onText(text)` hears of a chosen text.
  constructor(root, onText) {
    Object.assign(this, { onText, typed: this.remembered() });
    this.list = make("ol", { className: "texts" });
    root.append(this.list);
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
    const row = (text) => make("li", {}, make("button", { type: "button", title: text, onclick: () => this.onText(text) }, text));
    this.list.replaceChildren(...this.typed.map(row));
  }
}
