// The live page: a text is typed, and what the model makes of it is asked for and shown.

const TYPING = 40; // milliseconds without a key before the server is asked

class LivePage {
  // `saved` is what a page that was saved has in place of a server.
  constructor(about, saved) {
    Object.assign(this, { about, saved, state: new LiveState(saved?.state), asker: saved ? new SavedAnswers(saved) : new Asker() });
    this.progress = new Progress(document.getElementById("progress"));
    this.main = document.querySelector("main");
    this.text = new TextView(document.getElementById("writing"), {
      onText: (text) => this.type({ text }),
      onBefore: (before) => this.type({ before }),
      onEdit: (before, text) => this.change({ before: this.state.has("before") ? this.state.get("before") : before, text }),
      onPick: (token) => this.explorer?.change({ token }),
    });
    this.prediction = new PredictionView(document.getElementById("prediction"), {
      onTarget: (target) => this.change({ target, against: undefined }),
      onAgainst: (against) => this.change({ target: this.predicted.target, against }),
      onHead: (layer, head) => {
        this.explorer?.change({ layer: this.answers[0].layers.indexOf(layer), head });
        document.getElementById("maps").scrollIntoView();
      },
    });
    this.sources = new SourcesView(document.getElementById("sources-root"), {
      read: () => new URLSearchParams({ sentence: this.state.get("said") }),
      write: (kept) => this.state.set({ said: kept.get("sentence") }),
    });
    this.typed = new TypedTexts(document.getElementById("texts"), (text) => this.change({ text }));
    new Keeper(this.state, this.asker);
    this.controls();
    if (saved) this.freeze(saved);
    onColourScheme(() => this.text.now && this.text.colour());
    addEventListener("hashchange", () => this.fromAddress());
    this.fromAddress();
  }

  controls() {
    const box = (name, title, value) => {
      const input = make("input", { type: "checkbox", name, onchange: () => this.change({ [name]: input.checked ? value : undefined }) });
      return [input, make("label", {}, input, title)];
    };
    const [level, byWord] = box("level", "measure whole words", "word");
    const [chat, asChat] = box("chat", "conversation", "1");
    const [through, upTo] = box("through", "maps up to each layer", "1");
    const [sources, ofAnswer] = box("sources", "sources of the answer", "1");
    const names = this.names = withoutCommonFolder(this.about.models.map(({ name }) => name));
    const menu = (name, value, first) => {
      const box = make("select", { name, "aria-label": name, onchange: () => this.change({ [name]: value(box.value) }) }, ...first, ...names.map((each, at) => new Option(each, at + 1)));
      return box;
    };
    const model = menu("model", (chosen) => (chosen === "1" ? undefined : chosen), []);
    const compare = menu("compare", (chosen) => chosen || undefined, [new Option("nothing", "")]);
    // Checkpoints of a training are in the order of their steps.
    const slider = make("input", { type: "range", name: "checkpoint", min: 1, max: names.length, "aria-label": "model, by its place in the list", oninput: () => this.slide(slider.value) });
    const several = [make("label", {}, "model", model), ...(names.length > 2 ? [slider] : []), make("label", {}, "compared with", compare)];
    this.keep = make("button", { type: "button", name: "keep", onclick: () => this.change({ before: this.state.has("before") ? undefined : this.state.get("text") }) });
    this.boxes = { level, through, sources, chat, model, compare, slider };
    Object.assign(this, { asChat, ofAnswer });
    this.text.choices.replaceChildren(...(names.length > 1 ? several : []), asChat, ofAnswer, byWord, upTo, this.keep);
  }

  // A live page's title is its model, whose texts change; a saved page's title is its text, which does not.
  head({ name, facts }) {
    const text = this.state.get("text") ?? "";
    const title = document.getElementById("page-title");
    const byText = this.saved?.titled;
    title.textContent = byText ? clipped(text, LONGEST_TITLE) : name;
    title.title = byText ? text : "";
    document.getElementById("model-facts").textContent = byText ? `${name}: ${facts}` : facts;
  }

  get shownModel() {
    return this.about.models[(Number(this.state.get("model")) || 1) - 1] ?? this.about.models[0];
  }

  // What is shown and what it is compared with, by name: two models, or two texts in one model.
  sidesOf({ model = "1", compare = model }) {
    return model === compare ? ["this text", "the other text"] : [this.names[model - 1], this.names[compare - 1]];
  }

  // A page that was saved shows one state.
  freeze({ when }) {
    this.text.area.readOnly = this.text.other.readOnly = true;
    this.text.frozen = true;
    document.body.classList.add("saved");
    if (when) document.querySelector(".page-header").append(make("p", { className: "analyses" }, `saved on ${when}`));
  }

  fromAddress() {
    this.state.read();
    if (!this.state.has("text")) this.state.set(this.shownModel.opening);
    this.text.text = this.state.get("text");
    this.update();
  }

