const QUESTIONS = {
  class: "Which class, and why?",
  value: "Which value, and why?",
  "next token": "Which token comes next, and why?",
  "masked token": "Which token fits the mask, and why?",
  "the next token of the translation": "Which token of the translation comes next, and why?",
  embedding: "What is the embedding made of?",
};
const NAMED = 3; // tokens or pairs in an answer

// What the model predicts: its most likely answers, what each token and each head adds to one of them; or, of embeddings, which
// tokens make up a similarity.

class PredictionView {
  // `onTarget(name)` and `onAgainst(name)` hear of chosen answers, `onHead(layer, head)` of a head to show.
  constructor(root, { onTarget, onAgainst, onHead }) {
    Object.assign(this, { root, onTarget, onAgainst, onHead });
    this.title = make("h2", {});
    this.answer = make("p", { className: "answer-line" });
    this.sum = make("p", { className: "faint sum" });
    this.choices = make("ol", { className: "answers" });
    this.view = new MapView({ label: "What each head adds, by layer. Arrow keys move from head to head; Enter chooses one.", across: "head →",
      onMove: (at) => this.reading(at), onPin: (row, column) => this.pick(row, column) });
    this.legend = make("div", { className: "legend" });
    this.chosen = make("p", { className: "editing", hidden: true });
    this.strongest = make("p", { className: "faint" });
    this.heads = make("div", { className: "of-heads", hidden: true }, make("h3", {}, "What each head adds"), this.view.node, this.legend, this.chosen, this.strongest);
    this.pairs = make("div", { hidden: true });
    this.body = make("div", { className: "prediction-body" }, this.choices, this.heads);
    this.rule = make("p", { className: "faint rule" });
    this.lists = make("div", { className: "lists", hidden: true });
    root.replaceChildren(this.title, this.answer, this.sum, this.pairs, this.lists, this.body, this.rule);
    onColourScheme(() => this.grid && this.showHeads(this.grid));
  }

  // `now` and `before` are answers of the server; `against` is what is subtracted, `name` what `before` is of. Of `similar` texts,
  // what makes them so follows.
  show(now, before, { against, name, similar }) {
    this.root.hidden = similar && this.pairs.hidden; // a question waits for its answer
    this.lists.hidden = true;
    this.areValues = now.meaning === "value";
    this.name = name;
    for (const part of [this.heads, this.pairs]) part.classList.add("stale"); // until theirs comes
    this.title.textContent = similar ? "Why are the two texts similar?" : QUESTIONS[now.what];
    this.answer.textContent = similar ? "" : this.answerOf(now, against);
    const other = before && now.choices.length && before.value !== undefined ? `; ${name}: ${formatNumber(before.value, true)}` : "";
    this.sum.textContent = similar ? "" : (now.note ?? now.sum + other);
    if (similar) this.heads.hidden = true;
    if (now.first && !similar) this.note(now.first.said);
    this.rule.textContent = now.rule && !similar ? `${now.rule} Orange raises the value, purple lowers it; hover over a token to see its part.` : "";
    const probabilities = new Map(before?.choices ?? []);
    this.choices.hidden = !now.choices.length;
    this.choices.replaceChildren(...now.choices.map(([name, probability]) => this.row(now, name, probability, probabilities.get(name), against)));
  }

  // What is predicted, and the tokens that support it most.
  answerOf({ choices, labels, target, tokens, scores }, against) {
    if (!scores) return "";
    const most = scores.map((value, at) => [tokens[at], value]).filter(([, value]) => value > 0)
      .sort(([, a], [, b]) => b - a).slice(0, NAMED).map(([token, value]) => `“${token}” (${formatNumber(value, true)})`);
    const named = listed(most);
    if (!choices.length) return named && `${named} ${most.length > 1 ? "add" : "adds"} most.`;
    const [, value] = choices.find(([name]) => name === target);
    const answer = `${this.areValues ? `${target}: ${formatNumber(value, true)}` : `“${labels[target]}” (${formatPercentage(value)})`}${against ? ` rather than “${labels[against]}”` : ""}.`;
    return named ? `${answer} ${named} ${most.length > 1 ? "support" : "supports"} it most.` : answer;
  }

