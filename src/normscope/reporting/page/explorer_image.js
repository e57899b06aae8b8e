// What a token receives from the patches of an image, laid on the image. A click on a patch chooses its token.

const OPAQUE = 0.9; // how much of the image the colour of the end of the scale hides

const BESIDE = { values: 200, shares: 12 }; // how many tokens other than patches are named below an image, at most

class ImageView {
  // `onPin` hears of the row that was clicked.
  constructor(onPin) {
    this.node = make("div", { className: "image-maps", hidden: true });
    this.onPin = onPin;
  }

  // `maps` has titles, maps and their colours; `pinned` is the row that is laid on the image. `places` are the columns of the
  // patches, −1 where there is none. Of `signed` values, both sides of zero have one scale.
  show({ png, grid, places }, maps, pinned, signed) {
    const source = `data:image/png;base64,${png}`;
    const original = make("figure", {}, make("figcaption", {}, "image"), make("div", { className: "image-map whole" }, make("img", { src: source, alt: "the image as the model reads it" })));
    this.node.replaceChildren(original, ...maps.map(({ title, map, colours }) => {
      const values = rowOf(map, pinned);
      const others = map.columns.length > places.length ? [make("p", { className: "faint" }, ...this.othersOf(map, values, places, colours, signed))] : [];
      return make("figure", {}, make("figcaption", {}, title), this.laid(source, map, values, { grid, places }, colours, signed, map.ofTargets ? -1 : places.indexOf(pinned)), ...others);
    }));
  }

  // The image in grey below a canvas with a pixel for each patch.
  laid(source, map, values, image, colours, signed, chosen) {
    const { grid: [rows, columns], places } = image;
    const canvas = make("canvas", { width: columns, height: rows, role: "img", ariaLabel: "what comes from each patch of the image", onclick: (event) => this.click(event, map, image) });
    const context = canvas.getContext("2d");
    const ofPatches = Float64Array.from(places, (place) => values[place] ?? 0);
    const { largest } = endOfScale(ofPatches, 0, false);
    ofPatches.forEach((value, at) => {
      const share = Math.min(1, Math.abs(value) / (largest || 1));
      const [red, green, blue] = colours(signed ? 0.5 + (Math.sign(value) * share) / 2 : share);
      context.fillStyle = `rgba(${red}, ${green}, ${blue}, ${OPAQUE * share})`;
      context.fillRect(at % columns, Math.floor(at / columns), 1, 1);
    });
    const mark = make("i", { hidden: chosen < 0 });
    Object.assign(mark.style, { left: `${(100 * (chosen % columns)) / columns}%`, top: `${(100 * Math.floor(chosen / columns)) / rows}%`, width: `${100 / columns}%`, height: `${100 / rows}%` });
    return make("div", { className: "image-map" }, make("img", { src: source, alt: "" }), canvas, mark);
  }

  // What comes from tokens other than patches, the largest of many: signed values on the colours of the image, others as shares
  // of what the row receives.
  othersOf(map, values, places, colours, signed) {
    const [patches, whole] = [new Set(places), total(values) || 1];
    const { largest } = endOfScale(Float64Array.from(places, (place) => values[place] ?? 0), 0, false);
    const others = [...map.columns.keys()].filter((at) => !patches.has(at));
    const named = new Set(others.sort((one, other) => Math.abs(values[other]) - Math.abs(values[one])).slice(0, signed ? BESIDE.values : BESIDE.shares));
    return map.columns.flatMap((token, at) => {
      if (!named.has(at)) return [];
      const said = `${token} ${signed ? formatNumber(values[at], true) : `${formatNumber((100 * values[at]) / whole)}%`}`;
      const node = make("span", { className: signed ? "coloured" : "" }, said);
      const share = Math.min(1, Math.abs(values[at]) / (largest || 1));
      if (signed) node.style.borderBottomColor = `rgba(${colours(0.5 + (Math.sign(values[at]) * share) / 2)}, ${OPAQUE * share})`;
      return [node, " · "];
    }).slice(0, -1);
  }

  click(event, map, { grid: [rows, columns], places }) {
    if (map.ofTargets) return;
    const { left, top, width, height } = event.target.getBoundingClientRect();
    const [row, column] = [Math.floor(((event.clientY - top) / height) * rows), Math.floor(((event.clientX - left) / width) * columns)];
    const place = places[row * columns + column];
    if (place >= 0) this.onPin(place);
  }
}
