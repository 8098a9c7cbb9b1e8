// Where two lanes part: found as their tokens come, told in one sentence, explained by the server from the record.

Object.assign(TEXTS, {
  parting_took: { en: "{name} took {token} ({p}).", zh: "{name} 选了 {token}（{p}）。" },
  parting_region: { en: "Where two lanes part", zh: "两条通道从哪里分开" },
  parting_pair: { en: "The two lanes that are compared", zh: "被比较的两条通道" },
  parting_first: { en: "First lane", zh: "第一条通道" },
  parting_second: { en: "Second lane", zh: "第二条通道" },
  parting_and: { en: "and", zh: "与" },
  parting_margin: { en: "Top-2 margin: {margin} logits.", zh: "前两名分差：{margin} logits。" },
  parting_margins: { en: "Top-2 margin: {a} and {b} logits.", zh: "前两名分差：{a} 与 {b} logits。" },
  parting_margin_help: { en: "The model's score of its likeliest token minus that of the next, at this step; read from the record. Near 0, a small difference decides.", zh: "这一步模型给最可能词元的分数减去第二名的分数；取自记录。接近 0 时，微小差别即可决定结果。" },
  parting_removed: { en: "In {name}, {stage} had removed {token}.", zh: "在 {name} 中，{token} 已被 {stage} 移除。" },
  parting_looking: { en: "Looking for the cause…", zh: "正在查找原因…" },
  parting_waiting: { en: "Nothing to compare yet.", zh: "还没有可比较的词元。" },
  parting_same_so_far: { en: "{a} and {b} are the same so far: {count} tokens.", zh: "{a} 与 {b} 目前完全相同：{count} 个词元。" },
  parting_unsettled: { en: "As they stand, {a} and {b} differ from token {number} on; that isn't settled yet: {searching} can still replace its text.", zh: "就目前所写，{a} 与 {b} 从第 {number} 个词元起不同；但尚未确定：{searching} 仍可能替换已写的文本。" },
  parting_unsettled_both: { en: "As they stand, {a} and {b} differ from token {number} on; that isn't settled yet: both can still replace their text.", zh: "就目前所写，{a} 与 {b} 从第 {number} 个词元起不同；但尚未确定：两者都仍可能替换已写的文本。" },
  parting_never: { en: "{a} and {b} never part: both wrote the same {count} tokens.", zh: "{a} 与 {b} 始终没有分开：写出了同样的 {count} 个词元。" },
  parting_beginning: { en: "{a} and {b} never part: {short} is the beginning of {long}, the same for all of its {count} tokens.", zh: "{a} 与 {b} 没有分开：{short} 是 {long} 的开头，它的 {count} 个词元全部相同。" },
  parting_mark: { en: "Here {a} and {b} part.", zh: "{a} 与 {b} 在此分开。" },
  pair_show: { en: "Both pipelines", zh: "并排看两条流水线" },
  pair_on: { en: "Compare the two here", zh: "在此比较两条通道" },
  pair_missing: { en: "This lane has no token {number}.", zh: "这条通道没有第 {number} 个词元。" },
  twice: { en: "Run “{name}” twice", zh: "把“{name}”运行两次" },
  twice_help: { en: "Runs this lane two times with the same seed, and says whether every token came out the same.", zh: "用同一种子把这条通道运行两次，并告诉您每个词元是否都相同。" },
  twice_again: { en: "{name}, again", zh: "{name}（再次）" },
  twice_yes: { en: "It reproduced itself, token for token.", zh: "它逐个词元地重现了自己。" },
  twice_no: { en: "It did not reproduce itself.", zh: "它没有重现自己。" },
  twice_back: { en: "Back to the lanes before", zh: "回到之前的通道" },
});

