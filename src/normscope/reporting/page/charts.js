// Charts: sizes Vega-Lite specifications for the window, colours them for light or dark, and shows them.

// Data by column to data by row.
function rowsOf({ columns }) {
  const names = Object.keys(columns);
  return columns[names[0]].map((_, at) => Object.fromEntries(names.map((name) => [name, columns[name][at]])));
}

function withRows(spec) {
  const copy = { ...spec };
  if (copy.data?.columns) copy.data = { values: rowsOf(copy.data) };
  if (copy.concat) copy.concat = copy.concat.map(withRows);
  return copy;
}

// What specifications name: the page's colours, those of numbers on cells, and where the latter change.
function named(spec, node) {
  const colours = { "@text": styleValue(node, "--text"), "@mark": styleValue(node, "--mark"), "@on-much": styleValue(node, "--on-much"), "@on-little": styleValue(node, "--on-little"), "@missing": styleValue(node, "--missing"), "@line": styleValue(node, "--line"), "@ground": styleValue(node, "--ground"), "@ramp": styleValue(node, "--sequential").split(",").slice(3).map((stop) => stop.trim()) };
  for (const pair of styleValue(node, "--instead").split(",").filter(Boolean)) {
    const [colour, instead] = pair.trim().split(" ");
    colours[colour] = instead;
  }
  const change = styleValue(node, "--on-switch");
  return JSON.parse(JSON.stringify(spec), (_, value) => (typeof value === "string" ? colours[value] ?? value.replace("@switch", change) : value));
}

const ROOM = { axis: 62, gap: 18, facet: 30, smallest: 170, label: 74, letter: 6.5, map: 330, narrowest: 150, widest: 420, tick: 24, turned: 4.6, least: 60, number: 14, word: 90, character: 6.8, digit: 5.6, inside: 3, line: 11 };

// Panels across, and the width of each, in the room that there is.
function panelsIn(width, { across, narrow = 1 }) {
  const fitting = Math.max(1, Math.floor(width / (ROOM.smallest + ROOM.axis)));
  const columns = Math.min(across, fitting > 1 || across === 1 ? fitting : narrow);
  return { columns, panel: Math.max(90, Math.floor((width - 8) / columns - ROOM.axis - 7)) };
}

// An expression that breaks titles into lines of this width: after a method's name, and between words where one is too long.
function linesOf(titles, width) {
  const most = Math.max(8, Math.floor(width / ROOM.character));
  const broken = (text) => text.split(" ").reduce((lines, word) => {
    const last = lines.at(-1);
    return last !== undefined && last.length + word.length < most ? [...lines.slice(0, -1), `${last} ${word}`] : [...lines, word];
  }, []);
  const lines = Object.fromEntries(titles.map((title) => [title, title.split(": ").flatMap(broken)]));
  return `${JSON.stringify(lines)}[datum.label]`;
}

// Small heat maps share their rows' axis, so that more of them fit.
function heatmapsIn(width, { across, narrow, rowLetters, columnLetters }) {
  for (let columns = width < 640 ? Math.min(across, narrow) : across; ; columns--) {
    const room = (width - axisOf(rowLetters) - ROOM.gap) / columns;
    const beside = Math.max(ROOM.facet, overhang(columnLetters, (room - ROOM.facet) / columnLetters.length));
    const panel = Math.floor(room - beside);
    if (panel >= ROOM.least || columns === 1) return { columns, panel: Math.max(ROOM.least, panel) };
  }
}

// How far turned column labels reach beyond the left edge of their map, whose cells have this width.
const overhang = (letters, cell) => Math.max(...letters.map((count, at) => count * ROOM.turned - (at + 0.5) * cell)) + ROOM.gap;

// The room that an axis and its title need if its labels have this many letters.
const axisOf = (letters) => Math.max(ROOM.axis, letters * ROOM.letter + ROOM.tick);

// Maps of words by words: as many side by side as fit with square cells of at least the smallest size.
function wordMapsIn(width, { across, cell, words, rowLetters }) {
  const room = width - Math.min(ROOM.word, rowLetters * ROOM.letter) - ROOM.tick;
  const columns = evenly(across, Math.max(1, Math.min(across, Math.floor(room / (cell * words + ROOM.gap)))));
  return { columns, side: Math.min(2 * cell, (room / columns - ROOM.gap) / words) };
}

