// What a token receives from the frames of a sound, over time, below its wave. A click on a time chooses its token.

class SoundView {
  // `onPin` hears of the row that was clicked.
  constructor(onPin) {
    this.node = make("div", { className: "sound-maps", hidden: true });
    this.onPin = onPin;
  }

  // `maps` has titles and maps; `pinned` is the row that is drawn. The first `keys` columns are those of the sound, and the
  // others padding after it. In cross-attention, rows are no times.
  show({ low, high, wave_seconds: hop, seconds, keys }, maps, pinned, isCross) {
    const end = keys * seconds;
    const across = (time) => `${Math.min(1000, (1000 * time) / end)}`;
    const largest = Math.max(...high, ...low.map((value) => -value)) || 1;
    const upper = high.map((value, at) => `${across(at * hop)},${50 - (48 * value) / largest} ${across((at + 1) * hop)},${50 - (48 * value) / largest}`);
    const lower = low.map((value, at) => `${across((at + 1) * hop)},${50 - (48 * value) / largest} ${across(at * hop)},${50 - (48 * value) / largest}`);
    const wave = this.drawn(`${upper.join(" ")} ${lower.reverse().join(" ")}`, "wave", "the wave of the sound", pinned, { keys, seconds, across }, isCross);
    const times = make("p", { className: "times faint" }, ...[0, 0.25, 0.5, 0.75, 1].map((share) => make("span", {}, `${formatNumber(share * end)} s`)));
    this.node.replaceChildren(make("figure", {}, make("figcaption", {}, "sound"), wave), ...maps.map(({ title, map }) => {
      const values = rowOf(map, pinned);
      const most = Math.max(...values.slice(0, keys)) || 1;
      const steps = values.slice(0, keys).map((value, at) => `${across(at * seconds)},${100 - (98 * value) / most} ${across((at + 1) * seconds)},${100 - (98 * value) / most}`);
      const padding = values.length > keys ? ` · ${formatNumber((100 * total(values.slice(keys))) / (total(values) || 1))}% from padding after the sound` : "";
      return make("figure", {}, make("figcaption", {}, title, make("span", { className: "faint" }, padding)), this.drawn(`0,100 ${steps.join(" ")} 1000,100`, "curve", title, pinned, { keys, seconds, across }, isCross));
    }), times);
  }

  // A filled outline over time, with the pinned token's own time marked.
  drawn(points, kind, label, pinned, { keys, seconds, across }, isCross) {
    const own = !isCross && pinned < keys ? `<rect class="own" x="${across(pinned * seconds)}" y="0" width="${Math.max(2, across(seconds))}" height="100"/>` : "";
    const holder = make("div", { className: `sound-map ${kind}`, role: "img", ariaLabel: label, onclick: (event) => this.click(event, keys, isCross) });
    holder.innerHTML = `<svg viewBox="0 0 1000 100" preserveAspectRatio="none">${own}<polygon points="${points}"/></svg>`;
    return holder;
  }

  click(event, keys, isCross) {
    if (isCross) return;
    const { left, width } = event.currentTarget.getBoundingClientRect();
    this.onPin(Math.min(keys - 1, Math.floor(((event.clientX - left) / width) * keys)));
  }
}