class Parting {
  constructor(app) {
    this.app = app;
    this.chosen = null; // the two lanes that the visitor chose, by uid
    this.found = null; // the first two that parted: {run, lanes}
    this.answers = new Map(); // "run/a/b/position" → what the server knows of it
    this.marks = []; // [node] that wear the mark
    this.told = null; // what is drawn
    this.before = memory.read(sessionStorage, "before"); // what the page showed before a lane was run twice
    const { ref } = app;
    this.selects = [0, 1].map((side) => el("select.parting-lane", { onchange: (event) => this.choose(side, event.target.value) }));
    this.pick = el("span.parting-pick", { role: "group", "data-t-label": "parting_pair" }, this.selects[0], el("span.muted", { "data-t": "parting_and" }), this.selects[1]);
    this.both = el("button.secondary.small", { type: "button", "data-t": "pair_show", onclick: () => this.showBoth() });
    this.again = el("button.secondary.small", { type: "button", onclick: () => this.twice() });
    this.return = el("button.secondary.small", { type: "button", "data-t": "twice_back", hidden: true, onclick: () => this.goBack() });
    ref.partedTools.append(this.pick, this.both, this.again, this.return);
    translate(ref.parted);
  }

  /** The lanes that are compared, by index in the run: those that the visitor chose, else the first two that parted. */
  get lanes() {
    const { run, replay } = this.app;
    if (!run || run.lanes.length < 2) return null;
    const chosen = this.chosen?.map((uid) => run.uids.indexOf(uid)) ?? [];
    if (chosen.length === 2 && chosen.every((lane) => lane >= 0) && chosen[0] !== chosen[1]) return chosen;
    if (replay?.parts) return replay.parts.lanes;
    if (this.found?.run !== run.id) this.found = null;
    this.found ??= this.firstPair(run);
    return this.found?.lanes ?? [0, 1];
  }

  firstPair(run) {
    let first = null;
    for (let a = 0; a < run.lanes.length; a++) {
      for (let b = a + 1; b < run.lanes.length; b++) {
        const position = this.partingOf(a, b);
        if (position !== null && (first === null || position < first.position)) first = { run: run.id, lanes: [a, b], position };
      }
    }
    return first;
  }

  /** Where the two lanes part, as far as their tokens are here; null while, or because, they don't. */
  get position() {
    const { lanes } = this;
    if (!lanes) return null;
    return this.partingOf(...lanes);
  }

  /** Where two lanes of the run part for good; null while, or because, they don't. */
  partingOf(a, b) {
    const { run } = this.app;
    return [a, b].some((lane) => rewritable(run.lanes[lane])) ? null : this.differenceOf(a, b);
  }

  /** Where the texts of two lanes differ as they stand now; null where they don't. */
  differenceOf(a, b) {
    const { run } = this.app;
    return firstDifference(run.lanes[a].tokens, run.lanes[b].tokens, sameToken(run.about, a, b));
  }

  choose(side, uid) {
    const { run } = this.app;
    const uids = this.lanes.map((lane) => run.uids[lane]);
    const other = uids[1 - side];
    // Choosing the lane that stands on the other side swaps the two.
    if (uid === other) uids[1 - side] = uids[side];
    uids[side] = uid;
    this.chosen = uids;
    const { position } = this;
    if (position !== null) this.app.select(uid, position);
    this.app.redraw();
  }

  // --- what is said ------------------------------------------------------------------------

  name(lane) {
    const { run } = this.app;
    return this.app.laneName(run.uids[lane], run.about?.lanes[lane]);
  }

  /** What happened where the lanes part: tokens, probabilities, the die. */
  sentence() {
    const { app, lanes, position } = this;
    const parts = [el("b", {}, t("parting", { number: position + 1 }))];
    for (const lane of lanes) {
      const token = app.run.lanes[lane].tokens[position];
      const greedy = app.run.about?.lanes[lane].strategy === "greedy";
      const key = token.o === "forced" ? "parting_given" : token.u !== null ? "parting_drawn" : greedy ? "parting_greedy" : "parting_took";
      const logarithm = token.u === null ? token.rlp : token.lp;
      const values = { name: this.name(lane), u: token.u?.toFixed(2), p: probability(logarithm === null ? null : Math.exp(logarithm)) };
      const [before, after] = fill(TEXTS[key][language], { ...values, token: "\u0000" }).split("\u0000");
      parts.push(el("span", { style: `--lane:${app.colourOf(app.run.uids[lane])}` }, ` ${before}`, el("code.token-name", {}, token.n), after));
    }
    return parts;
  }