function sized(spec, width) {
  const { usermeta } = spec;
  if (usermeta.cell) return sizedHeatmaps(spec, width);
  if (usermeta.panels) return sizedPanels(spec, width);
  if (usermeta.maps) return sizedMaps(spec, width);
  const { columns, panel } = panelsIn(width, usermeta);
  if (!spec.facet) return { ...spec, width: width - 8, height: Math.min(300, Math.max(220, width / 2.2)), autosize: { type: "fit-x", contains: "padding" } };
  // If a title is long, its part in parentheses goes on a second line.
  const fits = Math.floor((panel + ROOM.axis) / ROOM.character);
  const facet = { ...spec.facet, header: { labelLimit: panel + ROOM.axis, labelExpr: `length(datum.label) > ${fits} ? split(replace(datum.label, ' (', '\\n('), '\\n') : datum.label` } };
  // Rows with names need their own height, and names their own room.
  const height = usermeta.rows ? usermeta.rows * 18 : Math.round(Math.min(200, Math.max(130, panel * 0.72)));
  const room = usermeta.rows ? Math.max(0, axisOf(usermeta.rowLetters) - ROOM.axis) : 0;
  return { ...spec, facet, columns, spec: { ...spec.spec, width: Math.max(120, panel - room), height } };
}

// In rows of equal length as far as possible: the number of columns for so many charts, of which that many fit.
const evenly = (count, fitting) => Math.ceil(count / Math.ceil(count / fitting));

// The title of a chart, in a line for each of its parts, cut where the next chart begins.
const titled = ({ title }, limit) => (title ? { title: { text: title.split(/, |(?<=:) /), limit } } : {});

// Charts side by side with axes of their own, in rows of equal length as far as possible.
function sizedPanels(spec, width) {
  const count = spec.concat.length;
  const fitting = Math.max(1, Math.min(spec.usermeta.across, Math.floor(width / (ROOM.narrowest + ROOM.axis))));
  const columns = evenly(count, fitting);
  const panel = Math.min(ROOM.widest, Math.floor((width - 8) / columns - ROOM.axis - ROOM.gap));
  const height = Math.round(Math.min(200, Math.max(130, panel * 0.72)));
  return { ...spec, columns, concat: spec.concat.map((chart) => ({ ...chart, ...titled(chart, panel + ROOM.axis), width: panel, height })) };
}

// Three heat maps in a row, or below each other where the window is narrow.
function sizedMaps(spec, width) {
  const columns = width < 640 ? 1 : spec.concat.length;
  const panel = Math.min(ROOM.widest, Math.floor((width - 8) / columns - ROOM.axis - ROOM.gap));
  const height = Math.min(320, Math.max(90, spec.usermeta.rows * 16));
  const fit = ({ rows, columns: across, letters }) => panel / across >= letters * ROOM.digit + ROOM.inside && height / rows >= ROOM.line;
  const numbered = ({ usermeta, ...map }) => (fit(usermeta) ? map : { ...map, layer: withoutNumbers(map.layer) });
  return { ...spec, columns, concat: spec.concat.map((map) => ({ ...numbered(map), ...titled(map, panel), width: panel, height })) };
}

const withoutNumbers = (layer) => layer.filter(({ mark }) => mark.type !== "text");

// A heat map whose cells are too narrow for every column's label and for numbers.
function crowded({ encoding, layer, ...rest }) {
  const x = { ...encoding.x, axis: { ...encoding.x.axis, labelOverlap: "greedy" } };
  return { ...rest, encoding: { ...encoding, x }, ...(layer && { layer: withoutNumbers(layer) }) };
}

function sizedHeatmaps(spec, width) {
  const { cell, words, rows, letters, rowLetters } = spec.usermeta;
  if (words) {
    const { columns, side } = wordMapsIn(width, spec.usermeta);
    return { ...spec, columns, spec: { ...spec.spec, width: Math.floor(side * words), height: Math.floor(side * rows) } };
  }
  const height = Math.max(cell * rows, 40);
  if (spec.facet) {
    const { columns, panel } = heatmapsIn(width, spec.usermeta);
    const facet = { ...spec.facet, header: { labelLimit: panel + (width < 640 ? 1 : 2) * ROOM.facet, labelFontSize: columns > 1 || width > 640 ? 11 : 10, labelExpr: linesOf(spec.facet.sort, panel + (width < 640 ? 1 : 2) * ROOM.facet) } };
    const roomy = panel >= spec.usermeta.columnLetters.length * ROOM.number;
    return { ...spec, facet, columns, spec: { ...(roomy ? spec.spec : crowded(spec.spec)), width: panel, height } };
  }
  const columns = evenly(spec.concat.length, Math.max(1, Math.min(spec.usermeta.across, Math.floor(width / ROOM.map))));
  const label = letters && Math.max(ROOM.label, Math.min(letters * ROOM.letter, width / 3));
  const panel = Math.max(70, Math.floor(width / columns - axisOf(rowLetters) - label - 20));
  const shown = panel >= spec.usermeta.columns * ROOM.number ? (map) => map : crowded;
  const cells = (map) => ({ ...shown(map), width: panel, height });
  return { ...spec, columns, concat: spec.concat.map((map) => (map.facet ? { ...map, spec: cells(map.spec) } : cells(map))) };
}

