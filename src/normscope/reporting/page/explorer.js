// The explorer: one token map at a time, drawn from 16-bit values.
(() => {
  const dataElement = document.getElementById("explorer-data");
  if (!dataElement) return;
  const data = JSON.parse(dataElement.textContent);
  const element = (id) => document.getElementById(id);
  const [sentenceBox, layerBox, headBox, measureBox] = ["sentence", "layer", "head", "measure"].map(element);
  const decoded = new Map();

  // Viridis from light to dark: the darker, the larger.
  const stops = ["#fde725", "#b5de2b", "#6ece58", "#35b779", "#1f9e89", "#26828e", "#31688e", "#3e4989", "#482878", "#440154"];
  const channels = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  function colour(share) {
    const at = Math.min(Math.max(share, 0), 1) * (channels.length - 1), low = Math.min(Math.floor(at), channels.length - 2);
    return `rgb(${channels[low].map((value, i) => Math.round(value + (channels[low + 1][i] - value) * (at - low))).join()})`;
  }

  function steps(array) {
    if (!decoded.has(array)) {
      const bytes = Uint8Array.from(atob(array.steps), (letter) => letter.charCodeAt(0));
      decoded.set(array, new DataView(bytes.buffer));
    }
    return decoded.get(array);
  }
  const value = (array, layer, at) => (steps(array).getUint16(2 * at, true) / 65535) * array.largest[layer];

  function state() {
    return { sentence: Number(sentenceBox.value), layer: Number(layerBox.value), head: Number(headBox.value), measure: measureBox.value };
  }

  function valuesOf({ sentence, layer, head, measure }) {
    const example = data.sentences[sentence], [n, m] = [example.queries.length, example.keys.length];
    const heads = example.heads || 1, result = [];
    for (let i = 0; i < n; i++) for (let j = 0; j < m; j++) {
      if (!head && measure !== "attn_w") result.push(value(example.maps[measure], layer, (layer * n + i) * m + j));
      else {
        const weight = (h) => value(example.weights, layer, ((layer * heads + h) * n + i) * m + j);
        if (!head) {
          let sum = 0;
          for (let h = 0; h < heads; h++) sum += weight(h);
          result.push(sum / heads);
        } else {
          const norm = measure === "attn_n" ? value(example.norms, layer, (layer * heads + head - 1) * m + j) : 1;
          result.push(weight(head - 1) * norm);
        }
      }
    }
    return result;
  }

  function setOptions(box, entries, selected) {
    box.replaceChildren(...entries.map(([name, title]) => new Option(title, name)));
    if (entries.some(([name]) => String(name) === String(selected))) box.value = selected;
  }

  let pinned = null, cell = null, current = [];
  let cellSize = 15;
  const format = (number) => (number >= 100 ? number.toFixed(1) : number.toFixed(4));

  function updateMenus(requested) {
    setOptions(sentenceBox, data.sentences.map((s, i) => [i, `${i + 1}: ${s.title.length > 70 ? `${s.title.slice(0, 69)}…` : s.title}`]), requested.sentence);
    const example = data.sentences[Number(sentenceBox.value)];
    setOptions(layerBox, example.layers.map((layer, i) => [i, layer]), requested.layer);
    setOptions(headBox, [[0, "block (all heads)"], ...Array.from({ length: example.heads }, (_, i) => [i + 1, i + 1])], requested.head);
    const single = Number(headBox.value) > 0;
    const names = single ? ["attn_w", "attn_n"] : ["attn_w", ...Object.keys(example.maps)];
    setOptions(measureBox, names.map((name) => [name, data.measures[name]]), requested.measure);
  }

  const svgNode = (name, attributes, text) => {
    const node = document.createElementNS("http://www.w3.org/2000/svg", name);
    for (const [key, content] of Object.entries(attributes)) node.setAttribute(key, content);
    if (text !== undefined) node.textContent = text;
    return node;
  };

  function draw(remember = true) {
    const selection = state(), example = data.sentences[selection.sentence];
    current = valuesOf(selection);
    const longest = (tokens) => 8 + 6.8 * Math.max(...tokens.map((token) => Math.min(token.length, 18)));
    const left = longest(example.queries), top = longest(example.keys), most = current.reduce((a, b) => Math.max(a, b), 0);
    const [n, m] = [example.queries.length, example.keys.length];
    cellSize = Math.min(Math.max(Math.floor(640 / m), 13), 30);
    const [width, height] = [left + m * cellSize + 8, top + n * cellSize + 8];
    const svg = svgNode("svg", { xmlns: "http://www.w3.org/2000/svg", width, height, viewBox: `0 0 ${width} ${height}` });
    const clipped = (token) => (token.length > 18 ? `${token.slice(0, 17)}…` : token);
    example.queries.forEach((token, i) => svg.append(svgNode("text", { x: left - 4, y: top + (i + 0.75) * cellSize, "text-anchor": "end",
      class: `token${pinned === i ? " pinned" : ""}`, "data-token": i }, clipped(token))));
    example.keys.forEach((token, j) => svg.append(svgNode("text", { transform: `translate(${left + (j + 0.75) * cellSize} ${top - 4}) rotate(-90)`,
      class: `token${pinned === j && !example.is_cross_attention ? " pinned" : ""}`, "data-key": j }, clipped(token))));
    current.forEach((number, at) => svg.append(svgNode("rect", { x: left + (at % m) * cellSize, y: top + Math.floor(at / m) * cellSize,
      width: cellSize, height: cellSize, fill: colour(most ? number / most : 0), "data-at": at })));
    svg.append(svgNode("rect", { id: "cursor", width: cellSize, height: cellSize, fill: "none", stroke: "#d55e00", "stroke-width": 2, visibility: "hidden" }));
    element("map").replaceChildren(svg);
    mark();
    ranks();
    const address = { sentence: selection.sentence + 1, layer: example.layers[selection.layer], head: selection.head, measure: selection.measure };
    if (pinned !== null) address.token = pinned;
    if (remember) history.replaceState(null, "", `#explore?${new URLSearchParams(address)}`);
  }

  function mark() {
    const { sentence } = state(), example = data.sentences[sentence], m = example.keys.length;
    if (cell === null || cell >= current.length) { element("reading").textContent = ""; return; }
    const [i, j] = [Math.floor(cell / m), cell % m], cursor = element("cursor");
    const target = element("map").querySelector(`rect[data-at="${cell}"]`);
    for (const name of ["x", "y"]) cursor.setAttribute(name, target.getAttribute(name));
    cursor.setAttribute("visibility", "visible");
    element("reading").textContent = `${example.queries[i]} (${i}) takes from ${example.keys[j]} (${j}): ${format(current[cell])}`;
  }

  function list(title, tokens, numbers) {
    const heading = document.createElement("h3"), ranked = document.createElement("ol"), most = Math.max(...numbers);
    heading.textContent = title;
    ranked.className = "ranks";
    numbers.map((number, at) => [number, at]).sort(([a], [b]) => b - a).slice(0, 12).forEach(([number, at]) => {
      const row = document.createElement("li"), bar = document.createElement("i"), name = document.createElement("span"), figure = document.createElement("b");
      bar.style.width = `${most ? (100 * number) / most : 0}%`;
      [name.textContent, figure.textContent] = [`${tokens[at]} (${at})`, format(number)];
      row.append(bar, name, figure);
      ranked.append(row);
    });
    return [heading, ranked];
  }

  function ranks() {
    const example = data.sentences[state().sentence], m = example.keys.length;
    if (pinned === null || pinned >= example.queries.length) { element("pinned").replaceChildren(); return; }
    const token = example.queries[pinned], row = current.slice(pinned * m, (pinned + 1) * m);
    const parts = list(`${token} takes from`, example.keys, row);
    if (!example.is_cross_attention) parts.push(...list(`${token} gives to`, example.queries, example.queries.map((_, i) => current[i * m + pinned])));
    element("pinned").replaceChildren(...parts);
  }

  function pin(token) {
    pinned = pinned === token ? null : token;
    draw();
  }

  element("map").addEventListener("mousemove", (event) => {
    const at = event.target.dataset?.at;
    if (at !== undefined) { cell = Number(at); mark(); }
  });
  element("map").addEventListener("click", (event) => {
    const example = data.sentences[state().sentence], { token, key, at } = event.target.dataset ?? {};
    if (token !== undefined) pin(Number(token));
    else if (key !== undefined && !example.is_cross_attention) pin(Number(key));
    else if (at !== undefined) { cell = Number(at); mark(); pin(Math.floor(cell / example.keys.length)); }
  });
  element("map").addEventListener("keydown", (event) => {
    const m = data.sentences[state().sentence].keys.length, moves = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: m, ArrowUp: -m };
    if (event.key in moves) {
      event.preventDefault();
      cell = Math.min(Math.max((cell ?? -moves[event.key]) + moves[event.key], 0), current.length - 1);
      mark();
      element("cursor").scrollIntoView({ block: "nearest", inline: "nearest" });
    } else if (event.key === "Enter" && cell !== null) pin(Math.floor(cell / m));
  });
  for (const box of [sentenceBox, layerBox, headBox, measureBox]) box.addEventListener("change", () => {
    if (box === sentenceBox) { pinned = null; cell = null; }
    updateMenus(state());
    draw();
  });

  const fileName = () => { const { sentence, layer, head, measure } = state(); return `sentence${sentence + 1}_layer${data.sentences[sentence].layers[layer]}_${head ? `head${head}` : "block"}_${measure}`; };
  function drawing() {
    const copy = element("map").firstChild.cloneNode(true);
    copy.querySelector("#cursor").remove();
    copy.prepend(svgNode("style", {}, "text { font: 11px monospace; }"), svgNode("rect", { width: "100%", height: "100%", fill: "#fff" }));
    return new XMLSerializer().serializeToString(copy);
  }
  element("as-svg").addEventListener("click", () => download(`${fileName()}.svg`, "image/svg+xml", drawing()));
  element("as-png").addEventListener("click", () => {
    const image = new Image(), size = element("map").firstChild;
    image.onload = () => {
      const canvas = document.createElement("canvas");
      [canvas.width, canvas.height] = [2 * size.getAttribute("width"), 2 * size.getAttribute("height")];
      const context = canvas.getContext("2d");
      context.scale(2, 2);
      context.drawImage(image, 0, 0);
      canvas.toBlob((blob) => download(`${fileName()}.png`, "image/png", blob));
    };
    image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(drawing())}`;
  });
  element("as-csv").addEventListener("click", () => {
    const { sentence } = state(), example = data.sentences[sentence], m = example.keys.length;
    // Double the quotes, and keep spreadsheets from reading a token as a formula.
    const quoted = (token) => `"${token.replace(/^[=+\-@]/, "'$&").replaceAll('"', '""')}"`;
    const rows = current.map((number, at) => [Math.floor(at / m), quoted(example.queries[Math.floor(at / m)]), at % m, quoted(example.keys[at % m]), number]);
    download(`${fileName()}.csv`, "text/csv", ["query,query_token,key,key_token,value", ...rows.map((row) => row.join())].join("\n"));
  });

  const addressSelects = () => location.hash.startsWith("#explore?");
  function fromAddress() {
    const requested = new URLSearchParams(addressSelects() ? location.hash.split("?")[1] : ""), number = (name) => Number(requested.get(name) ?? 0);
    const sentence = Math.min(Math.max(number("sentence") - 1, 0), data.sentences.length - 1), example = data.sentences[sentence];
    const layer = example.layers.indexOf(number("layer"));
    pinned = requested.has("token") && number("token") < example.queries.length ? number("token") : null;
    updateMenus({ sentence, layer: layer < 0 ? example.layers.length - 1 : layer, head: number("head"), measure: requested.get("measure") ?? "attn_n" });
    draw(false);
    if (addressSelects()) element("explorer").scrollIntoView();
  }
  addEventListener("hashchange", () => { if (addressSelects()) fromAddress(); });
  fromAddress();
})();
