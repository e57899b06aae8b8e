// An answer, sentence by sentence, and its sources: click a sentence, and they light up with their parts and removals.

const WHOLE = 0;
const FLOWING = 6; // sources that the flow names; the others are one
const TINT = 0.3; // of the palette, so that passages stay readable
const FLOW = { width: 900, height: 320, bar: 10, left: 230, middle: 500, right: 700, gap: 10, labelled: 20 };

class SourcesView {
  // `address` keeps the chosen sentence, as that of the explorer keeps what it shows.
  constructor(root, address) {
    Object.assign(this, { root, address, byPart: true });
    this.list = make("ol", { className: "source-list" });
    this.others = make("ol", { className: "ranks source-others" });
    this.flow = make("figure", { className: "source-flow" });
    this.answer = make("div", { className: "source-answer", role: "group", "aria-label": "Sentences of the answer" });
    this.warnings = make("div", {});
    const order = make("select", { name: "order", onchange: () => { this.byPart = order.value === "part"; this.draw(); } },
      new Option("largest part first", "part"), new Option("as in the prompt", "prompt"));
    root.replaceChildren(this.warnings, make("h3", {}, "Answer"), this.answer,
      make("div", { className: "source-order" }, make("label", {}, "order", order), make("button", { type: "button", onclick: () => this.save() }, "Save as CSV")), this.list, this.others, this.flow);
    onColourScheme(() => this.data && this.draw());
    addEventListener("hashchange", () => this.data && this.fromAddress());
  }

  // `data` is what normscope.reporting.page.source_view.sources_payload returns.
  show(data) {
    this.data = data;
    this.warnings.replaceChildren(...data.warnings.map((text) => make("p", { className: "source-warning", role: "alert" }, text)));
    this.answer.replaceChildren(...this.sentences());
    this.fromAddress();
  }

  fromAddress() {
    const number = Number(this.address?.read()?.get("sentence"));
    this.sentence = number <= this.data.sentences.length ? number || WHOLE : WHOLE;
    this.draw();
  }

  sentences() {
    const button = (number, text) => make("button", { type: "button", value: number, onclick: () => this.choose(number) }, text);
    const each = this.data.sentences.map(({ text }, at) => button(at + 1, text.trim() || "␣"));
    return each.length > 1 ? [...each, button(WHOLE, "whole answer")] : each;
  }

  choose(number) {
    this.sentence = number;
    this.address?.write(new URLSearchParams({ sentence: number || "" }));
    this.draw();
  }

  save() {
    const [parts, removals] = [this.of(this.data.parts), this.of(this.data.removals)];
    const rows = this.data.sources.map(({ source, text }, at) => [source, parts[at], this.data.removed[at] ? removals[at] : "", text]);
    download(`sources${this.sentence ? `_sentence_${this.sentence}` : ""}.csv`, "text/csv", csvOf([["source", "part", "removal", "text"], ...rows]));
  }

  // The chosen sentence's number in a table with a row for each, or the sum of all rows.
  of(table) {
    return this.sentence ? table[this.sentence - 1] : table[0].map((_, column) => total(table.map((row) => row[column])));
  }

  draw() {
    const colours = palette(this.root, "--diverging");
    const [parts, removals] = [this.of(this.data.parts), this.of(this.data.removals)];
    const known = this.data.removed;
    const largest = Math.max(...parts.map(Math.abs)) || 1;
    const most = Math.max(...removals.filter((_, at) => known[at]).map(Math.abs)) || 1;
    for (const button of this.answer.children) {
      const chosen = Number(button.value) === this.sentence || this.answer.children.length === 1;
      button.setAttribute("aria-pressed", chosen);
    }
    const order = [...parts.keys()];
    if (this.byPart) order.sort((one, other) => parts[other] - parts[one]);
    this.list.replaceChildren(...order.map((at) => this.row(at, parts[at], largest, known[at] ? removals[at] : null, most, colours)));
    this.drawOthers(colours);
    this.drawFlow(colours);
  }

  row(at, part, largest, removal, most, colours) {
    const { source, text } = this.data.sources[at];
    const passage = make("p", { className: "passage" }, text);
    const channels = colours(0.5 + (TINT * part) / largest);
    Object.assign(passage.style, { background: `rgb(${channels})`, color: readableOn(channels) });
    passage.onclick = () => passage.classList.toggle("whole");
    const bars = [barOf("part", part, largest, colours), removal === null ? make("li", {}, make("span", {}, "not removed")) : barOf("fall without it", removal, most, colours)];
    return make("li", {}, make("div", { className: "source-name" }, make("b", {}, source), ...(this.data.told[at] ? [make("small", {}, "holds an instruction")] : [])),
      passage, make("ol", { className: "ranks" }, ...bars));
  }

