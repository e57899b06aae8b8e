// Heat maps of the baseline and of other runs, and their difference.
const mapCells = ({ row, column, value, from, to }) => value.map((number, at) => ({ row: row[at], column: column[at], value: number, from: from?.[at], to: to?.[at], middle: from && (from[at] + to[at]) / 2 }));

// Numbers in cells, in as few digits as tell them apart; `sizedMaps` leaves them out where cells are too small. On a scale that ends at
// `furthest`, the further from zero, the darker the cell on a light page, and the lighter on a dark one.
function mapNumbers(figure, cells, furthest) {
  const digits = furthest >= 10 ? 0 : furthest >= 1 ? 1 : 2;
  const y = figure.byDepth ? { y: { field: "middle", type: "quantitative" }, y2: null } : {};
  const color = { condition: { test: `abs(datum.value) / ${furthest} > @switch`, value: "@on-much" }, value: "@on-little" };
  return {
    transform: [{ filter: "datum.value !== null" }], mark: { type: "text", fontSize: 10 },
    encoding: { ...y, text: { field: "value", type: "quantitative", format: `.${digits}f` }, color },
  };
}

// What decides whether numbers fit: how many rows and columns a map has, and the letters of its longest number.
function mapSize(figure, cells, furthest) {
  const letters = Math.max(0, ...cells.filter(({ value }) => value !== null).map(({ value }) => value.toFixed(furthest >= 10 ? 0 : furthest >= 1 ? 1 : 2).length));
  return { rows: new Set(cells.map(({ row }) => row)).size, columns: figure.columns.length, letters };
}

// Rows are layers, or intervals of relative depth where models differ in depth.
function mapSpec(figure, title, label, cells, scale) {
  const furthest = scale.domain[1];
  const axis = { labelOverlap: true, ticks: false, domain: false };
  const y = figure.byDepth
    ? { y: { field: "from", type: "quantitative", title: "relative depth", axis: { ...axis, grid: false, tickCount: 5 }, scale: { domain: [0, 1], nice: false } }, y2: { field: "to" } }
    : { y: { field: "row", type: "nominal", title: figure.row, axis, sort: figure.rows.toReversed(), scale: { domain: figure.rows.toReversed() } } };
  const names = ["row", "column"].map((name) => ({ field: name, type: "nominal", title: figure[name] }));
  const value = { field: "value", type: "quantitative", title: label };
  const has = (condition) => [{ filter: `datum.value ${condition} null` }];
  return {
    title, usermeta: mapSize(figure, cells, furthest), data: { values: cells }, view: { stroke: "@line" }, // around maps of zeros
    encoding: {
      x: { field: "column", type: "nominal", title: figure.column, sort: figure.columns, scale: { domain: figure.columns }, axis: { ...axis, labelOverlap: figure.columns.length > 8, labelAngle: figure.columns.every((name) => name.length < 3) ? 0 : -40 } },
      ...y,
    },
    layer: [
      { transform: has("==="), mark: { type: "rect", color: "@missing" }, encoding: { tooltip: names } },
      { transform: has("!=="), mark: "rect", encoding: { color: { ...value, scale: { interpolate: "rgb", ...scale }, legend: { gradientLength: 140, gradientThickness: 9, direction: "horizontal", tickCount: 3, titleLimit: 240 } }, tooltip: [...names, { ...value, format: ",.3r" }] } },
      mapNumbers(figure, cells, furthest),
    ],
  };
}

// The baseline, another group on the same scale, and what the other has more or less.
function mapsSpec(figure, panel, baseline, group) {
  const { label, difference, maps, differences } = figure.panels[panel];
  const [own, other, change] = [maps[baseline], maps[group], differences[group]].map((cells) => (cells ? mapCells(cells) : []));
  const shown = [...own, ...other].map(({ value }) => value);
  const [least, most] = [Math.min(0, ...shown), Math.max(0, ...shown)];
  const both = least < 0 ? { domain: [-Math.max(-least, most), Math.max(-least, most)], range: "diverging" } : { domain: [0, most || 1] };
  const furthest = Math.max(...change.map(({ value }) => Math.abs(value))) || 1;
  return {
    usermeta: { maps: true, rows: figure.rows.length }, description: `${figure.title}, ${panel}`,
    concat: [mapSpec(figure, baseline, label, own, both), mapSpec(figure, group, label, other, both), mapSpec(figure, `${group} − ${baseline}`, difference, change, { domain: [-furthest, furthest], range: "diverging" })],
    resolve: { scale: { color: "independent" } },
  };
}

function mountMaps(figures, baseline) {
  const group = document.getElementById("map-group");
  const charts = [...document.querySelectorAll("[data-maps]")].map((place) => {
    const figure = figures[place.dataset.maps];
    const panels = Object.keys(figure.panels);
    const box = make("select", { onchange: () => chart.replace(spec()) }, ...panels.map((name) => make("option", {}, name)));
    const spec = () => mapsSpec(figure, box.value, baseline, group.value);
    const node = make("div", { className: "chart" });
    place.append(...(panels.length > 1 ? [make("div", { className: "table-tools" }, make("label", {}, "map ", box))] : []), node);
    const chart = new Chart(node, spec(), place.dataset.maps.replaceAll("/", "_"));
    return { chart, spec };
  });
  group.addEventListener("change", () => charts.forEach(({ chart, spec }) => chart.replace(spec())));
  return charts.map(({ chart }) => chart);
}
