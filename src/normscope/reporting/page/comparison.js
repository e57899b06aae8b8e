// The comparison of runs: tables that can be filtered and saved, and those of the figures' values.

// The rows that the filter shows, with exact numbers.
function shownRows(table, data) {
  const names = data.columns.map(({ name }) => name);
  const rows = [...table.tBodies[0].rows].filter((row) => !row.hidden);
  const order = new Map(table.rowsInData.map((row, at) => [row, at]));
  const texts = (row) => data.columns.map(({ values }) => values[order.get(row)] ?? "");
  return [names, ...rows.map(texts)];
}

function mountTable(place, name, data) {
  fillTable(place, data);
  const table = place.querySelector("table");
  table.rowsInData = [...table.tBodies[0].rows];
  const save = (label, action) => make("button", { type: "button", onclick: action }, label);
  place.querySelector(".table-tools").append(
    save("CSV", () => download(`${name}.csv`, "text/csv", csvOf(shownRows(table, data)))));
}

for (const [name, data] of Object.entries(dataOf("tables-data"))) mountTable(document.querySelector(`[data-filled="${name}"]`), name, data);
inflatedText("values-data").then((text) => mountTables(JSON.parse(text)));
