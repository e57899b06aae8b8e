// Runs in a copy of a report, and sends what it saw to the page around it.
(async () => {
  const frame = () => new Promise((resolve) => setTimeout(resolve, 20));
  async function until(condition, what) {
    for (let attempt = 0; attempt < 600; attempt++) {
      if (condition()) return;
      await frame();
    }
    throw new Error(`never: ${what}`);
  }

  const listed = () => [...document.querySelectorAll(".ranks")].map((list) => [...list.children].map((row) => [row.querySelector(".token").textContent, row.querySelector("b").textContent, parseFloat(row.querySelector("i").style.width)]));

  async function explored(fragments) {
    const seen = {};
    if (fragments.length) await until(() => document.querySelector(".cells canvas"), "explorer");
    for (const fragment of fragments) {
      const link = document.querySelector(`a[href="${fragment}"]`);
      if (link) link.click();
      else location.hash = fragment;
      await frame();
      await frame();
      const canvas = document.querySelector(".cells canvas");
      seen[fragment] = { lists: listed(), cells: canvas.width * canvas.height, legend: [".map-title", ".legend"].map((part) => document.querySelector(part).textContent).join(" ") };
    }
    return seen;
  }

  function figures() {
    const seen = {};
    for (const fold of document.querySelectorAll("details.more")) fold.open = true;
    for (const figure of document.querySelectorAll(".figures figure")) {
      // A tall figure is there twice, once for wide screens: one of the two is seen.
      const [drawing, ...others] = [...figure.querySelectorAll("svg")].filter((svg) => svg.checkVisibility());
      if (others.length) throw new Error(`${figure.id} is seen twice`);
      const [inside, around] = [drawing.getBoundingClientRect(), figure.getBoundingClientRect()];
      // What the drawing's elements refer to, and nothing else, is in the page once.
      const named = [...drawing.querySelectorAll("[href^='#'], [clip-path]")].map((node) => (node.getAttribute("href") ?? node.getAttribute("clip-path").slice(4, -1)).slice(1));
      const [least] = [...drawing.querySelectorAll("text")].map((text) => parseFloat(getComputedStyle(text).fontSize) * inside.width / drawing.viewBox.baseVal.width).sort((a, b) => a - b);
      seen[figure.id] = {
        marks: drawing.querySelectorAll("path[clip-path], use, image").length, overflow: Math.max(inside.right - around.right, figure.scrollWidth - figure.clientWidth), least,
        lost: named.filter((name) => document.querySelectorAll(`[id="${name}"]`).length !== 1), texts: [...drawing.querySelectorAll("text")].map((text) => text.textContent),
        in_the_pages_font: [...drawing.querySelectorAll("text")].every((text) => getComputedStyle(text).fontFamily === getComputedStyle(document.body).fontFamily),
      };
    }
    return seen;
  }

  async function tables() {
    const seen = {};
    for (const details of document.querySelectorAll("details[data-table]")) {
      details.open = true;
      await until(() => details.querySelector("table"), details.id);
      const head = details.querySelector("thead button");
      head.focus();
      head.click();
      const search = details.querySelector("input");
      const rows = details.querySelectorAll("tbody tr");
      search.value = "zzz";
      search.dispatchEvent(new Event("input"));
      seen[details.id] = {
        rows: rows.length, caption: details.querySelector("caption").textContent, focused: document.activeElement === head,
        shadow: getComputedStyle(details.querySelector(".scroll")).backgroundAttachment, sorted: head.closest("th").getAttribute("aria-sort"), left: [...rows].filter((row) => !row.hidden).length,
      };
      search.value = "";
      search.dispatchEvent(new Event("input"));
    }
    return seen;
  }

  // WCAG 2.2, relative luminance and contrast.
  const channels = (colour) => (colour.match(/[\d.]+/g) ?? []).map(Number);
  const luminance = (colour) => channels(colour).slice(0, 3).map((value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4)).reduce((sum, value, at) => sum + value * [0.2126, 0.7152, 0.0722][at], 0);
  function ground(node) {
    for (let at = node; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (channels(colour)[3] !== 0) return colour;
    }
    return "rgb(255, 255, 255)";
  }

  function faint() {
    const found = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode.parentElement;
      if (!walker.currentNode.data.trim() || !node.getClientRects().length || node.closest("script, style, option, [style*='--on-']")) continue;
      const style = getComputedStyle(node);
      const [light, dark] = [luminance(node instanceof SVGElement ? style.fill : style.color), luminance(ground(node))].sort((a, b) => b - a);
      const contrast = (light + 0.05) / (dark + 0.05);
      if (contrast < 4.5) found.push(`${walker.currentNode.data.trim().slice(0, 40)}: ${contrast.toFixed(2)}`);
    }
    return found;
  }

  async function tapped() {
    location.hash = "#explore?head=0";
    await frame();
    await frame();
    const cells = document.querySelector(".cells");
    cells.scrollIntoView();
    const box = cells.getBoundingClientRect();
    const size = box.width / document.querySelector(".cells canvas").width;
    const place = { clientX: box.left + 2.5 * size, clientY: box.top + 1.5 * size, pointerType: "touch", bubbles: true };
    cells.dispatchEvent(new PointerEvent("pointerdown", place));
    cells.dispatchEvent(new PointerEvent("click", place));
    const tip = document.querySelector(".tip");
    const where = tip.getBoundingClientRect();
    return { hidden: tip.hidden, text: tip.textContent, above: where.bottom <= place.clientY, near: Math.abs((where.left + where.right) / 2 - place.clientX) < 200, pinned: document.querySelector(".lists h3").textContent };
  }

  const result = {};
  try {
    if (window.FRAGMENTS.length) result.explored = await explored(window.FRAGMENTS);
    result.tapped = await tapped();
    result.figures = figures();
    result.tables = await tables();
    result.faint = faint();
    result.wider = document.documentElement.scrollWidth - innerWidth;
    result.smooth = getComputedStyle(document.documentElement).scrollBehavior;
    const [viewport, row, column] = [".viewport", ".row-labels", ".column-labels"].map((name) => document.querySelector(name));
    result.sticky = [row, column].map((labels) => getComputedStyle(labels).position);
    result.dead = [...document.querySelectorAll("a[href^='#']")].filter((link) => !link.hash.startsWith("#explore?") && !document.getElementById(link.hash.slice(1))).map((link) => link.hash);
    result.dark = getComputedStyle(viewport).getPropertyValue("--ground").trim();
  } catch (error) {
    result.error = String(error.stack);
  }
  parent.postMessage(JSON.stringify(result), "*");
})();