  // Scores of a source and its translation as a list: the text above shows the tokens of the translation alone.
  list({ tokens, scores }) {
    const strongest = scores.map((value, at) => [`${tokens[at]} (${at})`, value]).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, SHORTLIST);
    this.lists.replaceChildren(...valueLists([["Tokens of source and translation that add most", strongest]], palette(this.root, "--diverging")));
    this.lists.hidden = false;
  }

  // A line instead of a prediction.
  fail(line) {
    this.sum.textContent = line;
    this.answer.textContent = "";
    this.title.textContent = "Prediction";
    this.rule.textContent = "";
    for (const part of [this.choices, this.heads, this.pairs, this.lists]) part.hidden = true;
    this.root.hidden = false;
  }

  // A line below what is predicted.
  note(line) {
    this.root.hidden = false;
    this.sum.append(...(this.sum.hasChildNodes() ? [make("br", {})] : []), line);
  }

  row({ labels, target }, name, probability, was, against) {
    const bar = make("i", {});
    const format = this.areValues ? (value) => formatNumber(value, true) : formatPercentage;
    bar.style.width = this.areValues ? "0" : `${100 * probability}%`;
    const mark = make("u", { hidden: this.areValues || was === undefined });
    mark.style.left = `${100 * (was ?? 0)}%`;
    const other = name === target ? [] : [make("button", { type: "button", "aria-pressed": String(name === against), title: `why ${labels[target]} rather than ${labels[name]}`,
      onclick: () => this.onAgainst(name) }, "rather than")];
    return make("li", { className: name === target ? "chosen" : "" },
      make("button", { type: "button", className: "answer", "aria-pressed": String(name === target), title: name, onclick: () => this.onTarget(name) }, labels[name]),
      make("span", { className: "track" }, bar, mark),
      make("b", {}, format(probability), ...(was === undefined ? [] : [make("small", {}, ` ${this.name}: ${format(was)}`)])), make("span", {}, ...other));
  }

  // What each head adds: `layers` and `values` by layer and head.
  showHeads(grid) {
    this.grid = grid;
    this.heads.classList.remove("stale");
    this.heads.hidden = !grid;
    if (!grid) return;
    const columns = grid.values[0].map((_, at) => String(at + 1));
    this.map = { rows: grid.layers.map((layer) => `layer ${layer}`), columns, values: Float64Array.from(grid.values.flat()) };
    const largest = largestOf(this.map.values, columns.length, false);
    const colours = palette(this.root, "--diverging");
    this.view.show(this.map, (canvas) => paint(canvas, this.map, { largest, difference: true }, colours));
    this.legend.replaceChildren(ramp(colours, [MINUS + formatNumber(largest), "0", `+${formatNumber(largest)}`]), make("span", {}, "added, directly and through later layers"));
    const named = grid.strongest.flatMap(([layer, head, value], at) => [at ? ", " : "",
      make("button", { type: "button", className: "link", title: "Show its map", onclick: () => this.onHead(layer, head) }, `layer ${layer} head ${head}`), ` (${formatNumber(value, true)})`]);
    this.strongest.replaceChildren("Strongest: ", ...named, ".");
    this.chosen.hidden = true;
  }

  reading(at) {
    const columns = this.map.columns.length;
    return { value: formatNumber(this.map.values[at], true), tokens: `${this.map.rows[Math.floor(at / columns)]} head ${(at % columns) + 1}` };
  }

  pick(row, column) {
    if (row === undefined || column === undefined) return;
    const [layer, head] = [this.grid.layers[row], column + 1];
    this.chosen.replaceChildren(make("b", {}, `layer ${layer} head ${head}`), make("button", { type: "button", onclick: () => this.onHead(layer, head) }, "Show its map"));
    this.chosen.hidden = false;
  }

  // The pair of two texts' embeddings; nothing without one.
  showPair(pair) {
    this.pairs.hidden = !pair;
    this.pairs.classList.remove("stale");
    if (!pair) return;
    this.root.hidden = false;
    this.answer.textContent = connectionsOf(pair);
    if (this.pairView) {
      this.pairView.pairs = [pair];
      this.pairView.show(0);
    } else this.pairView = new PairView(this.pairs, [pair]);
  }
}

// Names as a sentence lists them.
function listed(names) {
  return [names.slice(0, -1).join(", "), names.at(-1)].filter(Boolean).join(" and ");
}

// The pairs of tokens of two texts that add most to their similarity.
function connectionsOf({ texts, values }) {
  const [rows, columns] = texts.map(({ labels }) => labels);
  const width = columns.length + 1; // the last row and column are the biases
  const most = [...values].map((added, at) => ({ row: Math.floor(at / width), column: at % width, added }))
    .filter(({ row, column, added }) => added > 0 && row < rows.length && column < columns.length)
    .sort((a, b) => b.added - a.added).slice(0, NAMED)
    .map(({ row, column, added }) => `${rows[row]} – ${columns[column]} (${formatNumber(added, true)})`);
  return most.length ? `The pairs that add most: ${listed(most)}.` : "";
}
