// Mixing ratios by layer: the mean over tokens, and the chosen token, by each method.

const MIXING = { widest: 900, narrow: 600, height: 270, left: 46, label: 250, short: 130, top: 12, bottom: 34 };
const MIXING_COLOURS = ["#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"];

// Labels at the ends of lines, moved apart so that none covers another.
function apart(positions, distance, lowest) {
  const order = positions.map((_, at) => at).sort((a, b) => positions[a] - positions[b]);
  const placed = [...positions];
  order.forEach((at, rank) => { if (rank) placed[at] = Math.max(placed[at], placed[order[rank - 1]] + distance); });
  for (let rank = order.length - 1, room = lowest; rank >= 0; rank--, room -= distance) placed[order[rank]] = Math.min(placed[order[rank]], room);
  return placed;
}

// `layers` are numbers; `now` and `before` have `methods` and `ratios` by method, layer and token; `token` is the chosen one.
function mixingChart({ layers, now, before, token, titles, room }) {
  const { height, left, top, bottom } = MIXING;
  const width = Math.min(MIXING.widest, Math.max(room, 280));
  const narrow = width < MIXING.narrow;
  const right = narrow ? MIXING.short : MIXING.label;
  const title = (method) => (narrow ? titles[method].split(":")[0] : titles[method]);
  const x = (at) => left + ((width - left - right) * (layers.length > 1 ? at / (layers.length - 1) : 0.5));
  const y = (share) => top + (height - top - bottom) * (1 - share);
  const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
  const path = (shares) => shares.map((share, at) => `${at ? "L" : "M"}${x(at).toFixed(1)} ${y(share).toFixed(1)}`).join("");
  const grid = [0, 0.25, 0.5, 0.75, 1].flatMap((share) => [
    drawn("line", { class: "axis", x1: left, x2: width - right, y1: y(share), y2: y(share) }),
    drawn("text", { class: "tick", x: left - 6, y: y(share) + 4, "text-anchor": "end" }, `${100 * share}%`)]);
  const every = Math.ceil(layers.length / (narrow ? 6 : 16));
  const ticks = layers.flatMap((layer, at) => (at % every ? [] : [drawn("text", { class: "tick", x: x(at), y: height - bottom + 16, "text-anchor": "middle" }, String(layer))]));
  const name = drawn("text", { class: "tick", x: (left + width - right) / 2, y: height - 2, "text-anchor": "middle" }, "layer");
  const means = now.methods.map((_, at) => now.ratios[at].map(mean));
  const ends = apart(means.map((shares) => y(shares.at(-1))), 15, height - bottom);
  const lines = now.methods.flatMap((method, at) => {
    const stroke = MIXING_COLOURS[at % MIXING_COLOURS.length];
    const same = before?.methods.indexOf(method) ?? -1;
    return [
      ...(same >= 0 ? [drawn("path", { class: "line of-before", stroke, d: path(before.ratios[same].slice(0, layers.length).map(mean)) })] : []),
      drawn("path", { class: "line", stroke, d: path(means[at]) }),
      ...(token === undefined ? [] : [drawn("path", { class: "line of-token", stroke, d: path(now.ratios[at].map((shares) => shares[token])) })]),
      drawn("text", { x: width - right + 8, y: ends[at] + 4 }, `${title(method)} ${formatPercentage(means[at].at(-1))}`)];
  });
  const said = `Mixing ratios by layer: ${now.methods.map((method, at) => `${titles[method]} ${formatPercentage(means[at].at(-1))} in the last layer`).join(", ")}`;
  return drawn("svg", { class: "mixing", width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": said }, ...grid, ...ticks, name, ...lines);
}
