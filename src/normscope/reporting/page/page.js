// The page: its explorer, pairs of texts and tables, the table of contents and the copy buttons.
// Marks the section that is being read.
function mountContents() {
  const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
  const seen = new Set();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) isIntersecting ? seen.add(target.id) : seen.delete(target.id);
    const current = [...links.keys()].find((id) => seen.has(id));
    for (const [id, link] of links) id === current ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current");
  }, { rootMargin: "-15% 0px -70% 0px" });
  for (const id of links.keys()) observer.observe(document.getElementById(id));
}

// The explorer, which shows the place of a finding when its link is clicked: also again, and on a page that cannot keep an address.
function mountExplorer(root, data) {
  const explorer = new Explorer(root, data, { address: addressIn("explore") });
  document.querySelector("main").addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#explore?']");
    if (!link) return;
    explorer.open(new URLSearchParams(link.hash.split("?")[1]));
    addressOf("explore").reached(root);
  });
}

const explorerData = dataOf("explorer-data");
const addressIn = (section) => (location.protocol === "about:" ? undefined : addressOf(section)); // a sandboxed frame of a notebook cannot keep one
if (explorerData) unpackData(explorerData).then((data) => mountExplorer(document.getElementById("explorer-root"), data));
const rowData = dataOf("row-data");
if (rowData) unpackMaps(rowData.sentence).then(() => new RowText(document.getElementById("row-root"), rowData));
const sourcesData = dataOf("sources-data");
if (sourcesData) new SourcesView(document.getElementById("sources-root"), addressIn("answer")).show(sourcesData);
const pairsData = dataOf("pairs-data");
for (const root of document.querySelectorAll("[data-pairs]")) {
  const pairs = pairsData[root.dataset.pairs];
  const view = new PairView(root, pairs);
  const ranking = document.getElementById("ranking-root");
  if (ranking) new RankingView(ranking, pairs, view);
}
inflatedText("tables-data").then((text) => mountTables(JSON.parse(text)));
mountContents();
mountCopyButtons();
