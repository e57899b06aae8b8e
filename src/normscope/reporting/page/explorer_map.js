// One token map: cells on a canvas, labels that stay visible while scrolling, and the value beside the pointer.

const CELL = { smallest: 18, largest: 52, overview: 8 }; // pixels
const FONT = 12;
const LETTER = 0.61; // width of a character of a label, as a part of the font's size
const LONGEST_LABEL = 16;
const LONGEST_TARGET = 44; // of a row that is a target
const ROLE_WIDTH = 62; // of the longest name of a role

const columnLabel = (token) => clipped(token, LONGEST_LABEL);
const rowLabel = (map, token) => clipped(token, map.ofTargets ? LONGEST_TARGET : LONGEST_LABEL);

class MapView {
  // `onMove(cell)` is called when the pointer or the keys reach a cell, `onPin(row, column)` when the reader chooses one;
  // a label at the map's edge passes undefined for the other one. Screen readers say `label`; `across` names the
  // columns if their labels do not say what they are.
  constructor({ label, across = "", onMove, onPin }) {
    Object.assign(this, { onMove, onPin });
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.cursor = make("div", { className: "cursor", hidden: true });
    this.columns = make("div", { className: "column-labels", "aria-hidden": "true" });
    this.rows = make("div", { className: "row-labels", "aria-hidden": "true" });
    this.borders = make("div", { className: "borders", "aria-hidden": "true" });
    this.cells = make("div", { className: "cells" }, this.canvas, this.borders, this.cursor);
    this.tip = make("div", { className: "tip", hidden: true, "aria-hidden": "true" });
    const corner = make("div", { className: "corner", "aria-hidden": "true" }, across);
    this.grid = make("div", { className: "map-grid" }, corner, this.columns, this.rows, this.cells);
    this.viewport = make("div", {
      className: "viewport", tabIndex: 0, role: "application",
      "aria-label": label,
    }, this.grid);
    this.node = make("div", { className: "map" }, this.viewport, this.tip);
    this.listen();
  }

  listen() {
    this.cells.addEventListener("pointermove", (event) => this.pointAt(event));
    this.cells.addEventListener("pointerdown", (event) => this.pointAt(event));
    this.cells.addEventListener("pointerleave", (event) => { if (event.pointerType === "mouse") this.hideTip(); });
    this.cells.addEventListener("click", (event) => {
      this.pointAt(event);
      this.onPin(Math.floor(this.at / this.map.columns.length), this.at % this.map.columns.length);
    });
    for (const [labels, pin] of [[this.rows, (at) => this.onPin(at, undefined)], [this.columns, (at) => this.onPin(undefined, at)]]) {
      labels.addEventListener("click", (event) => {
        const label = event.target.closest("[data-at]");
        if (label) pin(Number(label.dataset.at));
      });
    }
    this.viewport.addEventListener("keydown", (event) => this.press(event));
    this.viewport.addEventListener("scroll", () => this.hideTip());
  }