  drawOthers(colours) {
    const values = this.of(this.data.others);
    const all = this.of(this.data.sentences.map(({ log_probability }) => [log_probability]))[0];
    const rows = [...this.data.names.map((name, at) => [name, values[at]]), ["log-probability (sum of all parts)", all]];
    const largest = Math.max(...rows.map(([, value]) => Math.abs(value))) || 1;
    this.others.replaceChildren(...rows.map(([name, value]) => barOf(name, value, largest, colours)));
  }

  // From passages through earlier sentences to the chosen one; every band is as wide as what flows through it.
  drawFlow(colours) {
    this.flow.hidden = this.sentence < 2;
    if (this.flow.hidden) return;
    const ways = this.data.flow[this.sentence - 1].slice(0, this.sentence); // directly, then through each earlier sentence
    const size = ways[0].map((_, at) => total(ways.map((way) => Math.abs(way[at]))));
    const named = [...size.keys()].sort((one, other) => size[other] - size[one]).slice(0, FLOWING).filter((at) => size[at] > 0);
    const groups = named.map((at) => [[...this.data.sources.map(({ source }) => source), this.data.names[0]][at], [at]]);
    const left = [...size.keys()].filter((at) => size[at] > 0 && !named.includes(at));
    if (left.length) groups.push([`${left.length} others`, left]);
    const values = groups.map(([, members]) => ways.map((way) => total(members.map((at) => way[at]))));
    const sum = total(values.flat().map(Math.abs)) || 1;
    const unit = (FLOW.height - Math.max(FLOW.gap * (groups.length + 1), FLOW.labelled * (ways.length + 1))) / sum;
    const ends = this.stacked(values.map((row) => total(row.map(Math.abs)) * unit));
    const middle = this.stacked(ways.map((_, way) => total(values.map((row) => Math.abs(row[way]))) * unit), FLOW.labelled);
    const shapes = [];
    const band = (x, y, x2, y2, width, value) => {
      const half = (x + x2) / 2;
      const path = `M${x},${y}C${half},${y} ${half},${y2} ${x2},${y2}v${width}C${half},${y2 + width} ${half},${y + width} ${x},${y + width}Z`;
      shapes.push(drawn("path", { d: path, fill: `rgb(${colours(0.5 + TINT * Math.sign(value))})`, "fill-opacity": 0.75 }, drawn("title", {}, formatNumber(value, true))));
    };
    const at = { left: [...ends], middle: [...middle], right: FLOW.gap };
    ways.forEach((_, way) => values.forEach((row, group) => {
      const width = Math.abs(row[way]) * unit;
      band(FLOW.left, at.left[group], FLOW.middle, at.middle[way], width, row[way]);
      band(FLOW.middle, at.middle[way], FLOW.right, at.right, width, row[way]);
      at.left[group] += width; at.middle[way] += width; at.right += width;
    }));
    const label = (x, y, anchor, text) => shapes.push(drawn("text", { x, y, "text-anchor": anchor }, text));
    groups.forEach(([name], group) => label(FLOW.left - 8, (ends[group] + at.left[group]) / 2 + 4, "end", clipped(name, 32)));
    ways.forEach((_, way) => { if (at.middle[way] - middle[way] > 1) label(FLOW.middle, middle[way] - 5, "middle", way ? `through sentence ${way}` : "directly"); });
    label(FLOW.right + 8, FLOW.height / 2, "start", `sentence ${this.sentence}`);
    this.flow.replaceChildren(drawn("svg", { viewBox: `0 0 ${FLOW.width} ${FLOW.height + 12}`, role: "img", "aria-label": "Flow from passages to the sentence" }, ...shapes),
      make("figcaption", {}, "From passages, directly and through earlier sentences of the answer, to the chosen sentence. Bands are as wide as what they add; orange raises the log-probability, purple lowers it. An earlier sentence hands on what it adds to what raised it."));
  }

  // Where bars of these sizes begin, one below the other.
  stacked(sizes, gap = FLOW.gap) {
    let y = gap;
    return sizes.map((size) => { const start = y; y += size + gap; return start; });
  }
}
