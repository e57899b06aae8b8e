// The comparison of runs: curves by layer, and tables that can be filtered and saved.

// Okabe and Ito's palette; from the eighth line on, dashes differ too.
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "@text"];
const DASHES = [[1, 0], [6, 3], [2, 2]];

function rangeOf(lines) {
  const values = lines.flatMap(({ value, low, high }) => [...value, ...(low ?? []), ...(high ?? [])]).filter((number) => number !== null);
  return [Math.min(...values), Math.max(...values)];
}

// An axis starts at zero unless that wastes more than half of the height.
function fromZero(lines) {
  const [least, most] = rangeOf(lines);
  return least >= 0 ? least < most / 2 : most <= 0 && most > least / 2;
}

// The range of an axis that would zoom into noise, widened: to 10 points for percentages, otherwise to a tenth of the largest
// magnitude. Nothing is widened where a difference was detected.
function widened([least, most], { label, differs }) {
  const smallest = label?.endsWith("(%)") ? 10 : Math.max(Math.abs(least), Math.abs(most)) / 10;
  if (differs || most - least >= smallest) return null;
  const from = (least + most - smallest) / 2;
  if (least >= 0 && from < 0) return [0, smallest];
  return label?.endsWith("(%)") && most <= 100 && from + smallest > 100 ? [100 - smallest, 100] : [from, from + smallest];
}

// The range of a family's panels: the same for all, unless that would flatten one of them.
function sharedRange(panels, kind) {
  const ranges = panels.map((panel) => rangeOf(panel[kind]));
  const [least, most] = [Math.min(...ranges.map(([low]) => low)), Math.max(...ranges.map(([, high]) => high))];
  const span = most - (least > 0 && least < most / 2 ? 0 : least);
  const flat = ranges.some(([low, high]) => high > low && high - low < span / 12);
  const shared = [least > 0 && least < most / 2 ? 0 : least, most];
  const differs = panels.some((panel) => panel.differs);
  return panels.length > 1 && !flat ? widened(shared, { label: panels[0].label, differs }) ?? shared : null;
}

// A long title of an axis in two lines, broken at the space nearest to the middle.
function inLines(title) {
  const spaces = [...title.matchAll(/ /g)].map(({ index }) => index);
  if (title.length <= 24 || !spaces.length) return title;
  const middle = spaces.reduce((best, at) => (Math.abs(at - title.length / 2) < Math.abs(best - title.length / 2) ? at : best));
  return [title.slice(0, middle), title.slice(middle + 1)];
}

function panelSpec({ title, label, lines, domain, along, first, range, differs }) {
  const values = lines.flatMap(({ label, layer, depth, value, low, high }) => value.map((number, at) => ({ run: label, layer: layer[at], depth: depth[at], value: number, low: low?.[at], high: high?.[at] })));
  const style = (channel) => ({ field: "run", type: "nominal", legend: { title: null, symbolType: "stroke" }, scale: { domain, range: domain.map(channel) } });
  const axis = along === "layer" ? { title: "layer", tickMinStep: 1, format: "d" } : { title: "relative depth" };
  const faded = (shown) => ({ condition: { param: "series", value: shown }, value: 0.05 });
  const params = [{ name: "series", select: { type: "point", fields: ["run"], toggle: "true" }, bind: "legend" }];
  const interval = lines.some(({ low }) => low);
  const number = { type: "quantitative", format: ",.3r" };
  const bounds = interval ? [{ field: "low", title: "95% from", ...number }, { field: "high", title: "to", ...number }] : [];
  const own = range ?? (fromZero(lines) ? null : widened(rangeOf(lines), { label, differs }));
  const y = { type: "quantitative", title: inLines(label || title), axis: { titleLimit: 130 }, scale: own ? { domain: own, nice: true } : { zero: fromZero(lines) } };
  return {
    ...(label && title ? { title } : {}),
    data: { values },
    encoding: {
      x: { field: along, type: "quantitative", axis: { ...axis, grid: false }, scale: { zero: along === "depth", nice: false, padding: 8 } },
      color: style((_, at) => COLOURS[at % COLOURS.length]),
      tooltip: [{ field: "run", type: "nominal" }, { field: along, type: along === "layer" ? "ordinal" : "quantitative", title: axis.title }, { field: "value", title: label || title, ...number }, ...bounds],
    },
    layer: [
      { ...(first ? { params } : {}), mark: { type: "line", strokeWidth: 2 },
        encoding: { y: { field: "value", ...y }, opacity: faded(1), strokeDash: style((_, at) => DASHES[Math.floor(at / COLOURS.length) % DASHES.length]) } },
      ...(interval ? [{ mark: { type: "area" }, encoding: { y: { field: "low", ...y }, y2: { field: "high" }, opacity: faded(0.2), tooltip: null } }] : []),
      { mark: { type: "point", filled: true, size: 30 }, encoding: { y: { field: "value", ...y }, opacity: faded(1) } },
    ],
  };
}

