// Measures over training: curves over steps, curves by layer, and maps of step × layer.

// Steps on a logarithmic axis, on which step 0 is as far from the first later one as that is from twice itself.
function stepScale(steps) {
  return { type: "symlog", constant: Math.min(...steps.filter((step) => step > 0)), nice: false };
}

// Of the measured steps, those whose labels have room on the axis.
function stepTicks(steps, fitting = 6) {
  const { constant } = stepScale(steps);
  const place = (step) => Math.log1p(step / constant);
  const gap = (place(steps.at(-1)) - place(steps[0])) / fitting;
  const ticks = [steps.at(-1)];
  for (const step of steps.slice(0, -1).toReversed()) if (place(ticks[0]) - place(step) >= gap && (step === steps[0] || place(step) - place(steps[0]) >= gap)) ticks.unshift(step);
  return ticks[0] === steps[0] ? ticks : [steps[0], ...ticks];
}

const shortStep = (step) => (step >= 1e6 ? `${+(step / 1e6).toPrecision(3)}M` : step >= 1e4 ? `${+(step / 1e3).toPrecision(3)}k` : String(step));
const sortedSteps = (rows) => [...new Set(rows.map(({ step }) => step))].sort((a, b) => a - b);
const pointsOf = ({ layer, step, mean, low, high }) => mean.map((value, at) => ({ layer: layer?.[at], step: step[at], value, low: low[at], high: high[at] })).filter(({ value }) => value !== null);
const asRange = (rows) => [{ value: rows.map(({ value }) => value) }];
const numbered = { type: "quantitative", format: ",.3r" };

const stepAxis = (steps) => ({ field: "step", type: "quantitative", scale: { ...stepScale(steps), domain: [steps[0], steps.at(-1)], padding: 8 }, axis: { title: "training step", grid: false, values: stepTicks(steps), tickCount: 10, labelOverlap: "greedy", labelExpr: "datum.value >= 1e6 ? format(datum.value / 1e6, '.3~r') + 'M' : datum.value >= 1e4 ? format(datum.value / 1e3, '.3~r') + 'k' : format(datum.value, 'd')" } });
const tipsOf = (label, rows) => [{ field: "step", title: "training step", type: "quantitative", format: ",d" }, { field: "value", title: label, ...numbered }, ...(rows.some(({ low }) => low !== null && low !== undefined) ? [{ field: "low", title: "95% from", ...numbered }, { field: "high", title: "to", ...numbered }] : [])];
const valueAxis = (label, rows, range, long = false) => ({ field: "value", type: "quantitative", title: label, axis: { titleLimit: long ? 260 : 130 }, scale: range ? { domain: range, nice: true } : { zero: fromZero(asRange(rows)) } });
const legendOf = (title, more) => ({ title, gradientLength: 160, gradientThickness: 9, direction: "horizontal", ...more });

// A line for every layer over steps, or for every step over layers; later ones are darker.
function trainingLines({ title, label }, rows, view, range) {
  const steps = sortedSteps(rows);
  const layers = [...new Set(rows.map(({ layer }) => layer))].sort((a, b) => a - b);
  const overSteps = view === "steps";
  const colour = overSteps
    ? { field: "layer", type: "quantitative", scale: { domain: [layers[0], layers.at(-1)], range: "@ramp", interpolate: "rgb" }, legend: legendOf("layer", { values: layers.length > 6 ? [layers[0], layers.at(-1)] : layers, format: "d" }) }
    : { field: "step", type: "quantitative", scale: { ...stepScale(steps), domain: [steps[0], steps.at(-1)], range: "@ramp", interpolate: "rgb" }, legend: legendOf("training step", { values: stepTicks(steps, 3), format: "~s" }) };
  return {
    ...(title ? { title } : {}), data: { values: rows },
    encoding: {
      x: overSteps ? stepAxis(steps) : { field: "layer", type: "quantitative", axis: { title: "layer", format: "d", grid: false, ...(layers.length < 9 ? { values: layers } : { tickMinStep: 1 }) }, scale: { zero: false, nice: false, padding: 8 } },
      y: valueAxis(label || title, rows, range), color: colour, detail: { field: overSteps ? "layer" : "step" },
      tooltip: [{ field: "layer", type: "ordinal" }, ...tipsOf(label || title, rows)],
    },
    layer: [{ mark: { type: "line", strokeWidth: 2 } }, { mark: { type: "point", filled: true, size: 22 } }],
  };
}