  type(changes) {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.change(changes), TYPING);
  }

  slide(number) {
    this.boxes.model.value = number;
    this.type({ model: number === "1" ? undefined : number });
  }

  change(changes) {
    this.state.set(changes);
    if ("text" in changes) this.text.text = changes.text ?? "";
    this.update();
  }

  // Makes the controls agree with the state, and asks for what is to be seen.
  async update() {
    const { state } = this;
    this.boxes.level.checked = state.get("level") === "word";
    this.boxes.through.checked = state.get("through") === "1";
    this.boxes.sources.checked = state.get("sources") === "1";
    this.boxes.chat.checked = this.text.chat = state.get("chat") === "1";
    this.boxes.model.value = this.boxes.slider.value = state.get("model") || "1";
    this.boxes.compare.value = state.get("compare");
    this.text.before = state.has("before") ? state.get("before") : undefined;
    this.keep.textContent = state.has("before") ? "Stop comparing" : "Compare changes with this text";
    const model = this.shownModel;
    this.head(model);
    this.model = model;
    this.asChat.hidden = !model.chats && state.get("chat") !== "1";
    this.ofAnswer.hidden = !model.answers && state.get("sources") !== "1";
    const asked = { text: "", ...state.asked };
    const sides = state.isPaired ? [0, 1] : [0];
    this.round = asked; // what older rounds still wait for is not needed
    this.asker.next();
    const parts = [this.askMaps(asked, sides).then(() => this.say(""), (error) => this.fail(error, (line) => this.say(line))),
      this.askPrediction(asked, sides).catch((error) => this.fail(error, (line) => this.prediction.fail(line)))
        .then(() => this.askSources(asked)).catch((error) => this.fail(error, (line) => this.sayOfAnswer([line], false)))];
    await this.progress.during(Promise.all(parts));
  }

  // An answer, or nothing and a line that says why.
  async orElse(answer, say) {
    try {
      return await answer;
    } catch (error) {
      if (error instanceof Outdated) throw error;
      say(error.message);
    }
  }

  fail(error, say) {
    if (!(error instanceof Outdated)) say(error.message);
  }

  ask(part, side, asked, round = asked) {
    if (round !== this.round) throw new Outdated();
    return this.asker.ask(part, side, asked);
  }

  // The maps and, if wanted, those up to each layer, some of which take longer. A choice from a menu stays selected while its map is
  // on its way.
  async askMaps(asked, sides) {
    const answers = await Promise.all(sides.map((side) => this.ask("maps", side, asked)));
    const fit = answers.every((answer) => answer.maps);
    if (fit) await Promise.all(answers.map((answer) => unpackMaps(answer.maps)));
    const more = fit && asked.through === "1" ? ["chained", "carried"] : [];
    const { measure = "attn_n" } = asked;
    const show = (isLast) => {
      if (isLast || measure in answers[0].maps.maps) this.show(asked, ...answers);
    };
    show(!more.length);
    for (const part of more) {
      const found = await Promise.all(sides.map((side) => this.ask(part, side, asked)));
      await Promise.all(found.map((answer) => unpackMaps(answer)));
      found.forEach(({ maps, notes }, at) => {
        Object.assign(answers[at].maps.maps, maps);
        answers[at].notes.push(...notes);
      });
      show(part === more.at(-1));
    }
  }

  // The prediction, then what it is made of by head, and the similarity of two embeddings. What a text before would predict is asked
  // for the same answer.
  async askPrediction(asked, sides) {
    const now = await this.ask("prediction", 0, asked);
    const target = now.choices.length && now.scores ? { target: now.target, ...(now.against && { against: now.against }) } : {};
    let other = ""; // why there is nothing to compare with: another kind of model
    const before = sides.length > 1 ? await this.orElse(this.ask("prediction", 1, { ...asked, ...target }, asked), (line) => { other = line; }) : undefined;
    this.predicted = now;
    const [, name] = this.sidesOf(asked);
    const similar = !now.choices.length && (asked.before ?? asked.text) !== asked.text && (asked.compare ?? asked.model) === asked.model;
    this.prediction.show(now, before, { against: now.against || undefined, name, similar });
    if (now.scores && this.model.two) this.prediction.list(now);
    if (other) this.prediction.note(`${name}: ${other}`);
    if (!similar) {
      this.prediction.showPair(undefined);
      this.text.colour(now.scores ?? [], now.first);
    }
    if (!similar) {
      if (!now.scores) return;
      this.follow(now);
      const grid = await this.orElse(this.ask("heads", 0, asked), () => {});
      this.prediction.showHeads(grid);
      this.follow(now, grid?.strongest[0]);
      return;
    }
    const pair = await this.orElse(this.ask("pair", 0, asked), (line) => this.prediction.note(line));
    this.prediction.showPair(pair);
    if (!pair) return;
    const [{ labels: rows }, { labels: others }] = pair.texts;
    const columns = others.length + 1;
    const added = rows.map((_, row) => total(pair.values.slice(row * columns, (row + 1) * columns)));
    this.text.colour(added);
    this.follow({ row: added.indexOf(Math.max(...added)) });
  }

  // The answer to the whole text and what it comes from, which takes longest.
  async askSources(asked) {
    const section = document.getElementById("answer");
    section.hidden = asked.sources !== "1";
    if (section.hidden) return;
    section.classList.add("stale"); // until they come
    const found = await this.ask("sources", 0, asked);
    this.sources.show(found);
    this.sayOfAnswer(found.findings);
  }

  // Findings on the answer, or a line that says why there is none.
  sayOfAnswer(lines, isFound = true) {
    document.getElementById("answer").classList.remove("stale");
    document.getElementById("answer-findings").replaceChildren(...lines.map((line) => make("li", {}, line)));
    for (const name of ["answer-note", "sources-root"]) document.getElementById(name).hidden = !isFound;
  }

  // Opens the map where an answer comes from: at the row that it is read from, or that adds most, and the head that adds most. Once
  // the reader has chosen what the map shows, it stays.
  follow({ row, is_read_there: isRead }, [layer, head] = []) {
    this.place = { row, isRead, layer, head };
    if (this.answers) this.open();
  }

  open() {
    const { row, isRead, layer, ...place } = this.place ?? {};
    const head = this.answers[0].maps?.heads && place.head;
    const opened = document.getElementById("opened");
    const follows = this.explorer && this.answers[0].maps && row < this.answers[0].labels.length && !this.state.hasView;
    opened.hidden = !follows;
    if (!follows) return;
    const view = new URLSearchParams({ ...(layer && { layer }), ...(head && { head }), token: row, scale: "map" });
    if (String(view) !== this.view || this.explorer.pinned !== row) this.explorer.open(view);
    this.view = String(view);
    const where = head ? `layer ${layer}, head ${head}, which adds most to the answer, and at ` : layer ? `layer ${layer} and ` : "";
    opened.textContent = `The map opens at ${where}“${this.answers[0].labels[row]}”, ${isRead ? "the token that the answer is read from" : "the token that adds most"}.`;
  }

  // A line about what is wrong; what was shown before stays, faint.
  say(line) {
    const problem = document.getElementById("problem");
    problem.textContent = line;
    problem.hidden = !line;
    this.main.classList.toggle("stale", Boolean(line));
  }

  show(asked, now, before) {
    this.answers = [now, before];
    this.sides = this.sidesOf(asked);
    if (!this.saved) this.typed.add(this.state.get("text"));
    this.text.show(now, before, this.model);
    for (const name of ["maps", "mixing"]) document.getElementById(name).hidden = false;
    const unit = this.state.get("level") || "token";
    document.getElementById("maps-title").textContent = `What each ${unit} receives from every other`;
    const help = document.getElementById("maps-help");
    this.help ??= help.textContent;
    help.textContent = this.help.replaceAll("token", unit);
    document.getElementById("notes").textContent = [...now.notes, ...(before?.notes ?? [])].join(" ");
    const sides = [now, ...(before ? [before] : [])];
    const fit = sides.every(({ maps }) => maps);
    document.getElementById("explorer-root").hidden = help.hidden = !fit;
    if (!fit) return this.drawMixing();
    const data = { ...this.about, measure: "attn_n", strip: true, paired: before && this.sides, sentences: sides.map(({ maps, roles }) => ({ ...maps, roles })) };
    if (this.explorer) this.explorer.show(data);
    else {
      this.explorer = new Explorer(document.getElementById("explorer-root"), data, {
        address: { read: () => this.state.values, write: (kept) => this.state.setView(kept) },
        onSelect: ({ token, words }) => {
          document.getElementById("opened").hidden = this.state.hasView;
          this.drawMixing(words ? undefined : token);
        },
      });
    }
    this.open();
  }

  drawMixing(token) {
    const [now, before] = this.answers;
    const node = document.getElementById("mixing-chart");
    const chart = mixingChart({ room: node.clientWidth, layers: now.layers, now: now.by_layer, before: before?.by_layer, token, titles: this.about.methods });
    node.replaceChildren(chart, make("p", { className: "faint" }, "Mean over all tokens",
      token === undefined ? "" : `; dashed: “${now.labels[token]}”`, before ? `; pale: ${this.sides[1]}` : "", ". How much of each token’s vector comes from other tokens; on the right, in the last layer."));
  }
}

// Names of models without the folder that all of them are in.
function withoutCommonFolder(names) {
  const parts = names[0].split("/").slice(0, -1);
  while (parts.length && !names.every((name) => name.startsWith(`${parts.join("/")}/`))) parts.pop();
  const shared = parts.length ? parts.join("/").length + 1 : 0;
  return names.length > 1 ? names.map((name) => name.slice(shared)) : names;
}

new LivePage(dataOf("about"), dataOf("saved"));
