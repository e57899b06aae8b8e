// The text: a box to type in, its tokens below, and what may be done to one of them.

class TextView {
  // `onText(text)` and `onBefore(text)` hear of every change, `onEdit(before, text)` of one to a token, `onPick(at)` of a chosen token.
  constructor(root, { onText, onBefore, onEdit, onPick }) {
    Object.assign(this, { root, onEdit, onPick, chosen: undefined });
    const box = (label, onChange) => {
      const area = make("textarea", { rows: 1, spellcheck: false, "aria-label": label, oninput: () => onChange(area.value) });
      return area;
    };
    this.area = box("text", onText);
    this.other = box("compared with", onBefore);
    this.comparison = make("label", { className: "box", hidden: true }, make("span", {}, "compared with"), this.other);
    this.choices = make("div", { className: "choices" });
    this.tokens = make("div", { className: "tokens", role: "group", "aria-label": "Tokens" });
    this.editor = make("div", { className: "editing", hidden: true });
    this.hint = make("span", {});
    this.chat = false;
    root.replaceChildren(make("label", { className: "box" }, this.hint, this.area),
      this.comparison, this.choices, this.tokens, this.editor);
  }

  set text(text) {
    if (this.area.value !== text) this.area.value = text;
  }

  // Whether the text is a conversation.
  set chat(chat) {
    this.hint.textContent = chat ? "conversation (start each message with system:, user: or assistant:)" : "text (two texts: first ||| second)";
  }

  // The text that is compared; undefined for none.
  set before(text) {
    this.comparison.hidden = text === undefined;
    if (this.other.value !== (text ?? "")) this.other.value = text ?? "";
  }

  // `now` and `before` are answers of the server, the latter if anything is compared.
  show(now, before, { mask }) {
    Object.assign(this, { now, mask });
    const counterparts = before ? aligned(now.tokens, before.tokens) : [];
    // Two texts with little in common are no edit of each other.
    const kept = counterparts.filter((counterpart, at) => before.tokens[counterpart] === now.tokens[at]).length;
    if (2 * kept < now.tokens.length) before = undefined;
    const chips = [];
    let next = 0; // of the tokens before
    now.tokens.forEach((token, at) => {
      const counterpart = counterparts[at];
      if (before && counterpart >= 0) {
        for (; next < counterpart; next++) chips.push(this.gone(before, next));
        next = counterpart + 1;
      }
      if (beginsRole(now.roles, at)) chips.push(make("span", { className: "role" }, now.roles[at]));
      const was = before && before.tokens[counterpart] !== token ? [make("s", {}, before.labels[counterpart] ?? "new")] : [];
      if (was.length && counterpart < 0) was[0] = make("small", {}, "new");
      chips.push(make("button", { type: "button", "data-at": at, className: was.length ? "changed" : "", onclick: () => this.pick(at) }, make("span", {}, now.labels[at]), ...was));
    });
    if (before) for (; next < before.tokens.length; next++) chips.push(this.gone(before, next));
    this.tokens.replaceChildren(...chips);
    this.colour();
    this.close();
  }

  gone({ labels, tokens }, at) {
    return make("button", { type: "button", className: "gone", disabled: true, title: `deleted: ${tokens[at]}` }, make("s", {}, labels[at]));
  }

  // Colours tokens by scores on a diverging scale; without scores, not at all. `first` is what the first position of a causal model
  // adds whatever the word in it: it stands before the tokens, on their scale, and sets no end of it.
  colour(scores, first) {
    if (scores !== undefined) Object.assign(this, { scores, first });
    const largest = Math.max(0, ...(this.scores ?? []).map(Math.abs)) || 1;
    const colours = palette(this.root, "--diverging");
    if (!this.now) return;
    const known = this.scores?.length === this.now.tokens.length;
    const paint = (chip, value) => {
      const channels = value === undefined ? undefined : colours(0.5 + 0.33 * Math.max(-1, Math.min(1, value / largest)));
      chip.style.background = channels ? `rgb(${channels})` : "";
      chip.style.color = channels ? readableOn(channels) : "";
      const token = this.now.tokens[chip.dataset.at];
      chip.title = value === undefined ? token : `${token} adds ${formatNumber(value, true)}`;
    };
    for (const chip of this.tokens.querySelectorAll("[data-at]")) paint(chip, known ? this.scores[chip.dataset.at] : undefined);
    this.tokens.querySelector(".position")?.remove();
    if (!known || !this.first) return;
    const row = make("span", { className: "position" }, `${this.first.name}: ${formatNumber(this.first.value, true)}`);
    paint(row, this.first.value);
    row.title = this.first.said;
    this.tokens.prepend(row);
  }

  // Offers what may be done to a token, unless the tokenizer does not say where it lies.
  pick(at) {
    this.onPick(at);
    this.close();
    const { text, places: { [at]: place } } = this.now; // as they are now: another answer may come while the reader types
    if (!place || this.frozen) return;
    const replace = (word) => this.replace(text, place, word);
    this.chosen = at;
    this.tokens.querySelector(`[data-at="${at}"]`)?.setAttribute("aria-expanded", "true");
    const input = make("input", { type: "text", "aria-label": "replace with", placeholder: "another word", onkeydown: (event) => {
      if (event.key === "Enter") replace(input.value);
      if (event.key === "Escape") this.close();
    } });
    const button = (text, action) => make("button", { type: "button", onclick: action }, text);
    this.editor.replaceChildren(make("b", {}, sliced(text, ...place)), input, button("Replace", () => replace(input.value)),
      ...(this.mask ? [button("Mask", () => replace(this.mask))] : []), button("Delete", () => replace("")), button("Close", () => this.close()));
    this.editor.hidden = false;
    input.focus({ preventScroll: true });
  }

  close() {
    this.editor.hidden = true;
    this.tokens.querySelector("[aria-expanded]")?.removeAttribute("aria-expanded");
  }

  // A text with other characters in a place. Of a deleted word, the space before it goes too.
  replace(text, [start, end], word) {
    let left = sliced(text, 0, start);
    const right = sliced(text, end);
    if (!word && /\s$/.test(left) && !/^\S/.test(right)) left = left.replace(/\s$/, "");
    if (!word && !left) this.onEdit(text, right.trimStart());
    else this.onEdit(text, left + word + right);
  }
}
