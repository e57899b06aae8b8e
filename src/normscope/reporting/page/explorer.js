// The explorer: the token maps of a few sentences, with controls. It builds all its elements below one root and needs nothing
// but its data, so that pages and notebooks can show it alike.

const SHORTLIST = 10;
const LONGEST_TITLE = 60; // characters of a text as a title
const WHOLE_LAYER = "layer"; // in an address: the last stage, whatever its name
const DEFAULTS = { measure: "attn_n", beside: "", minus: "", scale: "all", log: false, hideSelf: false, words: false };
const TICKS = ["log", "hideSelf", "words"];

// A token with its place in the text, which regions such as words count in tokens too; a target, a head or a span by its name alone.
function nameOf(map, side, at) {
  const names = map[side];
  const speaks = map.ofTargets && (side === "rows" || new Set(names).size === names.length);
  return speaks ? names[at] : `${names[at]} (${map.places?.[side]?.[at] ?? at})`;
}

// Rows or columns with their values and, for a tooltip, the exact tokens; the largest first.
const ranking = (map, side, values) =>
  values.map((value, at) => [nameOf(map, side, at), value, map.exact[side][at]]).filter(([, value]) => !Number.isNaN(value)).sort(([, a], [, b]) => Math.abs(b) - Math.abs(a)).slice(0, SHORTLIST);

// The cell of a difference that is furthest from zero, in words.
function changeIn({ rows, columns, values }) {
  const at = values.reduce((best, value, cell) => (Math.abs(value) > Math.abs(values[best] || 0) ? cell : best), 0);
  return values[at] ? `${rows[Math.floor(at / columns.length)]} ← ${columns[at % columns.length]} ${formatNumber(values[at], true)}` : "no difference";
}

// The row that receives most from another one; of targets, the first.
function strongestRow(map) {
  if (map.ofTargets) return 0;
  const largest = map.rows.map((_, row) => Math.max(...rowOf(map, row).map((value, column) => (row === column ? 0 : Math.abs(value) || 0))));
  return largest.indexOf(Math.max(...largest));
}

// Where a report keeps what a section of it shows: after the section's name, such as "#explore?", in its address.
const addressOf = (section) => ({
  read: () => (location.hash.startsWith(`#${section}?`) ? new URLSearchParams(location.hash.split("?")[1]) : null),
  write: (kept) => history.replaceState(null, "", `#${section}?${kept}`),
  reached: (root) => root.closest("section")?.scrollIntoView(),
});

class Explorer {
  // `data` is what normscope.reporting.page.explorer.payload returns; with `paired`, the names of two, the second sentence is what
  // the first is compared with, and with `strip`, small maps to choose from are above the map. `address` keeps the selection;
  // `onSelect` hears of it.
  constructor(root, data, { address, onSelect = () => {} } = {}) {
    Object.assign(this, { root, data, address, onSelect });
    const last = data.sentences[0].layers.length - 1;
    this.defaults = { sentence: 0, layer: last, head: BLOCK, ...DEFAULTS, measure: data.measure ?? DEFAULTS.measure };
    this.state = { ...this.defaults };
    this.extents = new Map(); // the largest values over layers and heads, by what is shown
    this.pinned = undefined; // a row and, unless keys are another sequence, the same column; undefined for the strongest row
    this.build();
    this.fromAddress();
    if (address) addEventListener("hashchange", () => { if (address.read()) this.fromAddress(); });
    onColourScheme(() => this.draw());
    new ResizeObserver(() => setTimeout(() => this.resize())).observe(this.view.node);
  }

  build() {
    this.view = new MapView({
      label: "Token map. Arrow keys move from cell to cell; Enter lists what the row receives and contributes.",
      onMove: (at) => this.reading(at), onPin: (row, column) => this.pin(row, column),
    });
    this.other = new MapView({
      label: "The token map beside it. Arrow keys move from cell to cell.",
      onMove: (at) => this.reading(at, this.other.map, isSigned(this.data, this.besideSelection)), onPin: (row, column) => this.pin(row, column),
    });
    this.otherLegend = make("div", { className: "legend" });
    this.title = make("h3", { className: "map-title" });
    this.otherTitle = make("h3", { className: "map-title" });
    this.beside = make("div", { className: "beside", hidden: true }, this.otherTitle, this.other.node, this.otherLegend);
    this.every = make("div", { className: "every-head", hidden: true });
    this.strip = make("div", { className: "strip", role: "group", "aria-label": "Maps to choose from", hidden: true });
    this.legend = make("div", { className: "legend" });
    this.live = make("p", { className: "reading", "aria-live": "polite" });
    this.lists = make("div", { className: "lists" });
    this.image = new ImageView((row) => this.pin(row));
    this.sound = new SoundView((row) => this.pin(row));
    this.arcs = make("figure", { className: "arcs", hidden: true });
    const maps = make("div", { className: "maps" }, make("div", {}, this.title, this.view.node, this.every, this.legend), this.beside);
    const left = make("div", { className: "map-side" }, this.strip, this.image.node, this.sound.node, maps, this.live);
    this.root.classList.add("explorer");
    this.root.replaceChildren(this.controls(), make("div", { className: "explorer-body" }, left, this.lists), this.arcs);
  }

