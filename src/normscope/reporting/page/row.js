// A text that is read for one query: its words coloured by what the query receives from them, the sum of each sentence beside
// it, and the strongest sentences listed.

const LISTED_SENTENCES = 8;
const LEAST_SHOWN = 0.01; // of the largest sum
const ALL_LAYERS = -1;

class RowText {
  // `data` is what normscope.reporting.page.explorer.row_payload returns, inflated.
  constructor(root, data) {
    Object.assign(this, { root, data, layer: ALL_LAYERS, head: BLOCK, listed: LISTED_SENTENCES });
    this.apart = new Map(data.apart);
    this.signed = data.signed_measures.includes(data.measure);
    this.legend = make("div", { className: "legend" });
    this.named = make("div", { className: "lists" });
    this.list = make("ol", { className: "strongest" });
    this.more = make("button", { type: "button", onclick: () => { this.listed = this.sentences.length; this.draw(); } });
    this.text = make("div", { className: "row-text" });
    this.build();
    root.classList.add("explorer", "row-view");
    root.replaceChildren(this.controls(), make("div", { className: "row-body" },
      make("div", { className: "row-lists" }, make("h3", {}, "Strongest sentences"), this.list, this.more, this.named, this.legend), this.text));
    onColourScheme(() => this.draw());
  }

  controls() {
    const { layers, heads } = this.data.sentence;
    const select = (name, first, numbers) => {
      const box = make("select", { name, onchange: () => { this[name] = Number(box.value); this.draw(); } }, new Option(...first), ...numbers);
      return make("label", { className: "field", hidden: numbers.length < 2 }, make("span", {}, name), box);
    };
    return make("div", { className: "controls" }, select("layer", ["all (mean)", ALL_LAYERS], layers.map((layer, at) => new Option(layer, at))),
      select("head", ["all together", BLOCK], Array.from({ length: heads }, (_, at) => new Option(at + 1, at + 1))));
  }

  // The text with an element for each key, and one for each sentence with its sum; keys of a sentence are its members.
  build() {
    const characters = [...this.data.sentence.title];
    const piece = (start, end) => characters.slice(start, end).join("");
    this.words = [];
    this.sentences = [];
    let [at, inside, number] = [0, this.text, -1];
    this.data.spans.forEach((span, key) => {
      if (!span) return;
      const [sentence, start, end] = span;
      const begins = sentence >= 0 && sentence !== number;
      if (begins || sentence < 0) inside = this.text;
      let from = Math.max(start, at);
      while (from < end && /\s/.test(characters[from])) from++;
      inside.append(piece(at, from));
      if (begins) {
        number = sentence;
        inside = make("span", { className: "sentence", tabIndex: -1 });
        const sum = make("small", { className: "sum-of-sentence" });
        inside.append(sum);
        this.text.append(inside);
        this.sentences.push({ node: inside, sum, members: [], first: key });
      } else if (sentence >= 0) inside = this.sentences.at(-1).node;
      const word = make("span", { className: this.apart.has(key) ? "apart" : "" }, piece(from, Math.max(from, end)));
      this.words[key] = word;
      inside.append(word);
      if (sentence >= 0 && !this.apart.has(key)) this.sentences.at(-1).members.push(key);
      at = Math.max(at, end);
    });
    this.text.append(piece(at));
  }

  // What the query receives from each key.
  values() {
    const { sentence, measure } = this.data;
    const chosen = this.layer === ALL_LAYERS ? sentence.layers.map((_, at) => at) : [this.layer];
    const maps = chosen.map((layer) => tokenValues(sentence, measure, layer, this.head));
    return maps[0].map((_, key) => maps.reduce((sum, map) => sum + (map[key] || 0), 0) / maps.length);
  }

  draw() {
    const values = this.values();
    const colours = palette(this.root, this.signed ? "--diverging" : "--sequential");
    const coloured = Array.from(values.keys()).filter((key) => !this.apart.has(key));
    const { largest } = endOfScale(coloured.map((key) => values[key]), coloured.length, false);
    const position = positionOn({ largest, difference: this.signed });
    const colour = (node, value, at) => {
      const channels = value ? colours(at(value)) : undefined;
      node.style.background = channels ? `rgb(${channels})` : "";
      node.style.color = channels ? readableOn(channels) : "";
    };
    // As the text has it; a special token as the tokenizer writes it.
    const name = (key) => `${this.words[key]?.textContent || this.data.sentence.keys[key]} (${this.data.sentence.places.columns[key]})`;
    this.words.forEach((word, key) => {
      word.title = `${name(key)}: ${formatNumber(values[key], this.signed)}${this.apart.has(key) ? `, ${this.apart.get(key)}` : ""}`;
      if (!this.apart.has(key)) colour(word, values[key], position);
    });
    for (const sentence of this.sentences) sentence.total = total(sentence.members.map((key) => values[key]));
    const ends = Math.max(...this.sentences.map((sentence) => Math.abs(sentence.total))) || 1;
    const ofSentences = positionOn({ largest: ends, difference: this.signed });
    for (const { sum, total: value } of this.sentences) {
      sum.hidden = Math.abs(value) < ends * LEAST_SHOWN;
      sum.textContent = formatNumber(value, this.signed);
      colour(sum, value, ofSentences);
    }
    this.drawLists(values, ends, name);
    const ticks = this.signed ? [MINUS + formatNumber(largest), "0", `+${formatNumber(largest)}`] : ["0", formatNumber(largest)];
    this.legend.replaceChildren(ramp(colours, ticks), make("span", {}, `${this.data.measures[this.data.measure]}, from one word`));
  }

  drawLists(values, ends, name) {
    const ranked = [...this.sentences].sort((a, b) => Math.abs(b.total) - Math.abs(a.total));
    this.list.replaceChildren(...ranked.slice(0, this.listed).map((sentence) => {
      const bar = make("i", {});
      bar.style.width = `${(100 * Math.abs(sentence.total)) / ends}%`;
      const text = Array.from(sentence.node.childNodes).slice(1).map((node) => node.textContent).join("").trim();
      return make("li", {}, make("button", { type: "button", title: text, onclick: () => this.show(sentence) },
        make("b", {}, formatNumber(sentence.total, this.signed)), make("span", { className: "track" }, bar),
        make("span", { className: "said" }, clipped(text, 120)), make("small", {}, `begins at token ${this.data.sentence.places.columns[sentence.first].toLocaleString("en")}`)));
    }));
    this.more.textContent = `All ${this.sentences.length} sentences`;
    this.more.hidden = this.listed >= this.sentences.length;
    const named = [...this.apart].map(([key, what]) => [`${name(key)}, ${what}`, values[key]]);
    this.named.replaceChildren(...(named.length ? valueLists([["Listed separately", named]], this.signed && palette(this.root, "--diverging")) : []));
  }

  // Scrolls to a sentence and outlines it.
  show({ node }) {
    this.text.querySelector(".outlined")?.classList.remove("outlined");
    node.classList.add("outlined");
    node.scrollIntoView({ block: "center" });
    node.focus({ preventScroll: true });
  }
}
