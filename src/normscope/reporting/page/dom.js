// Small helpers for building elements and saving files.

// An element with properties (className, textContent, onclick, …), attributes (with a dash, or `role`) and children.
function make(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "for") node.setAttribute(name, value);
    else node[name] = value;
  }
  node.append(...children);
  return node;
}

// An element of SVG with attributes and children.
function drawn(tag, attributes = {}, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

const total = (values) => values.reduce((a, b) => a + b, 0);

// Part of a text. Places count characters as Python does; JavaScript's own count those beyond U+FFFF, such as emoji, twice.
const sliced = (text, start, end) => [...text].slice(start, end).join("");

// A text, without its middle if it is too long, as `errors.cut` cuts it.
function clipped(text, longest) {
  const length = [...text].length;
  const end = Math.floor((longest - 1) / 2);
  return length <= longest ? text : `${sliced(text, 0, longest - 1 - end)}…${sliced(text, length - end)}`;
}

function download(name, type, content) {
  const link = make("a", { href: URL.createObjectURL(new Blob([content], { type })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

// Rows of text and numbers as CSV. Text that a spreadsheet would take for a formula gets an apostrophe in front, as in
// `table_files.py`.
function csvOf(rows) {
  const quoted = (text) => (/[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);
  const cell = (value) => (typeof value === "string" ? quoted(value.replace(/^[=+\-@\t\r\n\0]/, "'$&")) : value);
  return rows.map((row) => row.map(cell).join()).join("\n");
}

// A custom property of the page's style; colours are defined there, for light and dark.
function styleValue(node, name) {
  return getComputedStyle(node).getPropertyValue(name).trim();
}

// Calls back once now and whenever the reader switches between light and dark.
function onColourScheme(callback) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", callback);
  callback();
}

// The JSON content of a script element; null without one.
function dataOf(id) {
  const node = document.getElementById(id);
  return node && JSON.parse(node.textContent);
}

// A button in every block of code, which copies it.
function mountCopyButtons() {
  for (const block of document.querySelectorAll(".code")) {
    const button = make("button", { type: "button" }, "Copy");
    button.addEventListener("click", async () => {
      try {
        await navigator.clipboard.writeText(block.querySelector("pre").textContent);
        button.textContent = "Copied";
      } catch {
        getSelection().selectAllChildren(block.querySelector("pre"));
        button.textContent = "Selected";
      }
    });
    block.append(button);
  }
}
