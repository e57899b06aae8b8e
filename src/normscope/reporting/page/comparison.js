// Table export, the metric filter, and the chart by layer.
for (const button of document.querySelectorAll("[data-export]")) button.addEventListener("click", () => {
  const table = document.getElementById(button.dataset.table).querySelector("table");
  const rows = [...table.rows].filter((row) => !row.hidden).map((row) => [...row.cells].map((cell) => cell.dataset.value ?? cell.textContent));
  if (button.dataset.export === "csv") {
    const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
    download(`${button.dataset.table}.csv`, "text/csv", rows.map((row) => row.map(quoted).join()).join("\n"));
  } else {
    const commands = { "\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}" };
    const escaped = (text) => text.replace(/[\\~^&%$#_{}]/g, (sign) => commands[sign] ?? `\\${sign}`);
    const lines = rows.map((row) => `${row.map(escaped).join(" & ")} \\\\`);
    const content = ["\\begin{tabular}{" + "l".repeat(rows[0].length) + "}", "\\toprule", lines[0], "\\midrule", ...lines.slice(1), "\\bottomrule", "\\end{tabular}"];
    download(`${button.dataset.table}.tex`, "text/x-tex", content.join("\n"));
  }
});

document.getElementById("filter").addEventListener("input", (event) => {
  const pattern = event.target.value.toLowerCase();
  for (const row of document.querySelector("#metrics-table tbody").rows) row.hidden = !row.cells[0].textContent.toLowerCase().includes(pattern);
});

(() => {
  const dataElement = document.getElementById("curves");
  if (!dataElement) return;
  const { curves } = JSON.parse(dataElement.textContent), [curveBox, alongBox, chart, reading] = ["curve", "along", "chart", "reading"].map((id) => document.getElementById(id));
  // Okabe and Ito's palette, distinct for all common kinds of colour vision; from the ninth line on, dashes differ too.
  const colours = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#7f7f7f", "#b8a900"];
  curveBox.replaceChildren(...Object.keys(curves).map((name) => new Option(name, name)));
  const lengths = new Set(Object.values(curves).flat().map((line) => Math.round(line.layer.at(-1) / line.depth.at(-1))));
  alongBox.value = lengths.size > 1 ? "depth" : "layer";
  const node = (name, attributes, text) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    if (text !== undefined) element.textContent = text;
    return element;
  };
  function draw() {
    const lines = curves[curveBox.value], along = alongBox.value, [width, height, left, bottom] = [900, 380, 60, 40];
    const xs = lines.flatMap((line) => line[along]), ys = lines.flatMap((line) => line.value).filter(Number.isFinite);
    const [x0, x1] = [along === "depth" ? 0 : Math.min(...xs), Math.max(...xs)], [low, high] = [Math.min(...ys), Math.max(...ys)];
    // The axis starts at zero unless that wastes more than half of the height.
    const margin = 0.08 * (high - low || Math.abs(high) || 1), [y0, y1] = [low > 0 && low < high / 2 ? 0 : low - margin, high + margin];
    const x = (value) => left + ((value - x0) / (x1 - x0 || 1)) * (width - left - 20), y = (value) => height - bottom - ((value - y0) / (y1 - y0)) * (height - bottom - 15);
    const legend = 20 * lines.length, svg = node("svg", { viewBox: `0 0 ${width} ${height + legend}`, width: "100%", role: "img", "aria-label": curveBox.value });
    for (let tick = 0; tick <= 4; tick++) {
      const value = y0 + ((y1 - y0) * tick) / 4, across = x0 + ((x1 - x0) * tick) / 4;
      svg.append(node("line", { x1: left, x2: width - 20, y1: y(value), y2: y(value), stroke: "currentColor", opacity: 0.15 }));
      svg.append(node("text", { x: left - 8, y: y(value) + 4, "text-anchor": "end", "font-size": 12, fill: "currentColor" }, value.toPrecision(3)));
      svg.append(node("text", { x: x(across), y: height - 18, "text-anchor": "middle", "font-size": 12, fill: "currentColor" }, along === "depth" ? across.toFixed(2) : Math.round(across)));
    }
    lines.forEach((line, index) => {
      const style = { stroke: colours[index % 8], fill: "none", "stroke-width": 2, "stroke-dasharray": ["", "6 3", "2 2"][Math.floor(index / 8) % 3] };
      svg.append(node("polyline", { ...style, points: line.value.map((value, at) => [x(line[along][at]), y(value)].join()).join(" ") }));
      line.value.forEach((value, at) => {
        const dot = node("circle", { cx: x(line[along][at]), cy: y(value), r: 4, fill: colours[index % 8] });
        dot.addEventListener("mouseenter", () => { reading.textContent = `${line.label}, layer ${line.layer[at]}: ${value.toPrecision(4)}`; });
        svg.append(dot);
      });
      svg.append(node("line", { ...style, x1: left, x2: left + 26, y1: height + 20 * index, y2: height + 20 * index }));
      svg.append(node("text", { x: left + 34, y: height + 20 * index + 4, "font-size": 13, fill: "currentColor" }, line.label));
    });
    chart.replaceChildren(svg);
  }
  for (const box of [curveBox, alongBox]) box.addEventListener("change", draw);
  draw();
})();