  /** Why they part, once the server has told. */
  reason(answer) {
    if (!answer) return [el("span.muted", {}, t("parting_looking"))];
    if (answer.error) return [el("span.muted", {}, said(answer.error.text))];
    if (answer.position === null) return [];
    const [a, b] = answer.sides;
    const notes = [];
    for (const side of answer.sides) {
      if (!side.removed_by) continue;
      const stage = said(this.app.stage(side.removed_by)?.label) || side.removed_by;
      notes.push(t("parting_removed", { name: this.name(side.lane), stage, token: `“${side.other}”` }));
    }
    const margin = a.margin === null || b.margin === null ? null : a.margin === b.margin ? t("parting_margin", { margin: a.margin }) : t("parting_margins", { a: a.margin, b: b.margin });
    if (margin) notes.push(margin);
    return [el("span.parting-cause", {}, said(answer.reason)), el("span.parting-notes", { title: t("parting_margin_help") }, ` ${notes.join(" ")}`)];
  }

  /** What their texts say of two lanes that don't part, or that may still come to be the same. */
  never() {
    const { run } = this.app;
    const [a, b] = this.lanes;
    const [first, second] = [run.lanes[a], run.lanes[b]];
    const count = Math.min(first.tokens.length, second.tokens.length);
    const values = { a: this.name(a), b: this.name(b), count };
    if (!count) return t("parting_waiting");
    const difference = this.differenceOf(a, b);
    const searching = [a, b].filter((lane) => rewritable(run.lanes[lane]));
    if (difference !== null) return t(searching.length > 1 ? "parting_unsettled_both" : "parting_unsettled", { ...values, number: difference + 1, searching: this.name(searching[0]) });
    if (first.finished && second.finished && first.tokens.length === second.tokens.length) return t("parting_never", values);
    const [short, long] = first.tokens.length < second.tokens.length ? [a, b] : [b, a];
    const begins = run.lanes[short].finished && run.lanes[short].tokens.length < run.lanes[long].tokens.length && !searching.length;
    return begins ? t("parting_beginning", { ...values, short: this.name(short), long: this.name(long) }) : t("parting_same_so_far", values);
  }

  draw() {
    const { app, lanes } = this;
    const { ref, run, replay } = app;
    ref.parted.hidden = !run || !(replay || run.lanes.some((lane) => lane.tokens.length));
    if (ref.parted.hidden) return;
    const { position } = this;
    this.drawTools(lanes, position);
    const shown = lanes && position !== null;
    const key = shown ? this.ask(lanes, position) : null;
    const answer = key && this.answers.get(key);
    const sentence = shown || !lanes ? null : replay && !this.chosen && !replay.ended ? said(replay.recording.line) : this.never();
    const verdict = this.verdict(lanes, position);
    const told = JSON.stringify([key, Boolean(answer), sentence, verdict, language, app.theme(), lanes?.map((lane) => [this.name(lane), app.colourOf(run.uids[lane])]), app.whole]);
    if (told !== this.told) {
      this.told = told;
      const head = verdict ? [el("b.parting-verdict", { "data-same": String(position === null) }, `${verdict} `)] : [];
      ref.parting.hidden = !lanes;
      ref.parting.classList.toggle("muted", !shown && !verdict);
      ref.parting.replaceChildren(...head, ...(shown ? this.sentence() : [sentence ?? ""]));
      ref.partingWhy.replaceChildren(...(shown ? this.reason(answer) : []));
    }
    this.mark(shown ? lanes : [], position);
  }

