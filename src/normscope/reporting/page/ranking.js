// The documents of a query in order: their tokens coloured on one scale, what the tokens and the constant part add as bars on
// another, and the lead of each document over the next. Choosing one shows its map below.

const LISTED_DOCUMENTS = 10;
const DIFFERENCES = ["tokens", "constant part"];

class RankingView {
  // `pairs` is what normscope.reporting.text_pairs.payload returns, in order: the query with each document.
  constructor(root, pairs, view) {
    Object.assign(this, { root, view, chosen: 0 });
    this.documents = pairs.slice(0, LISTED_DOCUMENTS).map(partsOf);
    this.query = pairs[0].texts[0];
    this.left = pairs.length - this.documents.length;
    onColourScheme(() => this.draw());
  }

  draw() {
    this.colours = palette(this.root, "--diverging");
    this.largest = Math.max(...this.documents.flatMap(({ sums }) => sums.map(Math.abs))) || 1;
    this.longest = Math.max(...this.documents.flatMap(({ parts }) => parts.map(Math.abs))) || 1;
    this.items = this.documents.map((document, at) => this.itemOf(document, at));
    const more = this.left > 0 ? ` The ${LISTED_DOCUMENTS} most similar of ${LISTED_DOCUMENTS + this.left} documents are listed.` : "";
    this.root.classList.add("explorer", "pairs", "ranking");
    this.root.replaceChildren(make("p", { className: "pair-text query" }, ...spans(this.query)), make("ol", { className: "documents" }, ...this.items),
      make("div", { className: "legend" }, ramp(this.colours, [MINUS + formatNumber(this.largest), "0", `+${formatNumber(this.largest)}`]),
        make("span", {}, `what a token of a document adds together with all tokens of the query; one scale for all documents.${more}`)));
    this.choose(this.chosen);
  }

  itemOf(document, at) {
    const { rank, number, total: value, text: shown, sums, parts } = document;
    const text = make("p", { className: "pair-text" }, ...spans(shown));
    [...text.children].forEach((span, place) => this.colour(span, sums[place]));
    const bars = make("ol", { className: "ranks" }, ...DIFFERENCES.map((name, part) => barOf(name, parts[part], this.longest, this.colours)));
    const next = this.documents[at + 1];
    const head = make("button", { type: "button", className: "document-head", onclick: () => this.choose(at, true) },
      make("span", { className: "rank" }, `${rank}.`), make("b", {}, formatNumber(value)),
      make("span", { className: "faint" }, `document ${number}`));
    return make("li", {}, head, text, bars, ...(next ? [make("p", { className: "ahead faint" }, aheadOf(document, next))] : []));
  }

  colour(span, value) {
    const channels = this.colours(0.5 + (Math.sign(value) * Math.abs(value) / this.largest) * (0.5 - FAINTEST_ON_TEXT / 2));
    span.style.background = `rgb(${channels})`;
    span.style.color = readableOn(channels);
    span.title = formatNumber(value, true);
  }

  // Marks a document and shows its map.
  choose(at, moves = false) {
    this.chosen = at;
    this.items.forEach((item, place) => {
      item.classList.toggle("chosen-document", place === at);
      item.firstChild.setAttribute("aria-pressed", String(place === at));
    });
    if (!moves) return;
    this.view.choice.value = at;
    this.view.show(at);
  }
}

// What each token of a document adds together with all tokens of the query, and what all tokens and the biases add.
function partsOf(pair, at) {
  const [query, text] = pair.texts;
  const columns = text.labels.length;
  const sums = text.labels.map((_, column) => total(query.labels.map((__, row) => pair.values[row * (columns + 1) + column])));
  const [all, words] = [total(pair.values), total(sums)];
  return { rank: at + 1, number: pair.number, total: all, text, sums, parts: [words, all - words] };
}

// "0.052 ahead of the next: tokens +0.048, constant part +0.004"
function aheadOf(one, next) {
  const differences = DIFFERENCES.map((name, part) => `${name} ${formatNumber(one.parts[part] - next.parts[part], true)}`);
  return `${formatNumber(one.total - next.total)} ahead of the next: ${differences.join(", ")}`;
}
