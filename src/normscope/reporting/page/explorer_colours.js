// Colours of the explorer: one sequential and one diverging palette, defined in the page's style, and scales on them.

const channelsOf = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

// A palette as a function from 0…1 to [red, green, blue].
function palette(node, name) {
  const stops = styleValue(node, name).split(",").map((colour) => channelsOf(colour.trim()));
  return (share) => {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((value, channel) => Math.round(value + (stops[low + 1][channel] - value) * (at - low)));
  };
}

// Values below a ten-thousandth of the largest look like it on a logarithmic scale: packing leaves few digits below.
const DECADES = 4;

// Where a value lies on a scale, 0…1. `largest` is the end of the scale; differences are centred.
function positionOn({ largest, difference, log }) {
  if (!(largest > 0)) return () => (difference ? 0.5 : 0);
  if (difference) return (value) => 0.5 + value / largest / 2;
  if (log) return (value) => (value > 0 ? Math.max(0, 1 + Math.log10(value / largest) / DECADES) : 0);
  return (value) => value / largest;
}

// The largest magnitude, without cells on the diagonal if these are hidden.
function largestOf(values, columns, hideSelf, from = 0, to = values.length) {
  let largest = 0;
  for (let at = from; at < to; at++) {
    if (hideSelf && isSelf(at, columns)) continue;
    const size = Math.abs(values[at]);
    if (size > largest) largest = size;
  }
  return largest;
}

// Few cells far beyond all others would leave a map without colour: these do not decide where its scale ends.
const FEW = 3;
const FAR = 3;

// Where the scale of a map ends, and the cells beyond, the largest first.
function endOfScale(values, columns, hideSelf) {
  const shown = Array.from(values.keys()).filter((at) => !Number.isNaN(values[at]) && !(hideSelf && isSelf(at, columns)));
  const largest = shown.sort((one, other) => Math.abs(values[other]) - Math.abs(values[one])).slice(0, FEW + 1);
  const sizes = largest.map((at) => Math.abs(values[at]));
  const end = sizes.findIndex((size, at) => at > 0 && size > 0 && sizes[at - 1] > FAR * size);
  return end < 0 ? { largest: sizes[0] ?? 0, beyond: [] } : { largest: sizes[end], beyond: largest.slice(0, end) };
}

const isSelf = (at, columns) => Math.floor(at / columns) === at % columns;

// Red, green, blue of every cell; null where it is hidden or has no value.
function cellColours(map, scale, colours) {
  const columns = map.columns.length;
  const rowPosition = (row) =>
    positionOn({ ...scale, largest: scale.perRow ? largestOf(map.values, columns, scale.hideSelf, row * columns, (row + 1) * columns) : scale.largest });
  const positions = map.rows.map((_, row) => rowPosition(row));
  return Array.from(map.values, (value, at) =>
    (scale.hideSelf && isSelf(at, columns)) || Number.isNaN(value) ? null : colours(positions[Math.floor(at / columns)](value)));
}

// One pixel per cell; the browser enlarges it.
function paint(canvas, map, scale, colours) {
  const [width, height] = [map.columns.length, map.rows.length];
  Object.assign(canvas, { width, height });
  const context = canvas.getContext("2d");
  const image = context.createImageData(width, height);
  cellColours(map, scale, colours).forEach((colour, at) => {
    if (colour) image.data.set([...colour, 255], 4 * at);
  });
  context.putImageData(image, 0, 0);
}
