// Tables: built when they are opened; sorted by a click on a column's name, filtered by what the reader types.

const cellText = (value, kind) =>
  value === null ? "" : kind === "number" ? formatNumber(value) : kind === "integer" ? formatInteger(value) : value;

const formatInteger = (value) => withSign(grouped(String(Math.abs(value))), value, false);

function buildTable({ caption, columns }) {
  const head = make("tr", {}, ...columns.map(({ title, about, kind }) =>
    make("th", { scope: "col", title: about, className: kind === "word" ? "word" : "" }, make("button", { type: "button" }, title))));
  const rows = columns.length ? columns[0].values.map((_, at) => make("tr", {}, ...columns.map(({ kind, values, bounds }) => {
    const cell = make("td", { className: kind === "word" ? "word" : "" }, (bounds?.[at] ? "≤ " : "") + cellText(values[at], kind));
    if (kind === "word" && cell.textContent.length > 40) cell.title = cell.textContent;
    return cell;
  }))) : [];
  const body = make("tbody", {}, ...rows);
  const table = make("table", {}, make("caption", {}, caption), make("thead", {}, head), body);
  const numbers = new Map(rows.map((row, at) => [row, at]));
  sortable(table, columns, rows, numbers);
  return { table, rows, numbers };
}

// Numbers start with the largest, words with A; missing values come last in either order.
function sortable(table, columns, rows, numbers) {
  const headers = [...table.tHead.rows[0].cells];
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
    const column = columns.findIndex((other) => [other.name, other.title].some((own) => own.toLowerCase() === name));
    return wanted === undefined || column < 0
      ? (cells) => cells.some((cell) => cell.textContent.toLowerCase().includes(word))
      : (cells) => cells[column].textContent.toLowerCase() === wanted;
  });
  return (row) => conditions.every((condition) => condition([...row.cells]));
}

function tableTools(built, name, data) {
  const { rows } = built;
  const count = make("span", { className: "faint", role: "status" });
  const filter = make("input", { type: "search", placeholder: "filter, e.g. layer=3 [CLS]", "aria-label": "Filter rows" });
  filter.addEventListener("input", () => {
    const matches = matcher(filter.value, data.columns);
    let shown = 0;
    for (const row of rows) if (!(row.hidden = !matches(row))) shown++;
    count.textContent = filter.value ? `${formatInteger(shown)} of ${formatInteger(rows.length)} rows` : "";
  });
  const save = make("button", { type: "button", onclick: () => download(`${name}.csv`, "text/csv", csvOf(shownRows(built, data))) }, "CSV");
  return make("div", { className: "table-tools" }, filter, count, save);
}

// The rows that the filter shows, in their order, with exact numbers.
function shownRows({ rows, numbers }, { columns }) {
  const shown = rows.filter((row) => !row.hidden);
  return [columns.map(({ name }) => name), ...shown.map((row) => columns.map(({ values }) => values[numbers.get(row)] ?? ""))];
}

function fillTable(details, data) {
  if (details.querySelector("table")) return;
  const built = buildTable(data);
  const scroll = make("div", { className: "scroll", tabIndex: 0, role: "region", "aria-label": data.caption }, built.table);
  details.append(tableTools(built, details.id, data), scroll);
}

// A table in a `details` element is built when it opens. What the address names is opened, with the folds around it.
function mountTables(tables) {
  for (const [name, data] of Object.entries(tables)) {
    const details = document.getElementById(name);
    details.addEventListener("toggle", () => { if (details.open) fillTable(details, data); });
  }
  const openNamed = () => {
    const target = document.getElementById(location.hash.slice(1));
    if (!target) return;
    if (target.dataset.table) target.open = true;
    for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", openNamed);
  addEventListener("beforeprint", () => { for (const details of document.querySelectorAll("details[data-table][open]")) fillTable(details, tables[details.id]); });
  openNamed();
}