  controls() {
    const select = (name) => {
      const box = make("select", { name, onchange: () => this.change({ [name]: ["minus", "measure", "beside", "scale"].includes(name) ? box.value : Number(box.value) }) });
      return (this.boxes[name] = box);
    };
    const step = (by, sign, label) => make("button", { type: "button", className: "step", title: label, "aria-label": label, onclick: () => this.stepLayer(by) }, sign);
    const tick = (name, text) => {
      const box = make("input", { type: "checkbox", name, onchange: () => this.change({ [name]: box.checked }) });
      this.boxes[name] = box;
      return make("label", { className: "tick" }, box, text);
    };
    const field = (text, ...inside) => make("label", { className: "field" }, make("span", {}, text), ...inside);
    const save = (name, action) => make("button", { type: "button", onclick: action, "aria-label": `Save as ${name}` }, name);
    this.boxes = {};
    const layer = make("div", { className: "field", role: "group", "aria-label": "layer" }, make("span", {}, "layer"),
      make("div", { className: "stepper" }, step(-1, "◂", "previous layer"), select("layer"), step(1, "▸", "next layer")));
    this.boxes.layer.setAttribute("aria-label", "layer");
    return make("div", { className: "controls" },
      field(this.data.sentences[0].of_targets ? "map" : this.data.sentences[0].image ? "image" : this.data.sentences[0].sound ? "sound" : "sentence", select("sentence")), layer, field("head", select("head")), field("measure", select("measure")),
      field("beside", select("beside")), field("minus", select("minus")), field("scale", select("scale")),
      make("div", { className: "ticks" }, tick("log", "logarithmic"), tick("hideSelf", "hide self"), tick("words", "whole words")),
      make("div", { className: "saves", role: "group", "aria-label": "Save the map" },
        save("SVG", () => this.save("svg")), save("PNG", () => this.save("png")), save("CSV", () => this.save("csv")),
        make("button", { type: "button", onclick: () => this.fullScreen() }, "Full screen")));
  }

  // Shows other sentences in the same way.
  show(data) {
    this.data = data;
    this.extents.clear();
    if (this.state.sentence >= data.sentences.length) this.state.sentence = 0;
    this.state.layer = Math.min(this.state.layer, this.sentence.layers.length - 1);
    if (!(this.pinned < axesOf(this.sentence, this.state.words).rows.length)) this.pinned = undefined;
    this.draw();
  }

  resize() {
    if (this.view.node.clientWidth && this.view.node.clientWidth !== this.view.width) this.draw();
  }

  get sentence() {
    return this.data.sentences[this.state.sentence];
  }

  // The head whose map the lists and files are about; with all heads side by side, the block.
  get selection() {
    return { ...this.state, head: Math.max(this.state.head, BLOCK) };
  }

  // A measure that single heads do not have is that of the block.
  change({ token, ...changes }) {
    if (changes.measure && !measuresOf(this.data, this.sentence, this.measuredHead).includes(changes.measure)) changes.head ??= BLOCK;
    if ("sentence" in changes || "words" in changes) {
      this.pinned = undefined;
      this.view.at = undefined;
    }
    Object.assign(this.state, changes);
    this.pinned = token ?? this.pinned;
    this.draw();
    this.remember();
  }

  // Shows the place that a finding names; `view` is what an address keeps.
  open(view) {
    this.readInto(this.state, view);
    this.view.at = undefined;
    this.draw();
  }

  stepLayer(by) {
    const layer = this.state.layer + by;
    if (layer >= 0 && layer < this.sentence.layers.length) this.change({ layer });
  }

