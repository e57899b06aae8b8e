// The comparison of runs: curves by layer, and tables that can be filtered and saved.
const dataOf = (id) => {
  const node = document.getElementById(id);
  return node && JSON.parse(node.textContent);
};

// Okabe and Ito's palette; from the eighth line on, dashes differ too.
const COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "@text"];
const DASHES = [[1, 0], [6, 3], [2, 2]];

function curveSpec(title, lines, along) {
  const values = lines.flatMap(({ label, layer, depth, value }) => value.map((number, at) => ({ run: label, layer: layer[at], depth: depth[at], value: number })));
  const domain = lines.map(({ label }) => label);
  const style = (channel) => ({ field: "run", type: "nominal", legend: { title: null, symbolType: "stroke", columns: 1 }, scale: { domain, range: domain.map(channel) } });
  const axis = along === "layer" ? { title: "layer", tickMinStep: 1, format: "d" } : { title: "relative depth" };
  const faded = { condition: { param: "series", value: 1 }, value: 0.08 };
  return {
    usermeta: { across: 1 }, data: { values }, description: title,
    encoding: {
      x: { field: along, type: "quantitative", axis: { ...axis, grid: false }, scale: { zero: along === "depth", nice: false, padding: 8 } },
      y: { field: "value", type: "quantitative", title },
      color: style((_, at) => COLOURS[at % COLOURS.length]), opacity: faded,
      tooltip: [{ field: "run", type: "nominal" }, { field: along, type: along === "layer" ? "ordinal" : "quantitative", title: axis.title }, { field: "value", type: "quantitative", title, format: ",.3r" }],
    },
    layer: [
      { params: [{ name: "series", select: { type: "point", fields: ["run"], toggle: "true" }, bind: "legend" }, { name: "zoom", select: { type: "interval", zoom: "wheel![event.shiftKey]" }, bind: "scales" }],
        mark: { type: "line", strokeWidth: 2 }, encoding: { strokeDash: style((_, at) => DASHES[Math.floor(at / COLOURS.length) % DASHES.length]) } },
      { mark: { type: "point", filled: true, size: 50 } },
    ],
  };
}

function mountCurves({ curves }) {
  const [curve, along] = ["curve", "along"].map((id) => document.getElementById(id));
  curve.replaceChildren(...Object.keys(curves).map((name) => new Option(name, name)));
  const depths = new Set(Object.values(curves).flat().map((line) => Math.round(line.layer.at(-1) / line.depth.at(-1))));
  along.value = depths.size > 1 ? "depth" : "layer";
  const spec = () => curveSpec(curve.value, curves[curve.value], along.value);
  const chart = new Chart(document.getElementById("chart"), spec(), "curves");
  mountCharts([chart]);
  for (const box of [curve, along]) box.addEventListener("change", () => chart.replace(spec()));
}

const csvOf = (rows) => rows.map((row) => row.map((text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text)).join()).join("\n");

function latexOf(rows) {
  const commands = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "−": "$-$" };
  const escaped = (text) => text.replace(/[\\~^&%$#_{}−]/g, (sign) => commands[sign] ?? `\\${sign}`);
  const lines = rows.map((row) => `${row.map(escaped).join(" & ")} \\\\`);
  return [`\\begin{tabular}{${"l".repeat(rows[0].length)}}`, "\\toprule", lines[0], "\\midrule", ...lines.slice(1), "\\bottomrule", "\\end{tabular}"].join("\n");
}

// The rows that the filter shows: exact numbers for programs, rounded ones for a paper.
function shownRows(table, data, exact) {
  const names = data.columns.map(({ name }) => name);
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const order = new Map(table.rowsInData.map((row, at) => [row, at]));
  const texts = (row) => (exact ? data.columns.map(({ values }) => String(values[order.get(row)] ?? "")) : [...row.cells].map((cell) => cell.textContent));
  return [names, ...rows.map(texts)];
}

function mountTable(place, name, data) {
  fillTable(place, data);
  const table = place.querySelector("table");
  table.rowsInData = [...table.tBodies[0].rows];
  const save = (label, action) => make("button", { type: "button", onclick: action }, label);
  place.querySelector(".table-tools").append(
    save("CSV", () => download(`${name}.csv`, "text/csv", csvOf(shownRows(table, data, true)))),
    save("LaTeX", () => download(`${name}.tex`, "text/x-tex", latexOf(shownRows(table, data, false)))));
}

const curvesData = dataOf("curves-data");
if (curvesData) mountCurves(curvesData);
for (const [name, data] of Object.entries(dataOf("tables-data"))) mountTable(document.querySelector(`[data-filled="${name}"]`), name, data);
