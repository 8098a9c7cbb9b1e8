// Below the lanes: a closer look at one step of one lane, at its loop, and at all lanes along time.

Object.assign(TEXTS, {
  extent: { en: "Figures and tables show", zh: "图表显示" },
  extent_help: { en: "Of the recording, figures and tables show", zh: "图表显示录制的哪一部分" },
  extent_played: { en: "what has played", zh: "已播放的部分" },
  extent_whole: { en: "the whole run", zh: "整个运行" },
});

class Focus {
  constructor(app, root) {
    this.app = app;
    this.root = root;
    this.tab = memory.read(sessionStorage, "tab", "pipeline");
    this.plots = {};
    this.beams = new BeamsPanel(app);
    this.speculation = new SpeculationPanel(app);
    this.remote = new RemoteSpeculation(app);
    this.remoteNotes = new RemoteNotes(app);
    this.panels = { pipeline: this.pipeline(), beams: this.beams.root, speculation: el("div", {}, this.speculation.root, this.remote.root), loop: this.loop(), latency: this.latency(), kv: this.figures("kv"), entropy: this.figures("entropy"), record: this.record() };
    this.tabs = el("div.tabs", { role: "tablist" });
    this.buttons = Object.keys(this.panels).map((name) => {
      const button = el("button.tab", { type: "button", role: "tab", id: `playground-tab-${name}`, "data-t": `tab_${name}`, "aria-controls": `playground-panel-${name}`, onclick: () => this.show(name) });
      button.addEventListener("keydown", (event) => {
        const open = this.buttons.filter((one) => !one.hidden);
        const [at, count] = [open.indexOf(button), open.length];
        const to = { ArrowRight: (at + 1) % count, ArrowLeft: (at - 1 + count) % count, Home: 0, End: count - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        open[to].focus();
        open[to].click();
      });
      return button;
    });
    this.tabs.append(...this.buttons);
    this.extents = [["extent_played", false], ["extent_whole", true]].map(([key, whole]) => el("button", { type: "button", "data-t": key, "data-whole": String(whole), onclick: () => app.showWhole(whole) }));
    this.extent = el("div.extent", { hidden: true }, el("span.extent-label", { "data-t": "extent" }), el("div.segmented", { role: "group", "data-t-label": "extent_help" }, this.extents));
    this.nothing = el("p.focus-empty", { "data-t": "focus_empty" });
    root.append(this.tabs, this.extent, this.nothing, this.remoteNotes.root);
    for (const [name, panel] of Object.entries(this.panels)) {
      Object.assign(panel, { id: `playground-panel-${name}` });
      panel.setAttribute("role", "tabpanel");
      panel.setAttribute("aria-labelledby", `playground-tab-${name}`);
      root.append(panel);
    }
    if (!(this.tab in this.panels)) this.tab = "pipeline";
    setInterval(() => this.light(), 80);
  }

  show(name) {
    this.tab = name;
    memory.write(sessionStorage, "tab", name);
    if (name === "record") this.recording.forget();
    this.draw();
  }

  /** Another run is shown: every panel begins anew when it is drawn next. */
  forget() {
    for (const panel of [this.beams, this.speculation, this.remote]) panel.shown = null;
    for (const plot of Object.values(this.plots).flat()) plot.age(null);
    this.loopKey = null;
    this.recording.forget();
    this.recordBody.replaceChildren();
  }

  /** Bring what is in view in line with the run and the selection. */
  draw() {
    const { app } = this;
    const started = Boolean(app.run?.lanes.some((lane) => lane.tokens.length));
    // Only a lane that searches beams has them, and only one that guesses has guesses; another lane shows its pipeline instead, until one that has is chosen again.
    const special = { beams: started && this.beams.relevant, speculation: started && (this.speculation.relevant || this.remote.relevant) };
    const tab = special[this.tab] === false ? "pipeline" : this.tab;
    this.nothing.hidden = started;
    this.tabs.hidden = !started;
    this.extent.hidden = !started || !app.replay;
    for (const button of this.extents) button.setAttribute("aria-pressed", String(button.dataset.whole === String(app.wholeRun)));
    for (const button of this.buttons) {
      const selected = button.id === `playground-tab-${tab}`;
      button.setAttribute("aria-selected", String(selected));
      const part = button.id.slice("playground-tab-".length);
      if (part in special) button.hidden = !special[part];
      button.tabIndex = selected ? 0 : -1;
    }
    for (const [name, panel] of Object.entries(this.panels)) panel.hidden = !started || name !== tab;
    this.remoteNotes.root.hidden = true;
    if (!started) return;
    if (this.remoteNotes.draw(tab)) {
      this.panels[tab].hidden = true;
      return;
    }
    if (tab === "pipeline") this.drawPipeline();
    if (tab === "beams") this.beams.draw();
    if (tab === "speculation") {
      const remote = this.remote.relevant;
      this.remote.root.hidden = !remote;
      this.speculation.root.hidden = remote;
      (remote ? this.remote : this.speculation).draw();
    }
    if (tab === "loop") this.drawLoop();
    if (tab === "record") this.recording.want(`${app.viewed}.${app.run.live}`);
    for (const part of this.gpu) part.hidden = !app.run.sampled;
    for (const plot of this.plots[tab] ?? []) plot.want();
  }

  figures(...names) {
    const key = names[0];
    this.plots[key] = names.map((name) => new Plot(this.app, name));
    return el("section.panel", {}, this.plots[key].map((plot, index) => [index ? el("h3.plot-title", { "data-t": `tab_${names[index]}` }) : null, plot.root]).flat().filter(Boolean));
  }

  latency() {
    const panel = this.figures("latency", "parts");
    const plot = new Plot(this.app, "gpu");
    this.plots.latency.push(plot);
    this.gpu = [el("h3.plot-title", { "data-t": "tab_gpu" }), el("div", {}, plot.root)];
    panel.append(...this.gpu);
    return panel;
  }

  // --- pipeline ----------------------------------------------------------------------------

  pipeline() {
    const { app } = this;
    this.picture = new PipelinePlot(app);
    this.pair = new Pair(app);
    this.plots.pipeline = [this.picture, ...this.pair.plots];
    this.where = el("span.where");
    this.back = el("button.quiet", { type: "button", "data-t-label": "previous_token", onclick: () => app.walk(-1) }, icon("left"));
    this.on = el("button.quiet", { type: "button", "data-t-label": "next_token", onclick: () => app.walk(1) }, icon("right"));
    this.newest = el("button.secondary.small", { type: "button", "data-t": "newest", onclick: () => app.select(app.selection.uid, null) });
    this.sentence = el("p.sentence");
    this.branches = new Branches(app);
    this.sent = new SentNote(app);
    this.lookBox = el("input", { type: "text", maxlength: "100", spellcheck: "false", autocomplete: "off", "data-t-placeholder": "look_up_placeholder", "data-t-label": "look_up" });
    this.found = el("p.look-up-found", { "aria-live": "polite" });
    const form = this.lookUpForm = el("form.look-up", { onsubmit: (event) => this.lookUp(event) },
      el("span.field-label", { "data-t": "look_up" }), this.lookBox, el("button.secondary", { type: "submit", "data-t": "look_up_button" }), this.found);
    return el("section.panel", {}, el("div.panel-head", {}, el("div.walker", {}, this.back, this.where, this.on, this.newest), this.pair.button),
      this.single = el("div.single-view", {}, this.sentence, this.branches.root, this.sent.root, this.picture.root, app.whatIf.root, form), this.pair.root);
  }

  drawPipeline() {
    const { app } = this;
    const { lane, uid, position: wanted } = app.focused();
    const { drawn } = this.picture;
    // Where the picture is in sight, what is said is of the step that it shows, not of one that is still on its way.
    const shown = this.picture.inView && drawn?.run === app.run.id && drawn.lane === lane && drawn.position <= wanted ? drawn : null;
    const position = app.selection.position === null && shown ? shown.position : wanted;
    const log = app.run.lanes[lane];
    const token = log?.tokens[position];
    const about = app.run.about?.lanes[lane];
    this.single.hidden = this.pair.draw();
    this.root.style.setProperty("--lane", app.colourOf(uid));
    this.newest.setAttribute("aria-pressed", String(app.selection.position === null));
    this.back.disabled = !token || position === 0;
    this.on.disabled = !token || position >= log.tokens.length - 1;
    this.where.replaceChildren(el("span.swatch", { "aria-hidden": "true" }), el("b", {}, app.laneName(uid, about)), el("span.muted", {}, token ? ` · ${t("token_number", { number: position + 1 })} ${t("of_tokens", { count: log.tokens.length })}` : ""));
    this.branches.draw(uid, token);
    this.sent.draw(uid);
    this.lookUpForm.hidden = Boolean(serverOf(app, uid));
    app.whatIf.root.classList.toggle("remote", Boolean(serverOf(app, uid)));
    if (!token) return this.sentence.replaceChildren();
    app.whatIf.draw();
    const name = app.laneName(uid, about);
    const answer = app.whatIf.current(uid);
    if (answer && answer.position === (shown ?? app.focused()).position) return this.sentence.replaceChildren(...app.whatIf.sentence(name, answer));
    const told = log.tokens[shown?.position ?? position];
    return this.sentence.replaceChildren(...(serverOf(app, uid) ? serverSentence(name, told) : stepSentence(name, told)));
  }

  async lookUp(event) {
    event.preventDefault();
    const { app } = this;
    const { lane, position } = app.focused();
    const text = this.lookBox.value;
    if (!text || !app.run) return;
    const found = await app.call("lookup", app.playhead, lane, position, text);
    this.found.classList.toggle("wrong", Boolean(found.error));
    if (found.error) {
      this.found.textContent = said(found.error.text);
      return;
    }
    const stage = app.stage(found.removed_by);
    const final = found.removed_by ? t("removed_by", { stage: said(stage?.label) || found.removed_by }) : t("look_up_final", { p: probability(found.final?.p), rank: (found.final?.rank ?? 0) + 1 });
    this.found.textContent = t("look_up_result", { text: `“${found.text}”`, id: found.id, raw: probability(found.raw.p), rank: found.raw.rank + 1, final });
  }

  // --- the loop ----------------------------------------------------------------------------

  loop() {
    this.code = el("ol.loop");
    this.loopHead = el("p.where");
    this.loopFoot = el("dl.loop-foot");
    this.slow = el("p.muted.slow");
    return el("section.panel", {}, this.loopHead, el("p.muted", { "data-t": "loop_help" }), this.code, this.loopFoot, this.slow);
  }

  drawLoop() {
    const { app } = this;
    const { lane, uid } = app.focused();
    const about = app.run.about?.lanes[lane];
    const log = app.seen.lanes[lane];
    if (!about) return;
    const strategy = app.declarations.strategies.find((one) => one.name === about.strategy);
    const key = `${app.run.id}.${lane}`;
    if (this.loopKey !== key) {
      this.loopKey = key;
      // A part that takes several lines has one time, which brackets them.
      this.lines = [];
      for (const [part, line] of strategy.loop) {
        let group = this.lines[this.lines.length - 1];
        if (group?.part !== part) {
          group = { part, code: el("span.loop-code"), ms: el("span.loop-ms"), bar: el("span.loop-bar"), share: el("span.loop-share") };
          group.node = el("li.loop-line", {}, group.code, group.ms, el("span.loop-track", { "aria-hidden": "true" }, group.bar), group.share);
          this.lines.push(group);
        }
        group.code.append(el("code", {}, line));
      }
      for (const { code } of this.lines) code.classList.toggle("bracket", code.children.length > 1);
      this.code.replaceChildren(...this.lines.map((line) => line.node));
    }
    this.root.style.setProperty("--lane", app.colourOf(uid));
    this.loopHead.replaceChildren(el("span.swatch", { "aria-hidden": "true" }), el("b", {}, app.laneName(uid, about)), el("span.muted", {}, ` · ${said(strategy.label)}`));
    const { parts, other, step, recording } = log.loopTimes(this.lines.map((line) => line.part));
    this.shares = [];
    if (step === null) return;
    const percent = (share) => `${(100 * share).toFixed(1)} %`;
    for (const line of this.lines) {
      const time = parts[line.part];
      this.shares.push(time.share);
      line.ms.textContent = milliseconds(time.median);
      line.share.textContent = percent(time.share);
      line.bar.style.setProperty("--p", String(time.share));
    }
    const facts = [[t("loop_step"), milliseconds(step)], [t("loop_other"), `${milliseconds(other.median)} · ${percent(other.share)}`], [t("loop_recording"), milliseconds(recording ?? 0)]];
    this.loopFoot.replaceChildren(...facts.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value))));
    this.slow.textContent = app.run.state.phase === "running" && !calm() ? t("loop_slow", { ms: milliseconds(step), seconds: "2 s" }) : "";
  }

  /** Light the line that a step is at, slowed down so that every line can be seen: shares keep their order, not their flicker. */
  light() {
    if (this.tab !== "loop" || !this.lines?.length || this.panels.loop.hidden) return;
    const running = this.app.run?.state.phase === "running" && !this.app.run.lanes[this.app.focused().lane]?.finished;
    let lit = -1;
    if (running && this.shares?.length) {
      // Every line is lit for at least a tenth of the two seconds.
      const weights = this.shares.map((share) => Math.max(share, 0.1));
      const sum = weights.reduce((a, b) => a + b, 0);
      let at = calm() ? -1 : ((performance.now() % 2000) / 2000) * sum;
      lit = calm() ? weights.indexOf(Math.max(...weights)) : weights.findIndex((weight) => (at -= weight) < 0);
    }
    this.lines.forEach((line, index) => line.node.classList.toggle("lit", index === lit));
  }

  // --- record ------------------------------------------------------------------------------

  record() {
    this.recordBody = el("div.record");
    this.copied = el("span.muted", { "aria-live": "polite" });
    this.recording = new Asking(() => this.loadRecord());
    return el("section.panel", {}, el("div.panel-head", {},
      el("button.secondary", { type: "button", "data-t": "copy", onclick: () => this.copy() }),
      el("button.secondary", { type: "button", "data-t": "download", onclick: () => this.download() }), this.copied), this.recordBody);
  }

  async loadRecord() {
    const { app } = this;
    if (!app.run?.about) return;
    const { run } = app;
    const answer = await app.call("record", app.viewed);
    if (app.run !== run) return;
    if (answer.error) this.recording.forget();
    this.markdown = answer.markdown ?? "";
    this.recordBody.replaceChildren(...(answer.error ? [el("p.error", {}, said(answer.error.text))] : markdownBlocks(this.markdown)));
  }

  async copy() {
    await copyText(this.markdown);
    this.copied.textContent = t("copied");
    setTimeout(() => { this.copied.textContent = ""; }, 2000);
  }

  async download() {
    const answer = await this.app.call("trace", this.app.run.id);
    if (answer.error) return this.app.complain(answer.error);
    const address = URL.createObjectURL(new Blob([answer.json], { type: "application/json" }));
    el("a", { href: address, download: `trace-${this.app.run.id.slice(0, 8)}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
}

/** The record's Markdown as DOM: tables as tables, everything else as paragraphs of plain text. */
function markdownBlocks(markdown) {
  const blocks = [];
  let rows = [];
  const flush = () => {
    if (rows.length) blocks.push(tableOf(rows));
    rows = [];
  };
  for (const line of markdown.split("\n")) {
    if (line.startsWith("|")) {
      const cells = (line.match(/(?:\\.|[^\\|])+/g) ?? []).map((cell) => plain(cell.trim()));
      if (!cells.every((cell) => /^:?-{2,}:?$/.test(cell))) rows.push(cells);
    } else {
      flush();
      if (line.trim()) blocks.push(el("p", {}, plain(line.trim())));
    }
  }
  flush();
  return blocks;
}

/** A cell's text as it was before it was made safe for its table. */
const plain = (cell) => cell.replace(/\\([\\|])|<br>/g, (all, sign) => sign ?? "\n");
