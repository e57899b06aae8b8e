// Parts that the views of token maps share: the colour bar and lists of values.

// A bar with the colours of a scale, and what stands below it.
function ramp(colours, ticks) {
  const bar = make("i", { className: "bar" });
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: 17 }, (_, at) => `rgb(${colours(at / 16)})`)})`;
  return make("div", { className: "ramp" }, bar, make("div", { className: "ramp-ticks" }, ...ticks.map((tick) => make("span", {}, tick))));
}

// Names and values as a list with bars, in the order given. `colour` is that of the bars; by default the page's.
function valueList(title, entries, { signed = false, colour = "" } = {}) {
  const largest = Math.max(...entries.map(([, value]) => Math.abs(value))) || 1;
  const rows = entries.map(([name, value]) => {
    const bar = make("i", {});
    bar.style.background = colour;
    bar.style.width = `${(100 * Math.abs(value)) / largest}%`;
    return make("li", {}, make("span", { className: "token" }, name), make("span", { className: "track" }, bar),
      make("b", {}, formatNumber(value, signed)));
  });
  return make("section", {}, make("h3", {}, title), make("ol", { className: "ranks" }, ...rows));
}
