// Heat maps of the baseline and of other runs, and their difference.
const cellsOf = ({ row, column, value }) => row.map((name, at) => ({ row: name, column: column[at], value: value[at] })).filter((cell) => cell.value !== null);

function differenceOf(own, other) {
  const at = ({ row, column }) => `${row}\n${column}`;
  const base = new Map(own.map((cell) => [at(cell), cell.value]));
  return other.filter((cell) => base.has(at(cell))).map((cell) => ({ ...cell, value: cell.value - base.get(at(cell)) }));
}

function mapSpec(figure, title, values, scale) {
  const axis = { labelOverlap: true, ticks: false, domain: false };
  const field = (name, title, more) => ({ field: name, type: "nominal", title, axis, ...more });
  return {
    title, data: { values }, mark: "rect", view: { fill: "@panel" }, // where a map has no cell
    encoding: {
      x: field("column", figure.column, { sort: figure.columns, scale: { domain: figure.columns }, axis: { ...axis, labelOverlap: figure.columns.length > 8, labelAngle: figure.columns.every((name) => name.length < 3) ? 0 : -40 } }),
      y: field("row", figure.row, { sort: figure.rows.toReversed(), scale: { domain: figure.rows.toReversed() } }),
      color: { field: "value", type: "quantitative", title: null, scale: { interpolate: "rgb", ...scale }, legend: { gradientLength: 140, gradientThickness: 9, direction: "horizontal", tickCount: 3 } },
      tooltip: [...["row", "column"].map((name) => ({ field: name, type: "nominal", title: figure[name] })), { field: "value", type: "quantitative", title, format: ",.3r" }],
    },
  };
}

// The baseline, another group on the same scale, and what the other has more or less.
function mapsSpec(figure, panel, baseline, group) {
  const [own, other] = [baseline, group].map((name) => (figure.panels[panel][name] ? cellsOf(figure.panels[panel][name]) : []));
  const difference = differenceOf(own, other);
  const shown = [...own, ...other].map(({ value }) => value);
  const [least, most] = [Math.min(0, ...shown), Math.max(0, ...shown)];
  const both = least < 0 ? { domain: [-Math.max(-least, most), Math.max(-least, most)], range: "diverging" } : { domain: [0, most || 1] };
  const furthest = Math.max(...difference.map(({ value }) => Math.abs(value)), 1e-12);
  return {
    usermeta: { maps: true, rows: figure.rows.length }, description: `${figure.title}, ${panel}`,
    concat: [mapSpec(figure, baseline, own, both), mapSpec(figure, group, other, both), mapSpec(figure, `${group} − ${baseline}`, difference, { domain: [-furthest, furthest], range: "diverging" })],
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