  drawTools(lanes, position) {
    const { app } = this;
    const { run } = app;
    this.pick.hidden = run.lanes.length < 3;
    const names = run.uids.map((uid, lane) => [uid, this.name(lane)]);
    this.selects.forEach((select, side) => {
      const wanted = JSON.stringify(names);
      if (select.dataset.names !== wanted) {
        select.dataset.names = wanted;
        select.replaceChildren(...names.map(([uid, name]) => el("option", { value: uid }, name)));
      }
      if (lanes && select.value !== run.uids[lanes[side]]) select.value = run.uids[lanes[side]];
      select.setAttribute("aria-label", t(side ? "parting_second" : "parting_first"));
    });
    this.both.hidden = !lanes;
    this.both.disabled = position === null;
    const lane = app.request.lanes.find((one) => one.uid === app.selection.uid) ?? app.request.lanes[0];
    const label = t("twice", { name: app.laneName(lane.uid) });
    if (this.again.textContent !== label) this.again.textContent = label;
    this.again.title = t("twice_help");
    this.again.disabled = !app.canStart;
    this.return.hidden = !this.isTwice;
    this.again.hidden = this.isTwice;
  }

  /** The mark ◆ in both strips. */
  mark(lanes, position) {
    const { app } = this;
    const nodes = lanes.map((lane) => app.lanes.card(app.run.uids[lane])?.strip.nodes[position]).filter(Boolean);
    for (const node of this.marks) if (!nodes.includes(node)) {
      node.classList.remove("parted");
      node.removeAttribute("title");
    }
    for (const node of nodes) {
      node.classList.add("parted");
      node.title = t("parting_mark", { a: this.name(lanes[0]), b: this.name(lanes[1]) });
    }
    this.marks = nodes;
  }

  /** Ask the server once for what the page can't work out itself; returns where the answer will be. */
  ask(lanes, position) {
    const { app } = this;
    const { run } = app;
    const key = [run.id, ...lanes, position].join("/");
    if (this.answers.has(key)) return key;
    this.answers.set(key, null);
    app.call("parting", run.id, ...lanes).then((answer) => {
      this.answers.set(key, answer);
      if (app.run === run) this.draw();
      // A server that didn't answer may do so later.
      if (answer.error?.code === "lost") setTimeout(() => this.answers.delete(key), 3000);
    });
    return key;
  }

  // --- both pipelines ----------------------------------------------------------------------

  /** Down in the focus area: both lanes' pipelines of the step at which they part. */
  showBoth() {
    const { app, position } = this;
    if (position === null) return;
    app.focus.tab = "pipeline";
    app.focus.pair.on = true;
    const uids = this.lanes.map((lane) => app.run.uids[lane]);
    app.select(uids.includes(app.selection.uid) ? app.selection.uid : uids[0], position);
    app.focus.root.scrollIntoView({ block: "start", behavior: calm() ? "auto" : "smooth" });
    app.focus.pair.button.focus({ preventScroll: true });
  }

  // --- run twice ---------------------------------------------------------------------------

  get isTwice() {
    return Boolean(this.before) && this.app.run?.id === this.before.twice;
  }

  /** Whether a lane that was run twice came out the same; nothing before both have ended, or have parted. */
  verdict(lanes, position) {
    if (!this.isTwice || !lanes) return null;
    if (position !== null) return t("twice_no");
    const [a, b] = lanes.map((lane) => this.app.run.lanes[lane]);
    return a.finished && b.finished && a.tokens.length === b.tokens.length && ![a, b].some((one) => ["cancelled", "error"].includes(one.finished.reason)) ? t("twice_yes") : null;
  }

  async twice() {
    const { app } = this;
    const lane = app.request.lanes.find((one) => one.uid === app.selection.uid) ?? app.request.lanes[0];
    const name = app.laneName(lane.uid).slice(0, 40);
    const shown = app.run?.id;
    const before = { request: clone(app.request), run: memory.read(sessionStorage, "run") };
    app.editor.close();
    app.setRequest({ ...app.request, lanes: [{ ...lane, uid: newUid(), name }, { ...lane, uid: newUid(), name: t("twice_again", { name }) }] });
    app.changed();
    await app.start(false);
    this.before = { ...before, twice: app.run?.id ?? null };
    if (!app.run || app.run.id === shown) return this.goBack();
    memory.write(sessionStorage, "before", this.before);
    return app.draw();
  }