  // Makes the menus agree with the state, and the state with what the menus offer.
  menus() {
    const { data, state, sentence } = this;
    const offer = (name, options) => {
      const box = this.boxes[name];
      box.replaceChildren(...options.map(([value, text]) => new Option(text, value)));
      if (!options.some(([value]) => String(value) === String(state[name]))) state[name] = options[0][0];
      box.value = state[name];
    };
    offer("sentence", data.sentences.map(({ title }, at) => [at, `${at + 1}: ${clipped(title, LONGEST_TITLE)}`]));
    data.sentences.forEach(({ title }, at) => { this.boxes.sentence.options[at].title = title; });
    offer("layer", sentence.layers.map((layer, at) => [at, layer || "all"]));
    const single = Array.from({ length: sentence.heads }, (_, at) => [at + 1, String(at + 1)]);
    offer("head", [[BLOCK, "block (heads combined)"], ...(single.length ? [[EVERY_HEAD, "every head, side by side"]] : []), ...single]);
    const measures = measuresOf(data, sentence, this.measuredHead);
    this.boxes.layer.closest(".field").hidden = !sentence.layers[0];
    this.boxes.head.closest("label").hidden = !single.length;
    if (!measures.includes(state.measure)) state.measure = measures[0];
    offer("measure", this.everyMeasure.map((name) => [name, data.measures[name]]));
    this.boxes.sentence.closest("label").hidden = Boolean(data.strip);
    offer("beside", [["", "nothing"], ...measures.filter((name) => name !== state.measure).map((name) => [name, symbolOf(data.measures[name])])]);
    this.boxes.beside.closest("label").hidden = Boolean(data.strip) || measures.length < 2;
    offer("minus", [["", "nothing"], ...(data.paired && !state.sentence ? [[BEFORE, data.paired[1]]] : []),
      ...measures.filter((name) => name !== state.measure).map((name) => [`measure:${name}`, `${symbolOf(data.measures[name])}, as shares of a row`]),
      ...sentence.layers.filter((_, at) => at !== state.layer).map((layer) => [`layer:${layer}`, `layer ${layer}`])]);
    offer("scale", [["all", "all layers"], ["map", "this map"], ["row", "each row"]].map(([value, text]) =>
      [value, value === "all" && this.measuredHead !== BLOCK ? "all layers, heads" : text]));
    for (const name of TICKS) this.boxes[name].checked = state[name];
    this.boxes.log.disabled = this.signed;
    this.boxes.words.closest("label").hidden = !sentence.query_words;
    this.boxes.hideSelf.closest("label").hidden = sentence.is_cross_attention;
  }

  // Whether values may be negative: differences, and measures with a sign.
  get signed() {
    return isSigned(this.data, this.state);
  }

  // Those of the block and of single heads.
  get everyMeasure() {
    const known = [BLOCK, 1].flatMap((head) => measuresOf(this.data, this.sentence, head));
    return Object.keys(this.data.measures).filter((name) => known.includes(name));
  }

  // EVERY_HEAD offers what single heads have.
  get measuredHead() {
    return this.state.head === EVERY_HEAD ? 1 : this.state.head;
  }

  draw() {
    if (!this.root.isConnected) return;
    this.menus();
    const side = this.state.head === EVERY_HEAD;
    this.view.node.hidden = side;
    this.every.hidden = !side;
    this.beside.hidden = side || !this.state.beside;
    this.root.classList.toggle("two", !this.beside.hidden); // before maps are as wide as their places
    this.map = mapOf(this.data, this.selection);
    this.pinned ??= strongestRow(this.map);
    this.colours = palette(this.root, this.signed ? "--diverging" : "--sequential");
    this.scale = this.scaleOf(this.map);
    if (side) this.drawHeads();
    else this.view.show(this.map, (canvas) => paint(canvas, this.map, this.scale, this.colours), !this.beside.hidden);
    if (!this.beside.hidden) this.drawBeside();
    this.drawStrip();
    this.drawLegend();
    this.drawLists();
    this.drawArcs();
    this.onSelect({ ...this.state, token: this.pinned });
  }

  // What is shown beside the map: the same of another measure, on a scale of its own.
  get besideSelection() {
    return { ...this.selection, measure: this.state.beside, minus: "" };
  }

  drawBeside() {
    const selection = this.besideSelection;
    const map = mapOf(this.data, selection);
    const colours = palette(this.root, isSigned(this.data, selection) ? "--diverging" : "--sequential");
    const scale = this.scaleOf(map, selection);
    this.other.show(map, (canvas) => paint(canvas, map, scale, colours), true);
    this.otherTitle.textContent = this.titleOf(selection);
    this.otherLegend.replaceChildren(...this.legendOf(map, scale, colours, selection));
  }