// The panels of one family of metrics, which share colours, legend and, where nothing is lost, the range.
function familySpec({ title, panels }, kind, along) {
  const domain = [...new Set(panels.flatMap((panel) => panel[kind].map(({ label }) => label)))];
  const shown = panels.filter((panel) => panel[kind].length);
  const alike = shown.every(({ label }) => label && label === shown[0].label);
  const range = alike ? sharedRange(shown, kind) : null;
  return {
    usermeta: { across: Math.min(5, shown.length), panels: true }, description: `${title} by ${along === "layer" ? "layer" : "relative depth"}`,
    ...(alike && shown.length > 1 && !range ? { title: { text: "Each panel has its own range.", fontWeight: "normal", fontSize: 11 } } : {}),
    concat: shown.map((panel, at) => panelSpec({ ...panel, lines: panel[kind], domain, along, first: at === 0, range })),
  };
}

function mountCurves(families) {
  const [lines, along] = ["lines", "along"].map((id) => document.getElementById(id));
  const depths = new Set(Object.values(families).flatMap(({ panels }) => panels).flatMap((panel) => panel.runs.map((line) => Math.round(line.layer.at(-1) / line.depth.at(-1)))));
  along.value = depths.size > 1 ? "depth" : "layer";
  // A family without means over seeds shows its runs.
  const kind = ({ panels }) => (lines?.value === "means" && panels.some(({ means }) => means.length) ? "means" : "runs");
  const spec = (family) => familySpec(families[family], kind(families[family]), along.value);
  const charts = new Map([...document.querySelectorAll("[data-family]")].map((node) => [node.dataset.family, new Chart(node, spec(node.dataset.family), node.dataset.family)]));
  for (const box of [lines, along]) box?.addEventListener("change", () => charts.forEach((chart, family) => chart.replace(spec(family))));
  return [...charts.values()];
}

// The rows that the filter shows, with exact numbers.
function shownRows(table, data) {
  const names = data.columns.map(({ name }) => name);
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const order = new Map(table.rowsInData.map((row, at) => [row, at]));
  const texts = (row) => data.columns.map(({ values }) => values[order.get(row)] ?? "");
  return [names, ...rows.map(texts)];
}

function mountTable(place, name, data) {
  fillTable(place, data);
  const table = place.querySelector("table");
  table.rowsInData = [...table.tBodies[0].rows];
  const save = (label, action) => make("button", { type: "button", onclick: action }, label);
  place.querySelector(".table-tools").append(
    save("CSV", () => download(`${name}.csv`, "text/csv", csvOf(shownRows(table, data)))));
}

const [curvesData, trainingData, mapsData] = ["curves-data", "training-data", "maps-data"].map(dataOf);
mountCharts([...(trainingData ? mountTraining(trainingData) : []), ...(curvesData ? mountCurves(curvesData) : []), ...(mapsData ? mountMaps(mapsData, document.getElementById("map-group").dataset.baseline) : [])]);
for (const [name, data] of Object.entries(dataOf("tables-data"))) mountTable(document.querySelector(`[data-filled="${name}"]`), name, data);
