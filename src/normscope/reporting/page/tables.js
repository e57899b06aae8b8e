// Tables: built when they are opened; sorted by a click on a column's name, filtered by what the reader types.

const cellText = (value, kind) =>
  value === null ? "" : kind === "number" ? formatNumber(value) : kind === "integer" ? formatInteger(value) : value;

const formatInteger = (value) => withSign(grouped(String(Math.abs(value))), value, false);

function buildTable({ caption, columns }) {
  const head = make("tr", {}, ...columns.map(({ name, about, kind }) =>
    make("th", { scope: "col", title: about, className: kind === "word" ? "word" : "" }, make("button", { type: "button" }, name))));
  const rows = columns.length ? columns[0].values.map((_, at) => make("tr", {}, ...columns.map(({ kind, values, bounds }) => {
    const cell = make("td", { className: kind === "word" ? "word" : "" }, (bounds?.[at] ? "≤ " : "") + cellText(values[at], kind));
    if (kind === "word" && cell.textContent.length > 40) cell.title = cell.textContent;
    return cell;
  }))) : [];
  const body = make("tbody", {}, ...rows);
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, head), body);
  sortable(table, columns, rows);
  return { table, rows };
}

// Numbers start with the largest, words with A; missing values come last in either order.
function sortable(table, columns, rows) {
  const headers = [...table.tHead.rows[0].cells];
  const numbers = new Map(rows.map((row, at) => [row, at]));
  headers.forEach((header, column) => header.firstChild.addEventListener("click", () => {
    const { kind, values } = columns[column];
    const now = header.getAttribute("aria-sort");
    const descending = now ? now === "ascending" : kind !== "word";
    headers.forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const compare = (a, b) => (kind === "word" ? a.localeCompare(b) : a - b);
    const value = (row) => values[numbers.get(row)];
    rows.sort((a, b) => (value(a) === null) - (value(b) === null) || (descending ? -1 : 1) * compare(value(a), value(b)));
    table.tBodies[0].append(...rows);
  }));
}

// Every word that the reader types must occur in the row: text, or a column and its value as in layer=3.
function matcher(query, columns) {
  const conditions = query.toLowerCase().split(/\s+/).filter(Boolean).map((word) => {
    const [name, wanted] = word.split("=");
    const column = columns.findIndex((other) => other.name.toLowerCase() === name);
    return wanted === undefined || column < 0
      ? (cells) => cells.some((cell) => cell.textContent.toLowerCase().includes(word))
      : (cells) => cells[column].textContent.toLowerCase() === wanted;
  });
  return (row) => conditions.every((condition) => condition([...row.cells]));
}

function tableTools({ rows }, data) {
  const count = make("span", { className: "faint", role: "status" });
  const filter = make("input", { type: "search", placeholder: "filter, e.g. layer=3 cls", "aria-label": "Filter rows" });
  filter.addEventListener("input", () => {
    const matches = matcher(filter.value, data.columns);
    let shown = 0;
    for (const row of rows) if (!(row.hidden = !matches(row))) shown++;
    count.textContent = filter.value ? `${formatInteger(shown)} of ${formatInteger(rows.length)} rows` : "";
  });
  return make("div", { className: "table-tools" }, filter, count);
}

function fillTable(details, data) {
  if (details.querySelector("table")) return;
  const built = buildTable(data);
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": data.caption }, built.table);
  details.append(tableTools(built, data), scroll);
}

// A table in a `details` element is built when it opens, and opens when the address names it.
function mountTables(tables) {
  for (const [name, data] of Object.entries(tables)) {
    const details = document.getElementById(name);
    details.addEventListener("toggle", () => { if (details.open) fillTable(details, data); });
  }
  const openNamed = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (target?.dataset.table) target.open = true;
  };
  addEventListener("hashchange", openNamed);
  addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("details[data-table][open]")) fillTable(details, tables[details.id]); });
  openNamed();
}