  // Small maps: what is shown, what it is compared with, and the difference; or all measures, each on a scale of its own.
  drawStrip() {
    this.strip.hidden = !this.data.strip;
    if (!this.data.strip) return;
    const measures = measuresOf(this.data, this.sentence, this.measuredHead);
    const choices = this.data.paired
      ? [[this.data.paired[0], { sentence: 0, minus: "" }], [this.data.paired[1], { sentence: 1, minus: "" }], ["difference", { sentence: 0, minus: BEFORE }]]
      : this.everyMeasure.map((measure) => [symbolOf(this.data.measures[measure]), { measure, minus: "", ...(!measures.includes(measure) && { head: BLOCK }) }]);
    this.strip.replaceChildren(...choices.map(([title, choice]) => {
      const canvas = make("canvas", { "aria-hidden": "true" });
      const selection = { ...this.selection, ...choice };
      const map = mapOf(this.data, selection);
      const difference = isSigned(this.data, selection);
      const shared = this.data.paired && !selection.minus && this.scale.largest && !this.signed;
      const largest = shared ? this.scale.largest : largestOf(map.values, map.columns.length, this.scale.hideSelf);
      paint(canvas, map, { largest, difference, hideSelf: this.scale.hideSelf }, palette(this.root, difference ? "--diverging" : "--sequential"));
      const chosen = Object.entries(choice).every(([name, value]) => this.state[name] === value);
      const change = selection.minus ? [make("small", {}, changeIn(map))] : [];
      return make("button", { type: "button", "aria-pressed": String(chosen), onclick: () => this.change(choice) }, canvas, make("span", { title }, title), ...change);
    }));
  }

  // The tree of an annotated sentence, beside the heads that the map of its words prefers.
  drawArcs() {
    this.arcs.hidden = !this.sentence.tree;
    if (!this.sentence.tree) return;
    const { svg, found, arcs } = arcsSvg(this.sentence, mapOf(this.data, { ...this.selection, words: true }));
    const drawing = make("div", { className: "arcs-drawing", tabIndex: 0, innerHTML: svg });
    drawing.firstChild.setAttribute("aria-label", `Dependency tree: of ${found} of ${arcs} arcs, the head has the largest value in the dependent’s row.`);
    const key = (kind, text) => make("span", { className: `key ${kind}` }, make("i", {}), text);
    this.arcs.replaceChildren(drawing, make("figcaption", {}, "Above, the treebank’s arcs from heads to dependents; below, heads that the map prefers.",
      key("found", `the head has the largest value among the other words of the dependent’s row (${found} of ${arcs})`),
      key("gold", `another word has the largest value (${arcs - found})`), key("instead", "the word with the largest value instead")));
  }

  scaleOf(map, selection = this.selection) {
    const { scale, log, hideSelf } = this.state;
    const signed = isSigned(this.data, selection);
    const hidden = hideSelf && !this.sentence.is_cross_attention;
    const { largest, beyond } = scale === "map" && !log ? endOfScale(map.values, map.columns.length, hidden)
      : { largest: scale === "all" ? this.largestOfAll(selection, hidden) : largestOf(map.values, map.columns.length, hidden), beyond: [] };
    return { largest, beyond, perRow: scale === "row", difference: signed, log: log && !signed, hideSelf: hidden };
  }

  // Over all layers, and over all heads if single heads are shown.
  largestOfAll(selection, hideSelf) {
    const { sentence } = this;
    const sentences = this.data.paired && !selection.minus ? [0, 1] : [selection.sentence];
    const heads = this.measuredHead === BLOCK ? [BLOCK] : Array.from({ length: sentence.heads }, (_, at) => at + 1);
    const key = JSON.stringify([selection.sentence, selection.measure, selection.minus, selection.words, hideSelf, heads.length]);
    if (!this.extents.has(key)) {
      const sizes = sentences.flatMap((number) => this.data.sentences[number].layers.flatMap((_, layer) => heads.map((head) => {
        const map = mapOf(this.data, { ...selection, sentence: number, layer, head });
        return largestOf(map.values, map.columns.length, hideSelf);
      })));
      this.extents.set(key, Math.max(...sizes));
    }
    return this.extents.get(key);
  }

