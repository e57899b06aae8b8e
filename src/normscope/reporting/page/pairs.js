// Pairs of texts: which tokens of both make up a similarity. The texts are coloured, and the map below has every pair of
// tokens, with the biases in a row and a column of their own.

const LISTED_PAIRS = 6;
const WORTH_LISTING = 0.01; // of the largest
const FAINTEST_ON_TEXT = 0.35; // of the scale on either side of zero, so that words stay readable

class PairView {
  // `pairs` is what normscope.reporting.page.explorer.pairs_payload returns.
  constructor(root, pairs) {
    Object.assign(this, { root, pairs, number: 0, focus: undefined, pinned: undefined });
    this.build();
    onColourScheme(() => this.draw());
    new ResizeObserver(() => setTimeout(() => this.resize())).observe(this.view.node);
  }

  build() {
    this.view = new MapView({
      label: "Map of pairs of tokens. Arrow keys move from cell to cell; Enter keeps the row's token.",
      onMove: (at) => this.reading(at),
      onPin: (row, column) => this.pin(row === undefined ? { side: 1, at: column } : { side: 0, at: row }),
    });
    this.view.cells.addEventListener("pointerleave", () => this.point(undefined));
    this.sum = make("p", { className: "pair-sum" });
    this.texts = [0, 1].map((side) => this.textOf(side));
    this.hint = make("p", { className: "pair-hint faint", "aria-live": "polite" });
    this.legend = make("div", { className: "legend" });
    this.lists = make("div", { className: "lists" });
    const saves = make("div", { className: "saves", role: "group", "aria-label": "Save the map" },
      ...["svg", "png"].map((kind) => make("button", { type: "button", onclick: () => this.save(kind), "aria-label": `Save as ${kind.toUpperCase()}` }, kind.toUpperCase())));
    this.choice = make("select", { onchange: () => this.show(Number(this.choice.value)) }, ...this.pairs.map(({ title }, at) => new Option(title, at)));
    const field = make("label", { className: "field", hidden: this.pairs.length < 2 }, make("span", {}, "pair of texts"), this.choice);
    this.root.classList.add("explorer", "pairs");
    this.saves = saves;
    this.root.replaceChildren(make("div", { className: "controls", hidden: field.hidden }, field), this.sum, ...this.texts, this.hint,
      make("div", { className: "explorer-body" }, make("div", { className: "map-side" }, this.view.node, this.legend), this.lists));
  }

  textOf(side) {
    const at = (event) => event.target.closest("[data-at]");
    return make("p", {
      className: "pair-text",
      onpointerover: (event) => { if (at(event)) this.point({ side, at: Number(at(event).dataset.at) }); },
      onpointerleave: () => this.point(undefined),
      onclick: (event) => { if (at(event)) this.pin({ side, at: Number(at(event).dataset.at) }); },
    });
  }

  get pair() {
    return this.pairs[this.number];
  }

  get tokens() {
    return this.pair.texts.map(({ labels }) => labels);
  }

  // What a token of the first text adds with one of the second; the number after the last token stands for the biases.
  value(row, column) {
    return this.pair.values[row * (this.tokens[1].length + 1) + column];
  }

  // What a token adds with each token of the other text.
  partners({ side, at }) {
    return this.tokens[1 - side].map((_, other) => (side ? this.value(other, at) : this.value(at, other)));
  }

  show(number) {
    Object.assign(this, { number, focus: undefined, pinned: undefined });
    this.view.at = undefined;
    this.draw();
  }

  point(focus) {
    this.focus = focus;
    this.colour();
  }

  // Keeps a token, or releases it if it is kept already.
  pin(focus) {
    if (focus.at >= this.tokens[focus.side].length) return; // the biases
    this.pinned = this.pinned?.side === focus.side && this.pinned.at === focus.at ? undefined : focus;
    this.colour();
  }

  resize() {
    if (this.view.node.clientWidth && this.view.node.clientWidth !== this.view.width) this.draw();
  }

