// The lanes side by side: each a card with its name, its effective stages, its tokens and its numbers.

/** The measures on a card, and the short names they have there; their full names are in the hint. */
const SHORT_MEASURES = {
  ttft: "measure_ttft", decode: "measure_decode", e2e: "measure_e2e", itl_p50: "measure_itl_p50", itl_p95: "measure_itl_p95", tokens_per_second: "measure_speed",
  tokens: "measure_tokens", kv_bytes: "measure_kv", peak_memory: "measure_peak",
};

/** Times of a whole lane. They have the digits from which tokens per second follow to the digits shown. */
const WHOLE_TIMES = ["ttft", "decode", "e2e"];

/** A formula with the measures that it names put in as they are shown; nothing as long as one of them is unknown. */
function workedOut(arithmetic, known) {
  const names = [...(arithmetic ?? "").matchAll(/\{(\w+)\}/g)].map(([, name]) => name);
  if (!names.length || names.some((name) => typeof known[name]?.value !== "number")) return null;
  return fill(arithmetic, Object.fromEntries(names.map((name) => [name, (WHOLE_TIMES.includes(name) ? wholeTime(known[name].value) : quantity(known[name].value, known[name].unit)).join(" ").trim().replace(/ tokens$/, "")])));
}

class Lanes {
  constructor(app, root) {
    this.app = app;
    this.root = root;
    this.tabs = el("div.lane-tabs", { role: "tablist" });
    this.grid = el("div.lane-grid");
    this.cards = new Map(); // uid → LaneCard
    this.shown = null; // on a narrow screen: the lane in front
    this.pinned = null; // and the one that stays for comparison
    root.append(this.tabs, this.grid);
  }

  /** Bring the cards in line with the request: new ones made, gone ones dropped, order kept. */
  draw() {
    const lanes = this.app.request.lanes;
    const uids = lanes.map((lane) => lane.uid);
    for (const [uid, card] of this.cards) {
      if (!uids.includes(uid)) {
        card.root.remove();
        this.cards.delete(uid);
      }
    }
    lanes.forEach((lane, index) => {
      let card = this.cards.get(lane.uid);
      if (!card) {
        card = new LaneCard(this.app, this, lane.uid);
        this.cards.set(lane.uid, card);
      }
      if (this.grid.children[index] !== card.root) this.grid.insertBefore(card.root, this.grid.children[index] ?? null);
      card.draw(lane, index);
    });
    if (!uids.includes(this.shown)) this.shown = uids[0];
    if (!uids.includes(this.pinned)) this.pinned = null;
    this.grid.dataset.count = lanes.length;
    this.drawTabs();
  }

  drawTabs() {
    const lanes = this.app.request.lanes;
    this.tabs.setAttribute("aria-label", t("lanes"));
    this.tabs.replaceChildren(...lanes.map((lane, index) => {
      const tab = el("button.lane-tab", { type: "button", role: "tab", "aria-selected": String(lane.uid === this.shown), style: `--lane:${this.app.palette()[index]}` },
        el("span.swatch", { "aria-hidden": "true" }), el("span", {}, lane.name || t("lane", { number: index + 1 })));
      tab.addEventListener("click", () => this.show(lane.uid));
      tab.addEventListener("keydown", (event) => {
        const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!move) return;
        const next = (index + move + lanes.length) % lanes.length;
        this.show(lanes[next].uid);
        this.tabs.children[next].focus();
      });
      return tab;
    }));
    for (const [uid, card] of this.cards) {
      card.root.classList.toggle("front", uid === this.shown);
      card.root.classList.toggle("pinned", uid === this.pinned && uid !== this.shown);
    }
  }

  show(uid) {
    this.shown = uid;
    this.drawTabs();
    this.app.select(uid, null);
  }

  pin(uid) {
    this.pinned = this.pinned === uid ? null : uid;
    this.draw();
  }

  card(uid) {
    return this.cards.get(uid);
  }
}

class LaneCard {
  constructor(app, lanes, uid) {
    this.app = app;
    this.lanes = lanes;
    this.uid = uid;
    this.strip = new Strip(app, uid);
    this.name = el("input.lane-name", { type: "text", maxlength: "60", spellcheck: "false", autocomplete: "off" });
    this.name.addEventListener("change", () => this.edit((lane) => { lane.name = this.name.value; }));
    this.name.addEventListener("keydown", (event) => event.key === "Enter" && this.name.blur());
    this.strategy = el("select.lane-strategy");
    this.strategy.addEventListener("change", () => this.edit((lane) => app.setStrategy(lane, this.strategy.value)));
    this.gear = el("button.quiet", { type: "button", onclick: () => app.editor.openLane(uid, this.gear) }, icon("gear"));
    this.more = el("button.quiet", { type: "button", "aria-haspopup": "menu", onclick: () => this.menu() }, icon("more"));
    this.chips = el("ul.chips");
    this.empty = el("p.strip-empty");
    this.note = el("p.lane-note", { hidden: true });
    this.numbers = el("dl.numbers");
    this.measures = new Map();
    this.root = el("article.lane", {},
      el("header.lane-head", {}, el("span.swatch", { "aria-hidden": "true" }), this.name, this.gear, this.more),
      el("div.lane-config", {}, this.strategy, this.chips),
      el("div.lane-text", {}, this.strip.box, this.empty),
      this.note,
      el("div.lane-foot", {}, this.numbers));
    this.root.addEventListener("pointerdown", () => app.selectLane(uid));
  }

