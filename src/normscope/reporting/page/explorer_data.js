// The explorer's numbers: maps of a sentence, each value a code relative to the largest of its layer.

const BLOCK = 0; // The head that stands for all heads together; heads count from 1.
const EVERY_HEAD = -1;
const BEFORE = "before"; // What is subtracted: the map of the second sentence.

// Up to the knee, codes count steps of 1/65535; above it, each is larger by a thousandth than the one before.
const KNEE = 1000;
const share = (code) => (Math.min(code, KNEE) / 65535) * (1 + 1 / KNEE) ** Math.max(0, code - KNEE);
const SHARES = Float64Array.from({ length: 5200 }, (_, code) => share(code));

// Inflates the codes of every map of all sentences.
async function unpackData(data) {
  await Promise.all(data.sentences.map(unpackMaps));
  return data;
}

// Inflates the codes of a sentence's maps. High bytes precede low bytes.
async function unpackMaps({ norms, maps, head_maps = {} }) {
  const packed = [...Object.values(maps), ...Object.values(head_maps), ...(norms ? [norms] : [])];
  await Promise.all(packed.map(async (each) => {
    const bytes = await inflated(each.codes);
    const count = bytes.length / 2;
    each.codes = new Uint16Array(count);
    for (let at = 0; at < count; at++) each.codes[at] = 256 * bytes[at] + bytes[count + at];
  }));
}

// The highest bit of a code is a minus sign; the largest one without it stands for no value: the query cannot see the key.
const NEGATIVE = 1 << 15;
const UNSEEN = NEGATIVE - 1;
function unpack(packed, layer, at) {
  const code = packed.codes[at];
  if (code === UNSEEN) return NaN;
  const size = SHARES[code & ~NEGATIVE] * packed.largest[layer];
  return code & NEGATIVE ? -size : size;
}

// Values of one map, row by row: `layer` is an index, `head` is BLOCK or a number from 1.
function tokenValues(sentence, measure, layer, head) {
  const [n, m] = [sentence.queries.length, sentence.keys.length];
  const values = (packed, start) => new Float64Array(n * m).map((_, at) => unpack(packed, layer, start + at));
  if (head === BLOCK) return values(sentence.maps[measure], layer * n * m);
  const place = layer * sentence.heads + head - 1;
  const ofHead = (name) => values(sentence.head_maps[name], place * n * m);
  if (measure in sentence.head_maps) return ofHead(measure);
  return ofHead("attn_w").map((weight, at) => weight * unpack(sentence.norms, layer, place * m + (at % m)));
}

// The measures that exist for single heads, and for the block.
function measuresOf(data, sentence, head) {
  const ofHead = (name) => name in sentence.head_maps || (name === "attn_n" && sentence.norms);
  return Object.keys(data.measures).filter((name) => (head === BLOCK ? name in sentence.maps : ofHead(name)));
}

// The tokens of each word: [[0], [1, 2], …].
function membersOf(words) {
  const members = [];
  words.forEach((word, token) => (members[word] ??= []).push(token));
  return members;
}

// A word map: summed over the tokens of a column's word, averaged over those of a row's word. A row that sees no token of a word
// has no value.
function wordValues(values, m, rows, columns) {
  const result = new Float64Array(rows.length * columns.length);
  rows.forEach((queries, i) => columns.forEach((keys, j) => {
    const seen = queries.flatMap((query) => keys.map((key) => values[query * m + key])).filter((value) => !Number.isNaN(value));
    result[i * columns.length + j] = seen.length ? total(seen) / queries.length : NaN;
  }));
  return result;
}

// What a row of a map has in each column.
function rowOf({ values, columns }, row) {
  return Array.from(values.subarray(row * columns.length, (row + 1) * columns.length));
}

// Each row divided by its sum, so that measures with different units can be compared.
function rowShares(values, m) {
  const shares = Float64Array.from(values);
  for (let start = 0; start < shares.length; start += m) {
    const row = shares.subarray(start, start + m);
    const sum = total(row.filter((value) => !Number.isNaN(value)));
    if (sum) row.forEach((value, at) => { row[at] = value / sum; });
  }
  return shares;
}