  draw() {
    if (!this.root.isConnected) return;
    const [rows, columns] = this.tokens.map((tokens) => [...tokens, "bias"]);
    const [exactRows, exactColumns] = this.pair.texts.map(({ tokens }) => [...tokens, "bias"]);
    this.map = { rows, columns, exact: { rows: exactRows, columns: exactColumns }, values: Float64Array.from(this.pair.values) };
    const cells = this.tokens[0].flatMap((_, at) => this.partners({ side: 0, at }));
    this.sums = [0, 1].map((side) => this.tokens[side].map((_, at) => total(this.partners({ side, at }))));
    const [largest, words, all] = [Math.max(...cells.map(Math.abs)), total(cells), total(this.pair.values)];
    this.scale = { largest, difference: true };
    this.colours = palette(this.root, "--diverging");
    this.sum.replaceChildren(`${this.pair.measure} `, make("b", {}, formatNumber(all)), " = tokens ", make("b", {}, formatNumber(words)),
      all < words ? " − biases " : " + biases ", make("b", {}, formatNumber(Math.abs(all - words))));
    this.texts.forEach((node, side) => node.replaceChildren(...spans(this.pair.texts[side])));
    this.view.show(this.map, (canvas) => paint(canvas, this.map, this.scale, this.colours));
    this.legend.replaceChildren(ramp(this.colours, [MINUS + formatNumber(largest), "0", `+${formatNumber(largest)}`]),
      make("span", {}, `added to the ${this.pair.measure}; cells of a bias may go beyond the scale`), this.saves);
    this.drawLists();
    this.colour();
  }

  drawLists() {
    const [a, b] = this.tokens;
    const pairs = a.flatMap((one, row) => b.map((other, column) => [`${one} – ${other}`, this.value(row, column)]));
    const listed = [[1, "Pairs that add most"], [-1, "Pairs that subtract most"]].map(([sign, title]) => {
      const some = pairs.filter(([, value]) => sign * value > WORTH_LISTING * this.scale.largest);
      return [title, some.sort(([, one], [, other]) => sign * (other - one)).slice(0, LISTED_PAIRS)];
    });
    this.lists.replaceChildren(...valueLists(listed.filter(([, entries]) => entries.length), this.colours));
  }

  // Colours both texts: by what each token adds in all, or with one token of the other text.
  colour() {
    const focus = this.focus ?? this.pinned;
    const largest = focus ? this.scale.largest : Math.max(...this.sums.flat().map(Math.abs));
    const values = focus ? [undefined, undefined] : this.sums;
    if (focus) values[1 - focus.side] = this.partners(focus);
    this.texts.forEach((node, side) => [...node.children].forEach((span, at) => {
      const value = values[side]?.[at] ?? 0;
      const share = Math.min(1, Math.abs(value) / (largest || 1)) * (0.5 - FAINTEST_ON_TEXT / 2);
      const channels = this.colours(0.5 + Math.sign(value) * share);
      span.style.background = value ? `rgb(${channels})` : "";
      span.style.color = value ? readableOn(channels) : "";
      span.title = values[side] ? formatNumber(value, true) : "";
      span.classList.toggle("chosen", focus?.side === side && focus.at === at);
    }));
    this.view.markPinned(...(focus ? [[focus.at, undefined], [undefined, focus.at]][focus.side] : []));
    const chosen = focus && `“${this.tokens[focus.side][focus.at]}” adds ${formatNumber(this.sums[focus.side][focus.at], true)} in total; the colours of the other text show with which tokens.`;
    this.hint.textContent = chosen || "The colour of a token is what it adds together with all tokens of the other text. Hover over or tap a token to see with which.";
  }

  reading(at) {
    const [row, column] = [Math.floor(at / this.map.columns.length), at % this.map.columns.length];
    if (row < this.tokens[0].length) this.point({ side: 0, at: row });
    return { value: formatNumber(this.map.values[at], true), tokens: `${this.map.rows[row]} – ${this.map.columns[column]}` };
  }

  save(kind) {
    const svg = mapSvg(this.map, this.scale, palette(this.root, "--paper-diverging"), `${this.sum.textContent}`);
    const name = `pair${this.number + 1}`;
    if (kind === "svg") download(`${name}.svg`, "image/svg+xml", svg);
    else downloadPng(`${name}.png`, svg);
  }
}

// Tokens as running text: pieces of a word stand together.
const spans = ({ tokens, labels, continues }) =>
  labels.map((label, at) => make("span", { "data-at": at, className: continues[at] ? "piece" : "word", title: tokens[at] }, label));

// Black or white, whichever has more contrast.
function readableOn(channels) {
  const linear = channels.map((value) => ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2];
  return (luminance + 0.05) ** 2 > 0.0525 ? "#000" : "#fff";
}
