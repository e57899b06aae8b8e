// Dependency arcs of a sentence: the treebank's above its words, and below them the heads that the shown map prefers instead.

const ARC = { level: 13, gap: 14, character: 7.3 };

// The word that has the largest value in each word's row, among the other words; undefined without a value above zero.
function preferredHeads(map, words) {
  const columns = map.columns.length;
  return new Map(words.map((word) => {
    const others = words.filter((other) => other !== word && map.values[word * columns + other] > 0);
    const best = others.reduce((a, b) => (a === undefined || map.values[word * columns + b] > map.values[word * columns + a] ? b : a), undefined);
    return [word, best];
  }));
}

// Arcs with a level each, so that no arc crosses the top of a shorter one below it.
function levelled(arcs) {
  const placed = [];
  for (const arc of [...arcs].sort((a, b) => Math.abs(a.from - a.to) - Math.abs(b.from - b.to))) {
    const [start, end] = [Math.min(arc.from, arc.to), Math.max(arc.from, arc.to)];
    const below = placed.filter((other) => other.start < end && start < other.end);
    placed.push({ ...arc, start, end, level: 1 + Math.max(0, ...below.map(({ level }) => level)) });
  }
  return placed;
}

// The gold arcs, and which of them the map finds; and its own choices for the other words of the tree.
function arcsOf(sentence, map) {
  const preferred = preferredHeads(map, sentence.tree.words);
  const gold = sentence.tree.arcs.map(([dependent, head, relation]) => ({ from: head, to: dependent, relation, found: preferred.get(dependent) === head }));
  const found = new Set(gold.filter((arc) => arc.found).map(({ to }) => to));
  const instead = [...new Set(gold.map(({ to }) => to))].filter((word) => !found.has(word) && preferred.get(word) !== undefined)
    .map((word) => ({ from: preferred.get(word), to: word, relation: "", found: false }));
  return { gold, instead };
}

// The drawing as SVG: words in a line, an arrow from every head to its dependent. Classes colour it.
function arcsSvg(sentence, map) {
  const { gold, instead } = arcsOf(sentence, map);
  const words = sentence.tree.words;
  const centres = new Map();
  let width = 4;
  for (const word of words) {
    const room = columnLabel(map.columns[word]).length * ARC.character;
    centres.set(word, width + room / 2);
    width += room + ARC.gap;
  }
  const [above, below] = [levelled(gold), levelled(instead)];
  const height = (arcs) => 18 + ARC.level * Math.max(0, ...arcs.map(({ level }) => level));
  const top = height(above);
  const curve = (arc, side, kind) => {
    const [x, y] = [side < 0 ? top - 2 : top + 18, side * (6 + ARC.level * arc.level)];
    const shift = arc.from < arc.to ? 3 : -3;
    const [a, b] = [centres.get(arc.from) + shift, centres.get(arc.to) - shift];
    const bend = Math.min(10, Math.abs(b - a) / 2) * Math.sign(b - a);
    const path = `M${a} ${x}V${x + y * 0.6}Q${a} ${x + y} ${a + bend} ${x + y}H${b - bend}Q${b} ${x + y} ${b} ${x + y * 0.6}V${x + side * 4}`;
    const head = `M${b - 3} ${x + side * 6}L${b} ${x}L${b + 3} ${x + side * 6}Z`;
    const label = arc.relation && `<text class="relation" x="${(a + b) / 2}" y="${x + y - 2}">${escapeXml(arc.relation)}</text>`;
    const title = `${map.columns[arc.from]} → ${map.columns[arc.to]}${arc.relation ? `, ${arc.relation}` : ""}`;
    return `<g class="${kind}"><title>${escapeXml(title)}</title><path class="line" d="${path}"/><path class="tip-of-arc" d="${head}"/>${label}</g>`;
  };
  const texts = words.map((word) => `<text class="word" x="${centres.get(word)}" y="${top + 12}"><title>${escapeXml(map.columns[word])}</title>${escapeXml(columnLabel(map.columns[word]))}</text>`);
  const arcs = [...above.map((arc) => curve(arc, -1, arc.found ? "found" : "gold")), ...below.map((arc) => curve(arc, 1, "instead"))];
  const total = top + 20 + height(below);
  return { svg: `<svg width="${Math.ceil(width)}" height="${total}" viewBox="0 0 ${Math.ceil(width)} ${total}" role="img">${arcs.join("")}${texts.join("")}</svg>`,
    found: gold.filter((arc) => arc.found).length, arcs: gold.length };
}