  edit(change) {
    this.app.edit(this.uid, change);
  }

  draw(lane, index) {
    const { app } = this;
    const label = lane.name || t("lane", { number: index + 1 });
    this.root.style.setProperty("--lane", app.palette()[index]);
    this.root.setAttribute("aria-label", label);
    if (document.activeElement !== this.name) this.name.value = lane.name;
    this.name.setAttribute("aria-label", t("lane_name", { number: index + 1 }));
    this.name.setAttribute("placeholder", t("lane", { number: index + 1 }));
    this.strategy.replaceChildren(...app.declarations.strategies.map((strategy) => el("option", { value: strategy.name, selected: strategy.name === lane.strategy }, said(strategy.label))));
    this.strategy.setAttribute("aria-label", t("strategy"));
    for (const [button, key] of [[this.gear, "lane_settings"], [this.more, "lane_menu"]]) {
      button.setAttribute("aria-label", t(key, { name: label }));
      button.title = t(key, { name: label });
    }
    this.strip.box.setAttribute("aria-label", t("strip_label", { name: label }));
    this.drawChips(lane);
    for (const control of [this.name, this.strategy, this.gear, this.more, ...this.chips.querySelectorAll("button")]) control.disabled = !app.whole;
    this.drawRun();
  }

  drawChips(lane) {
    const known = this.app.effective.get(this.uid)?.stages ?? [];
    // Until the model is loaded only what was asked for is known, not what is inherited.
    const stages = known.length ? known : this.app.askedStages(lane);
    this.chips.replaceChildren(...stages.map((stage) => this.chip(lane, stage)));
    if (!stages.length) this.chips.append(el("li.chip.none", {}, t("no_stages")));
    if (lane.server) this.chips.prepend(serverChip(this.app, lane, this.uid));
    if (lane.branch) this.chips.append(branchChip(this.app, lane));
    const notes = (this.app.effective.get(this.uid)?.notes ?? []).map(said);
    this.configNotes = notes;
  }

  chip(lane, stage) {
    const declared = this.app.stage(stage.stage);
    const label = said(declared?.label) || stage.stage;
    const values = chipValues(declared, stage.knobs);
    const origin = stage.origin === "asked" ? null : t(`origin_${stage.origin}`);
    const open = el("button.chip-open", { type: "button", onclick: () => this.app.editor.openLane(this.uid, open, Object.keys(declared?.knobs ?? {})[0]) },
      label, values ? el("b", {}, ` ${values}`) : null, origin ? el("span.origin", {}, origin) : null, stage.idle ? el("span.origin", {}, t("idle")) : null);
    this.app.popover.explain(open, () => (stage.idle ? t("idle_help", { name: label }) : said(declared?.summary)), false);
    const off = el("button.chip-off", { type: "button", "aria-label": t("switch_off", { name: label }), title: t("switch_off", { name: label }),
      onclick: () => this.edit((edited) => this.app.switchOff(edited, stage)) }, icon("close"));
    return el("li", { class: `chip ${stage.origin}${stage.idle ? " idle" : ""}` }, open, off);
  }

  /** What the run says of this lane: tokens, numbers, why it ended. */
  drawRun() {
    const { app } = this;
    const { run } = app;
    const log = run?.lane(this.uid) ?? null;
    this.strip.grow();
    this.strip.box.hidden = !log || !log.tokens.length;
    this.empty.hidden = !this.strip.box.hidden;
    if (!this.empty.hidden) {
      const key = !run || !log ? "lane_empty" : !run.live ? "lane_empty" : run.state.phase === "running" ? (log.prompt || run.sharedPrompt ? "lane_waiting" : "lane_reading") : "lane_waiting";
      this.empty.textContent = t(key);
    }
    this.drawNumbers(log);
    const changed = run && (!log ? t("lane_new") : app.ranAs.get(this.uid) !== app.fingerprint(this.uid) ? t("lane_changed") : null);
    const refused = app.refused.get(this.uid)?.reverted ? null : app.refused.get(this.uid); // a value that went back is told of beside its field
    const text = [refused ? said(refused.text) : null, log?.finished?.message ? said(log.finished.message) : null, doubtNote(log), ...(this.configNotes ?? []), changed].filter(Boolean).join(" ");
    this.note.hidden = !text;
    this.note.textContent = text;
    this.note.classList.toggle("wrong", Boolean(refused || log?.finished?.reason === "error"));
  }