// The rows and columns of the map: tokens, or words if the reader wants them, as they read; `exact` has them as the tokenizer
// writes them, `roles` the role of each in a conversation.
function axesOf(sentence, byWord) {
  const { roles, queries, keys, query_labels: rows, key_labels: columns } = sentence;
  if (!byWord || !sentence.query_words) {
    return { rows, columns, exact: { rows: queries, columns: keys }, rowWords: null, columnWords: null, ofTargets: sentence.of_targets, roles, places: sentence.places };
  }
  const [rowWords, columnWords] = [membersOf(sentence.query_words), membersOf(sentence.key_words)];
  const joined = (tokens, words) => words.map((word) => word.map((token) => tokens[token]).join(""));
  return { rows: joined(rows, rowWords), columns: joined(columns, columnWords), exact: { rows: joined(queries, rowWords), columns: joined(keys, columnWords) },
    rowWords, columnWords, roles: roles && rowWords.map(([first]) => roles[first]) };
}

// Where runs of one role begin.
const beginsRole = (roles, at) => Boolean(roles) && roles[at] !== roles[at - 1];

// The map that a selection shows: rows, columns and values; a difference if something is subtracted.
function mapOf(data, selection) {
  const sentence = data.sentences[selection.sentence];
  const axes = axesOf(sentence, selection.words);
  const values = (measure, layer) => {
    const tokens = tokenValues(sentence, measure, layer, selection.head);
    return axes.rowWords ? wordValues(tokens, sentence.keys.length, axes.rowWords, axes.columnWords) : tokens;
  };
  const shown = values(selection.measure, selection.layer);
  const [kind, name] = (selection.minus || "").split(":");
  if (kind === "layer") return { ...axes, values: minus(shown, values(selection.measure, sentence.layers.indexOf(Number(name)))) };
  if (kind === "measure") {
    const shares = (array) => rowShares(array, axes.columns.length);
    return { ...axes, values: minus(shares(shown), shares(values(name, selection.layer))) };
  }
  if (selection.minus === BEFORE) return { ...axes, values: sinceBefore(data, selection, axes, shown) };
  return { ...axes, values: shown };
}

// A map less that of the sentence it is compared with, token by token; NaN where a token, head or layer has no counterpart.
function sinceBefore(data, selection, axes, shown) {
  const before = data.sentences[1];
  const layer = before.layers.indexOf(data.sentences[0].layers[selection.layer]);
  if (layer < 0 || selection.head > before.heads || !measuresOf(data, before, selection.head).includes(selection.measure)) {
    return new Float64Array(shown.length).fill(NaN);
  }
  const other = mapOf(data, { ...selection, sentence: 1, layer, minus: "" });
  const [rows, columns] = [aligned(axes.exact.rows, other.exact.rows), aligned(axes.exact.columns, other.exact.columns)];
  return shown.map((value, at) => {
    const [row, column] = [rows[Math.floor(at / columns.length)], columns[at % columns.length]];
    return row < 0 || column < 0 ? NaN : value - other.values[row * other.columns.length + column];
  });
}

// For each token, its counterpart among those before: −1 for none. A longest common subsequence; between its tokens, others are
// counterparts one by one, so that a token that replaces another has its place.
function aligned(now, before) {
  const lengths = Array.from({ length: now.length + 1 }, () => new Uint16Array(before.length + 1));
  for (let i = now.length - 1; i >= 0; i--) {
    for (let j = before.length - 1; j >= 0; j--) {
      lengths[i][j] = now[i] === before[j] ? lengths[i + 1][j + 1] + 1 : Math.max(lengths[i + 1][j], lengths[i][j + 1]);
    }
  }
  const found = new Array(now.length).fill(-1);
  const pairUp = (i, end, j, last) => { while (i < end && j < last) found[i++] = j++; };
  let [i, j, start, first] = [0, 0, 0, 0];
  while (i < now.length && j < before.length) {
    if (now[i] === before[j]) {
      pairUp(start, i, first, j);
      found[i++] = j++;
      [start, first] = [i, j];
    } else if (lengths[i + 1][j] >= lengths[i][j + 1]) i++;
    else j++;
  }
  pairUp(start, now.length, first, before.length);
  return found;
}

const minus = (a, b) => a.map((value, at) => value - b[at]);