function trainingMap({ title, label }, rows, range) {
  const steps = sortedSteps(rows);
  const layers = [...new Set(rows.map(({ layer }) => layer))].sort((a, b) => b - a);
  const [least, most] = range ?? rangeOf(asRange(rows));
  const scale = least < 0 ? { domain: [-Math.max(-least, most), Math.max(-least, most)], range: "diverging" } : { domain: [least < most / 2 ? 0 : least, most] };
  const axis = { labelOverlap: true, ticks: false, domain: false };
  return {
    ...(title ? { title } : {}), data: { values: rows.map((row) => ({ ...row, shown: shortStep(row.step) })) }, mark: "rect",
    encoding: {
      x: { field: "shown", type: "nominal", title: "training step", sort: steps.map(shortStep), axis: { ...axis, labelAngle: 0 } },
      y: { field: "layer", type: "ordinal", title: "layer", sort: layers, axis },
      color: { field: "value", type: "quantitative", scale: { interpolate: "rgb", ...scale }, legend: legendOf(label || title, { tickCount: 3 }) },
      tooltip: [{ field: "layer", type: "ordinal" }, ...tipsOf(label || title, rows)],
    },
  };
}

function trainingSpec({ title, panels }, group, view) {
  const shown = panels.filter((panel) => panel.groups[group]).map((panel) => ({ panel, rows: pointsOf(panel.groups[group]) }));
  const alike = shown.every(({ panel }) => panel.label && panel.label === shown[0].panel.label);
  const range = alike ? sharedRange(shown.map(({ rows }) => ({ own: asRange(rows) })), "own") : null;
  return {
    usermeta: { across: Math.min(5, shown.length), panels: true }, description: `${title} of ${group} over training`,
    ...(alike && shown.length > 1 && !range ? { title: { text: "Each panel has its own range.", fontWeight: "normal", fontSize: 11 } } : {}),
    concat: shown.map(({ panel, rows }) => (view === "map" ? trainingMap(panel, rows, range) : trainingLines(panel, rows, view, range))),
    ...(range ? {} : { resolve: { scale: { color: view === "map" ? "independent" : "shared" } } }),
  };
}

// One metric of whole models: a line for every training, with its interval over seeds.
function wholeSpec(name, groups) {
  const rows = Object.entries(groups).flatMap(([group, columns]) => pointsOf(columns).map((row) => ({ ...row, group })));
  const domain = Object.keys(groups);
  const steps = sortedSteps(rows);
  const range = [...rangeOf(asRange(rows)), ...rows.flatMap(({ low, high }) => [low, high]).filter((end) => end !== null)];
  const y = valueAxis(name, range.map((value) => ({ value })), null, true);
  const style = (channel) => ({ field: "group", type: "nominal", scale: { domain, range: domain.map(channel) }, legend: domain.length > 1 ? { title: null, symbolType: "stroke" } : null });
  return {
    usermeta: {}, description: `${name} over training`, data: { values: rows },
    encoding: { x: stepAxis(steps), color: style((_, at) => COLOURS[at % COLOURS.length]), tooltip: [{ field: "group", type: "nominal", title: "training" }, ...tipsOf(name, rows)] },
    layer: [
      ...(rows.some(({ low }) => low !== null) ? [{ mark: { type: "area", opacity: 0.2 }, encoding: { y: { ...y, field: "low" }, y2: { field: "high" }, tooltip: null } }] : []),
      { mark: { type: "line", strokeWidth: 2 }, encoding: { y, strokeDash: style((_, at) => DASHES[Math.floor(at / COLOURS.length) % DASHES.length]) } },
      { mark: { type: "point", filled: true, size: 30 }, encoding: { y } },
    ],
  };
}

function mountTraining({ families, whole }) {
  const [group, view, metric] = ["training-group", "training-view", "training-metric"].map((id) => document.getElementById(id));
  const spec = (family) => trainingSpec(families[family], group.value, view.value);
  const charts = new Map([...document.querySelectorAll("[data-training]")].map((node) => [node.dataset.training, new Chart(node, spec(node.dataset.training), `training_${node.dataset.training}`)]));
  for (const box of [group, view]) box?.addEventListener("change", () => charts.forEach((chart, family) => chart.replace(spec(family))));
  const wholeOf = () => wholeSpec(metric.selectedOptions[0].textContent, whole[metric.value]);
  const chart = metric && new Chart(document.querySelector("[data-whole]"), wholeOf(), "training");
  metric?.addEventListener("change", () => chart.replace(wholeOf()));
  return [...(chart ? [chart] : []), ...charts.values()];
}