  /** The lanes, and the run or recording, that the page showed before. */
  async goBack() {
    const { app } = this;
    const { request, run } = this.before;
    this.before = null;
    memory.write(sessionStorage, "before", null);
    app.setRequest(request);
    app.keep();
    if (run?.id.startsWith(RECORDED)) return app.chooseRecording(run.id.slice(RECORDED.length));
    memory.write(sessionStorage, "run", run);
    if (run) app.resume();
    else app.run = null;
    return app.changed();
  }
}

/** Whether what a lane has written can still be replaced: a beam search may take it back until it ends. */
const rewritable = (log) => log.beams.length > 0 && !log.finished;

/** Whether a token of lane `a` and one of lane `b` are the same: by id in one vocabulary, by what they write in two. */
function sameToken(about, a, b) {
  const oneVocabulary = about?.lanes[a].model === about?.lanes[b].model;
  return (one, other) => (oneVocabulary ? one.t === other.t : one.n === other.n);
}

/** The first position at which two lists of tokens differ; null where one is the beginning of the other. */
function firstDifference(first, second, same) {
  const length = Math.min(first.length, second.length);
  for (let position = 0; position < length; position++) if (!same(first[position], second[position])) return position;
  return null;
}

/** Two lanes' pipelines at the selected position, side by side. */
class Pair {
  constructor(app) {
    this.app = app;
    this.on = false;
    this.button = el("button.secondary.small", { type: "button", "data-t": "pair_on", "aria-pressed": "false", onclick: () => {
      this.on = !this.on;
      app.focus.draw();
    } });
    this.sides = [0, 1].map((side) => ({ head: el("p.where"), sentence: el("p.sentence"), plot: new PairPlot(app, side) }));
    this.root = el("div.pair-view", { hidden: true }, this.sides.map((side) => el("section.pair-side", {}, side.head, side.sentence, side.plot.root)));
  }

  get plots() {
    return this.sides.map((side) => side.plot);
  }

  /** Draw the titles; returns whether the two are shown. */
  draw() {
    const { app } = this;
    const { lanes } = app.parting;
    const on = this.on && Boolean(lanes);
    this.button.hidden = !lanes;
    this.button.setAttribute("aria-pressed", String(on));
    this.root.hidden = !on;
    if (!on) return false;
    const { position } = app.focused();
    this.sides.forEach(({ head, sentence, plot }, side) => {
      const lane = lanes[side];
      const uid = app.run.uids[lane];
      const token = app.run.lanes[lane].tokens[position];
      plot.root.parentNode.style.setProperty("--lane", app.colourOf(uid));
      head.replaceChildren(el("span.swatch", { "aria-hidden": "true" }), el("b", {}, app.parting.name(lane)), el("span.muted", {}, ` · ${t("token_number", { number: position + 1 })}`));
      sentence.replaceChildren(...(token ? stepSentence(app.parting.name(lane), token) : [t("pair_missing", { number: position + 1 })]));
    });
    return true;
  }
}

class PairPlot extends Plot {
  constructor(app, side) {
    super(app, "pipeline");
    this.side = side;
  }

  key() {
    const key = super.key();
    const lane = this.app.parting?.lanes?.[this.side];
    if (key === null || lane === undefined || key.position >= this.app.run.lanes[lane].tokens.length) return null;
    // Half a screen has no room for a column per stage: the first and the last stand for them.
    return { ...key, lane, narrow: this.root.clientWidth < 1000 };
  }
}

/** How a step was decided, in one sentence. */
function stepSentence(name, token) {
  const raw = probability(token.rlp === null ? null : Math.exp(token.rlp));
  const forced = token.o === "forced";
  const final = forced && token.lp === null ? t("removed") : probability(token.lp === null ? null : Math.exp(token.lp));
  const key = forced ? "sentence_forced" : token.searched ? "sentence_beam" : token.u === null ? "sentence_greedy" : "sentence_drawn";
  const values = { raw, final, u: token.u?.toFixed(3), low: token.iv?.[0].toFixed(3), high: token.iv?.[1].toFixed(3) };
  const [before, after] = fill(TEXTS[key][language], { ...values, token: "\u0000" }).split("\u0000");
  return [el("b", {}, name), ` ${before}`, el("code.token-name", {}, token.n), after];
}