  // In an `overview`, two maps side by side, every cell is visible, with labels as small as necessary; other maps
  // scroll rather than have labels that are too small to read.
  show(map, paintCells, overview = false) {
    this.map = map;
    const [rows, columns] = [map.rows.length, map.columns.length];
    const [longest, highest] = [map.rows.map((token) => rowLabel(map, token)), map.columns.map(columnLabel)]
      .map((labels) => Math.max(...labels.map((label) => label.length)));
    this.width = this.node.clientWidth;
    const beside = 18 + (map.roles ? ROLE_WIDTH : 0);
    const room = (this.width || 700) - beside;
    const roomy = (room - LETTER * FONT * longest) / columns; // with labels in full size
    const least = overview ? CELL.overview : CELL.smallest;
    const across = roomy < FONT && overview ? room / (columns + LETTER * longest) : roomy;
    const font = Math.min(FONT, Math.max(Math.floor(across), least));
    const labelWidth = LETTER * font * longest + beside - 4;
    // The whole map is visible without scrolling, unless its cells would be too small.
    const fits = Math.floor((Math.min(736, 0.82 * innerHeight) - LETTER * font * highest - 16) / rows);
    const wide = Math.min(Math.max(Math.floor(across), least), CELL.largest);
    const size = fits >= least ? Math.min(wide, fits) : wide;
    this.size = size;
    for (const [name, value] of Object.entries({ "--cell": `${size}px`, "--font": `${font}px`, "--rows": rows, "--columns": columns, "--label": `${labelWidth}px` })) {
      this.grid.style.setProperty(name, value);
    }
    const { roles, exact = map } = map;
    const label = (side, at, text) => {
      const token = exact[side][at];
      return make("span", { title: roles ? `${token} (${roles[at]})` : token, "data-at": at, ...(beginsRole(roles, at) && { "data-role": roles[at] }) }, text);
    };
    this.rows.replaceChildren(...map.rows.map((token, at) => label("rows", at, rowLabel(map, token))));
    this.columns.replaceChildren(...map.columns.map((token, at) => label("columns", at, columnLabel(token))));
    paintCells(this.canvas);
    this.borders.replaceChildren(...this.roleBorders(map));
    this.hideTip();
    this.move(this.at < map.values.length ? this.at : undefined);
  }

  // Lines where a role begins in a conversation.
  roleBorders({ roles }) {
    const line = (className, at) => {
      const border = make("i", { className });
      border.style.setProperty("--at", at);
      return border;
    };
    return (roles ?? []).flatMap((_, at) => (at && beginsRole(roles, at) ? [line("across", at), line("down", at)] : []));
  }

  // The cell under the pointer.
  pointAt(event) {
    const box = this.cells.getBoundingClientRect();
    const [column, row] = [event.clientX - box.left, event.clientY - box.top].map((offset) => Math.floor(offset / this.size));
    if (row < 0 || column < 0 || row >= this.map.rows.length || column >= this.map.columns.length) return;
    this.move(row * this.map.columns.length + column);
    this.showTip(event.clientX, event.clientY, event.pointerType === "touch");
  }

  move(at) {
    this.at = at;
    this.cursor.hidden = at === undefined;
    const [row, column] = at === undefined ? [] : [Math.floor(at / this.map.columns.length), at % this.map.columns.length];
    for (const [labels, current] of [[this.rows, row], [this.columns, column]]) {
      labels.querySelector(".current")?.classList.remove("current");
      labels.children[current]?.classList.add("current");
    }
    if (at === undefined) return;
    this.cursor.style.transform = `translate(${column * this.size}px, ${row * this.size}px)`;
    this.text = this.onMove(at);
  }

  // Beside the pointer; above a finger, which would hide it.
  showTip(x, y, above) {
    const box = this.node.getBoundingClientRect();
    this.tip.replaceChildren(make("b", {}, this.text.value), make("span", {}, this.text.tokens));
    this.tip.hidden = false;
    const left = Math.min(Math.max(x - box.left + (above ? -this.tip.offsetWidth / 2 : 14), 0), box.width - this.tip.offsetWidth);
    const top = y - box.top + (above ? -this.tip.offsetHeight - 22 : 16);
    this.tip.style.transform = `translate(${left}px, ${Math.max(top, -this.tip.offsetHeight)}px)`;
  }

  hideTip() {
    this.tip.hidden = true;
  }

  press(event) {
    const columns = this.map.columns.length;
    const moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: columns, ArrowUp: -columns };
    if (event.key === "Enter" && this.at !== undefined) this.onPin(Math.floor(this.at / columns), this.at % columns);
    if (!(event.key in moves)) return;
    event.preventDefault();
    const next = this.at === undefined ? 0 : this.at + moves[event.key];
    if (next < 0 || next >= this.map.values.length) return;
    this.move(next);
    this.cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
    const box = this.cursor.getBoundingClientRect();
    this.showTip(box.right, box.bottom, false);
  }

  markPinned(row, column) {
    for (const [labels, pinned] of [[this.rows, row], [this.columns, column]]) {
      labels.querySelector(".pinned")?.classList.remove("pinned");
      labels.children[pinned]?.classList.add("pinned");
    }
  }
}
