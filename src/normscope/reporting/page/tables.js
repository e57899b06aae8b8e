"use strict";
// Clicking a column header sorts its table.
for (const table of document.querySelectorAll("table.sortable")) {
  const headers = [...table.tHead.rows[0].cells];
  headers.forEach((header, column) => header.querySelector("button").addEventListener("click", () => {
    const descending = header.getAttribute("aria-sort") === "ascending";
    headers.forEach((other) => other.removeAttribute("aria-sort"));
    header.setAttribute("aria-sort", descending ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
    const numeric = rows.every(([text]) => text === "" || !Number.isNaN(Number(text)));
    // Missing values come last in either order.
    rows.sort(([a], [b]) => (a === "") - (b === "") || (descending ? -1 : 1) * (numeric ? a - b : a.localeCompare(b)));
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }));
}

function download(name, type, content) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
