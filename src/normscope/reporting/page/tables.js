"use strict";
// Tables sort by a column when its name is chosen.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => head.querySelector("button").addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const value = (row) => row.cells[column].dataset.value ?? row.cells[column].textContent;
    const rows = [...table.tBodies[0].rows].map((row) => [value(row), row]);
    const numeric = rows.every(([text]) => text === "" || !Number.isNaN(Number(text)));
    // What is missing comes last, whichever way the rest is sorted.
    rows.sort(([a], [b]) => (a === "") - (b === "") || (down ? -1 : 1) * (numeric ? a - b : a.localeCompare(b)));
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