  drawNumbers(log) {
    const short = measuresOf(this.app, this.uid);
    this.known = log?.numbers ?? {};
    const entries = Object.entries(log?.numbers ?? {}).filter(([name, measure]) => typeof measure.value === "number" && name in short);
    for (const [name, measure] of entries) {
      let cell = this.measures.get(name);
      if (!cell) {
        cell = { term: el("dt"), value: el("b"), unit: el("span.unit"), measure };
        cell.group = el("div.measure", { tabindex: "0" }, cell.term, el("dd", {}, cell.value, " ", cell.unit));
        this.app.popover.explain(cell.group, () => measureHint(cell.measure, this.app.run, this.known));
        cell.group.style.order = 2 * Object.keys(short).indexOf(name);
        cell.reported = name.startsWith("server_");
        this.measures.set(name, cell);
        this.numbers.append(cell.group);
      }
      const [value, unit] = WHOLE_TIMES.includes(name) ? wholeTime(measure.value) : quantity(measure.value, measure.unit);
      cell.measure = measure;
      for (const [node, text] of [[cell.term, t(short[name])], [cell.value, value], [cell.unit, unit]]) {
        if (node.textContent !== text) node.textContent = text;
      }
    }
    const names = new Set(entries.map(([name]) => name));
    const told = [...names].some((name) => this.measures.get(name).reported);
    this.root.classList.toggle("on-server", short === SERVER_MEASURES);
    if (told && this.reported !== language) {
      this.reported = language;
      this.numbers.querySelector(".measures-reported")?.remove();
      this.numbers.append(reportedHead());
    } else if (!told && this.reported) {
      this.reported = null;
      this.numbers.querySelector(".measures-reported").remove();
    }
    for (const [name, cell] of this.measures) cell.group.hidden = !names.has(name);
  }

  /** Presets, duplicate, move, remove. */
  menu() {
    const { app } = this;
    const index = app.request.lanes.findIndex((lane) => lane.uid === this.uid);
    const act = (work) => () => {
      app.popover.hide();
      work();
    };
    const item = (key, drawing, work, enabled = true) => el("button.menu-item", { type: "button", role: "menuitem", disabled: !enabled, onclick: act(work) }, icon(drawing), t(key));
    const most = app.declarations.limits.lanes;
    const build = () => el("div.menu", { role: "menu" },
      item("duplicate", "copy", () => app.duplicate(this.uid), app.request.lanes.length < most),
      item("move_left", "left", () => app.move(this.uid, -1), index > 0),
      item("move_right", "right", () => app.move(this.uid, 1), index < app.request.lanes.length - 1),
      isNarrow() ? item(this.lanes.pinned === this.uid ? "unpin" : "pin", "pin", () => this.lanes.pin(this.uid)) : null,
      item("remove", "trash", () => app.remove(this.uid), app.request.lanes.length > 1),
      el("p.menu-title", {}, t("preset")),
      app.declarations.presets.map((preset) => el("button.menu-item", { type: "button", role: "menuitem", onclick: act(() => app.applyPreset(this.uid, preset)) }, said(preset.label))));
    app.popover.show(this.more, build, 0);
    setTimeout(() => app.popover.box.querySelector(".menu-item:not(:disabled)")?.focus(), 30);
  }
}

/** What of a stage's knobs a chip shows: the values that aren't at their off or default value. */
function chipValues(declared, knobs) {
  return Object.entries(knobs)
    .filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(declared?.knobs[name]?.off ?? declared?.knobs[name]?.default))
    .map(([name, value]) => (Array.isArray(value) ? `×${value.length}` : typeof value === "boolean" ? said(declared?.knobs[name]?.label) : String(value)))
    .join(", ");
}

/** What is known of a measure, its formula worked out with what stands beside it on the card. */
function measureHint(measure, run, known) {
  const how = TEXTS[`how_${measure.how}`] ? t(`how_${measure.how}`) : measure.how;
  const formula = [said(measure.formula), workedOut(measure.formula?.arithmetic, known)].filter(Boolean).join(" = ");
  const recorded = run?.recorded ? t("recorded_times", recordedFrom(run.about)) : null;
  return [el("p.hint", {}, el("b", {}, said(measure.label)), ` · ${how}`), ...[formula, recorded].filter(Boolean).map((text) => el("p.hint.muted", {}, text))];
}