  drawHeads() {
    const maps = Array.from({ length: this.sentence.heads }, (_, at) => mapOf(this.data, { ...this.state, head: at + 1 }));
    if (this.state.scale === "map") Object.assign(this.scale, { beyond: [], largest: Math.max(...maps.map((map) => largestOf(map.values, map.columns.length, this.scale.hideSelf))) });
    this.every.replaceChildren(...maps.map((map, at) => {
      const canvas = make("canvas", { role: "img", "aria-label": `head ${at + 1}` });
      paint(canvas, map, this.scale, this.colours);
      return make("button", { type: "button", onclick: () => this.change({ head: at + 1 }) }, canvas, make("span", {}, `head ${at + 1}`));
    }));
  }

  measureTitle({ measure, minus, layer }) {
    const [kind, name] = minus.split(":");
    const title = this.data.measures[measure];
    if (kind === "measure") return `${symbolOf(title)} − ${symbolOf(this.data.measures[name])}, as shares of a row`;
    if (minus === BEFORE) return `${title}: ${this.data.paired.join(" − ")}`;
    return kind === "layer" ? `${title}: layer ${this.sentence.layers[layer]} − layer ${name}` : title;
  }

  // What a map shows: its measure, layer and head.
  titleOf(selection, head = selection.head) {
    const number = !selection.minus.startsWith("layer:") && this.sentence.layers[selection.layer];
    const heads = head === EVERY_HEAD ? "every head" : head ? `head ${head}` : this.sentence.heads && "all heads";
    return [this.measureTitle(selection), number && `layer ${number}`, heads].filter(Boolean).join(", ");
  }

  drawLegend() {
    this.title.textContent = this.titleOf(this.selection, this.state.head);
    this.legend.replaceChildren(...this.legendOf(this.map, this.scale, this.colours, this.selection));
  }

  legendOf(map, scale, colours, { measure, minus }) {
    const { largest, difference, log, perRow, beyond } = scale;
    const end = perRow ? "the row's largest" : formatNumber(largest);
    const cells = beyond.map((at) => `${nameOf(map, "rows", Math.floor(at / map.columns.length))} ← ${nameOf(map, "columns", at % map.columns.length)} ${formatNumber(map.values[at], difference)}`);
    const low = log ? (perRow ? "a ten-thousandth of it" : formatNumber(largest / 10 ** DECADES)) : "0";
    const ticks = difference ? [perRow ? "less" : MINUS + end, "0", perRow ? "more" : `+${end}`] : [low, end];
    const parts = [ramp(colours, ticks), make("span", { className: "legend-title" }, `${minus ? "difference" : symbolOf(this.data.measures[measure])}${log ? " (logarithmic)" : ""}`)];
    if (cells.length) parts.push(make("span", { className: "faint" }, `beyond the scale: ${cells.join(", ")}`));
    const empty = minus ? "hatched: no value" : `hatched: ${map.rowWords ? "words" : "tokens"} that the row cannot see`;
    return map.values.some(Number.isNaN) ? [...parts, make("span", { className: "faint" }, empty)] : parts;
  }

  reading(at, map = this.map, signed = this.signed) {
    const columns = map.columns.length;
    const [row, column] = [Math.floor(at / columns), at % columns];
    const value = Number.isNaN(map.values[at]) ? "no value" : formatNumber(map.values[at], signed);
    const [to, from] = [nameOf(map, "rows", row), nameOf(map, "columns", column)];
    this.live.textContent = this.state.measure === "product" ? `${from}: product ${value}, ${to}` : map.ofTargets ? `${from} adds ${value}: ${to}` : `${to} receives ${value} from ${from}`;
    return { value, tokens: `${map.exact.rows[row]} (${row}) ← ${map.exact.columns[column]} (${column})` };
  }

  pin(row, column) {
    if (row === undefined && this.sentence.is_cross_attention) return;
    this.pinned = row ?? column;
    this.drawLists();
    this.remember();
  }

  drawLists() {
    const { map, pinned } = this;
    const columns = map.columns.length;
    const token = map.rows[pinned];
    const where = this.state.head === EVERY_HEAD ? " (all heads)" : "";
    const column = this.sentence.is_cross_attention ? undefined : pinned;
    this.view.markPinned(pinned, column);
    if (!this.beside.hidden) this.other.markPinned(pinned, column);
    const title = this.sentence.of_targets ? `Largest values of “${token}”` : `“${token}” receives from`;
    const lists = [[`${title}${where}`, ranking(map, "columns", rowOf(map, pinned))]];
    if (!this.sentence.is_cross_attention) {
      lists.push([`“${token}” contributes to${where}`, ranking(map, "rows", map.rows.map((_, row) => map.values[row * columns + pinned]))]);
    }
    this.lists.replaceChildren(...valueLists(lists, this.signed ? this.colours : undefined));
    this.drawImage();
  }

