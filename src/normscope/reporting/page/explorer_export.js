// The shown map as SVG, PNG and CSV.

const escapeXml = (text) => text.replace(/[&<>"]/g, (sign) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[sign]);

// A drawing of its own on white, so that it can go into a paper.
function mapSvg(map, scale, colours, title) {
  const [cell, columns] = [20, map.columns.length];
  const length = (labels) => 10 + 7 * Math.max(...labels.map((label) => label.length));
  const [rowLabels, columnLabels] = [map.rows.map((token) => rowLabel(map, token)), map.columns.map((token) => columnLabel(token))];
  const [left, top] = [length(rowLabels), length(columnLabels) + 18];
  const [width, height] = [left + columns * cell + 8, top + map.rows.length * cell + 8];
  const fills = cellColours(map, scale, colours).map((colour, at) => colour &&
    `<rect x="${left + (at % columns) * cell}" y="${top + Math.floor(at / columns) * cell}" width="${cell}" height="${cell}" fill="rgb(${colour})"/>`);
  const rows = rowLabels.map((label, i) =>
    `<text x="${left - 5}" y="${top + (i + 0.7) * cell}" text-anchor="end">${escapeXml(label)}</text>`);
  const heads = columnLabels.map((label, j) =>
    `<text transform="translate(${left + (j + 0.7) * cell} ${top - 5}) rotate(-90)">${escapeXml(label)}</text>`);
  return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" viewBox="0 0 ${width} ${height}">` +
    "<style>text { font: 11px ui-monospace, monospace; fill: #1a1a1a; }</style>" +
    `<rect width="100%" height="100%" fill="#fff"/><text x="5" y="14">${escapeXml(title)}</text>${[...fills, ...rows, ...heads].filter(Boolean).join("")}</svg>`;
}

function downloadPng(name, svg) {
  const image = new Image();
  image.onload = () => {
    const canvas = make("canvas", { width: 2 * image.width, height: 2 * image.height });
    const context = canvas.getContext("2d");
    context.scale(2, 2);
    context.drawImage(image, 0, 0);
    canvas.toBlob((blob) => download(name, "image/png", blob));
  };
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(svg)}`;
}

function mapCsv(map) {
  const columns = map.columns.length;
  const rows = Array.from(map.values, (value, at) => {
    const [i, j] = [Math.floor(at / columns), at % columns];
    return [i, map.exact.rows[i], j, map.exact.columns[j], Number.isNaN(value) ? "" : value];
  });
  return csvOf([["query", "query_token", "key", "key_token", "value"], ...rows]);
}
