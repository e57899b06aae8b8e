// Parts that the views of token maps share: the colour bar and lists of values.

// A bar with the colours of a scale, and what stands below it.
function ramp(colours, ticks) {
  const bar = make("i", { className: "bar" });
  bar.style.background = `linear-gradient(to right, ${Array.from({ length: 17 }, (_, at) => `rgb(${colours(at / 16)})`)})`;
  return make("div", { className: "ramp" }, bar, make("div", { className: "ramp-ticks" }, ...ticks.map((tick) => make("span", {}, tick))));
}

// A row with a name, a bar with the colour of either end of a diverging palette, and a signed value.
function barOf(name, value, largest, diverging) {
  const bar = make("i", {});
  bar.style.background = `rgb(${diverging(0.5 + 0.3 * Math.sign(value))})`;
  bar.style.width = `${(100 * Math.abs(value)) / largest}%`;
  return make("li", {}, make("span", {}, name), make("span", { className: "track" }, bar), make("b", {}, formatNumber(value, true)));
}

// Titled lists of names, values and tooltips, with bars that share a scale, in the order given. Of signed values, bars have the colours of
// either end of a diverging palette.
function valueLists(lists, diverging) {
  const largest = Math.max(...lists.flatMap(([, entries]) => entries.map(([, value]) => Math.abs(value)))) || 1;
  const rowOf = ([name, value, exact = name]) => {
    const bar = make("i", {});
    if (diverging) bar.style.background = `rgb(${diverging(0.5 + 0.3 * Math.sign(value))})`;
    bar.style.width = `${(100 * Math.abs(value)) / largest}%`;
    return make("li", {}, make("span", { className: "token", title: exact }, name), make("span", { className: "track" }, bar),
      make("b", {}, formatNumber(value, Boolean(diverging))));
  };
  return lists.map(([title, entries]) => make("section", {}, make("h3", {}, title), make("ol", { className: "ranks" }, ...entries.map(rowOf))));
}