  // The pinned row on the image whose patches are tokens, or below the wave of the sound whose frames are: by the measure that is
  // shown, and by the one beside it or the weights.
  drawImage() {
    const { image, sound } = this.sentence;
    this.image.node.hidden = !image || Boolean(this.state.minus);
    this.sound.node.hidden = !sound || this.signed || Boolean(this.state.minus);
    if (this.image.node.hidden && this.sound.node.hidden) return;
    const beside = this.signed ? ["product", this.state.measure] : ["attn_w", this.state.beside, this.state.measure];
    const measures = [...new Set(beside)].filter((name) => this.everyMeasure.includes(name) && this.data.signed_measures.includes(name) === this.signed);
    const colours = palette(this.root, this.signed ? "--paper-diverging" : "--paper-sequential"); // an image is as light in dark mode
    const row = this.map.rows[this.pinned];
    const maps = measures.map((measure) => {
      const symbol = symbolOf(this.data.measures[measure]);
      return { title: this.map.ofTargets ? `${row}: ${symbol}` : `“${row}” receives: ${symbol}`, map: mapOf(this.data, { ...this.selection, measure }), colours };
    });
    if (image) this.image.show(image, maps, this.pinned, this.signed);
    else this.sound.show(sound, maps, this.pinned, this.sentence.is_cross_attention);
  }

  save(kind) {
    const { sentence, layer, head, measure } = this.selection;
    const number = this.sentence.layers[layer];
    const name = `sentence${sentence + 1}_${number ? `layer${number}_` : ""}${head ? `head${head}` : "block"}_${measure}`;
    const onPaper = palette(this.root, this.signed ? "--paper-diverging" : "--paper-sequential");
    const svg = () => mapSvg(this.map, this.scale, onPaper, this.titleOf(this.selection));
    if (kind === "csv") download(`${name}.csv`, "text/csv", mapCsv(this.map));
    else if (kind === "svg") download(`${name}.svg`, "image/svg+xml", svg());
    else downloadPng(`${name}.png`, svg());
  }

  fullScreen() {
    if (document.fullscreenElement) document.exitFullscreen();
    else this.root.requestFullscreen?.();
  }

  remember() {
    if (!this.address) return;
    const { sentence, layer, beside, minus, scale, head, measure } = this.state;
    const kept = { sentence: sentence + 1, layer: this.sentence.layers[layer], head, measure, beside, token: this.pinned, scale, minus };
    for (const name of TICKS) if (this.state[name]) kept[name] = 1;
    this.address.write(new URLSearchParams(Object.entries(kept).filter(([, value]) => value !== "" && value !== undefined)));
  }

  fromAddress() {
    const found = this.address?.read();
    this.open(found ?? new URLSearchParams(this.data.start ?? {}));
    if (found) this.address.reached?.(this.root);
  }

  // The state that an address keeps; what it does not name is as in any explorer.
  readInto(state, given) {
    const number = (name, missing) => (given.has(name) ? Number(given.get(name)) : missing);
    state.sentence = Math.min(Math.max(number("sentence", 1) - 1, 0), this.data.sentences.length - 1) || 0;
    const layer = this.sentence.layers.indexOf(number("layer"));
    state.layer = layer < 0 ? this.sentence.layers.length - 1 : layer;
    state.head = number("head", BLOCK);
    for (const name of ["measure", "beside", "minus", "scale"]) state[name] = given.get(name) ?? this.defaults[name];
    for (const name of TICKS) state[name] = given.has(name);
    if (state.measure === WHOLE_LAYER) state.measure = measuresOf(this.data, this.sentence, BLOCK).at(-1);
    const token = number("token", NaN);
    this.pinned = token >= 0 && token < axesOf(this.sentence, state.words).rows.length ? token : undefined;
  }
}

// Whether the values of a selection may be negative.
const isSigned = (data, { sentence, minus, measure }) => Boolean(minus) || data.sentences[sentence].is_difference || data.signed_measures.includes(measure);

// The symbol of a measure's title: "‖αf(x)‖ (weighted vector)".
const symbolOf = (title) => title.split(" (")[0];