// Of a legend below panels that a narrow window stacks, the reader would learn too late.
function legendStyle({ facet, usermeta }, width) {
  const letters = usermeta?.letters && !usermeta.cell ? usermeta.letters : 0;
  const columns = letters ? Math.max(1, Math.floor((width - ROOM.axis) / (letters * 6.6 + 26))) : width < 460 ? 1 : width < 800 ? 2 : 4;
  return { orient: facet && letters && width < 640 ? "top" : "bottom", columns };
}

function themeOf(node, width, spec) {
  const [text, faint, line, ground] = ["--text", "--faint", "--line", "--ground"].map((name) => styleValue(node, name));
  const list = (name) => styleValue(node, name).split(",").map((stop) => stop.trim());
  const font = "system-ui, -apple-system, Segoe UI, Roboto, sans-serif";
  return {
    background: ground, font, view: { stroke: null },
    axis: { labelColor: text, titleColor: text, titleFontWeight: "normal", gridColor: line, domainColor: faint, tickColor: faint, labelFontSize: 11, titleFontSize: 12, tickCount: 5 },
    legend: { ...legendStyle(spec, width), labelColor: text, titleColor: text, titleFontWeight: "normal", labelFontSize: 12, titleFontSize: 12, labelLimit: 340, gradientLength: width < 640 ? 120 : 220 },
    header: { labelColor: text, titleColor: text, labelFontSize: 12, labelFontWeight: "bold", labelLimit: 200 },
    title: { color: text, fontSize: 12, anchor: "start" },
    text: { color: text },
    range: { heatmap: list("--sequential"), ramp: list("--sequential"), diverging: list("--diverging") },
  };
}

// With fingers, dragging must scroll the page.
function withoutZoom(spec) {
  if (!matchMedia("(pointer: coarse)").matches) return spec;
  return JSON.parse(JSON.stringify(spec), (name, value) => (name === "params" ? value.filter((param) => param.name !== "zoom") : value));
}

const LARGE = 1500;

async function showChart(node, spec, name) {
  const width = Math.floor(node.clientWidth);
  const many = (spec.data?.values ?? []).length > LARGE;
  const { view } = await vegaEmbed(node, named(withoutZoom(sized(spec, width)), node), {
    ast: true, config: themeOf(node, width, spec), renderer: many ? "canvas" : "svg", mode: "vega-lite", downloadFileName: name,
    actions: { export: true, source: false, compiled: false, editor: false }, tooltip: { theme: "custom" },
  });
  return view;
}

// A chart that is drawn again when its place, its colours or its content change.
class Chart {
  constructor(node, spec, name) {
    Object.assign(this, { node, name, spec: withRows(spec), done: Promise.resolve() });
  }

  // One at a time: a request while the chart is being drawn waits for that.
  show() {
    this.width = this.node.clientWidth;
    this.done = this.done.then(async () => {
      this.view?.finalize();
      this.view = await showChart(this.node, this.spec, this.name);
    });
    return this.done;
  }

  resize() {
    if (Math.abs(this.node.clientWidth - this.width) > 1) this.show();
  }

  replace(spec) {
    this.spec = withRows(spec);
    this.show();
  }
}

// Shows charts one after another, so that the page can be read meanwhile, and follows the window and its colours.
async function mountCharts(charts) {
  if (!charts.length) return;
  await loadLibraries();
  let waiting;
  addEventListener("resize", () => {
    clearTimeout(waiting);
    waiting = setTimeout(() => charts.forEach((chart) => chart.resize()), 150);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach((chart) => chart.show()));
  for (const chart of charts) {
    await chart.show();
    await new Promise((resolve) => setTimeout(resolve));
  }
}
