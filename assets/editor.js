// The drawer: the settings of one lane, made from the declarations, or those of the whole comparison.

class Editor {
  constructor(app, root) {
    this.app = app;
    this.title = el("h2.drawer-title");
    this.body = el("div.drawer-body");
    this.closer = el("button.quiet", { type: "button", onclick: () => this.close() }, icon("close"));
    this.panel = el("aside.drawer", { role: "dialog", "aria-modal": "false", hidden: true, tabindex: "-1" }, el("header.drawer-head", {}, this.title, this.closer), this.body);
    this.panel.addEventListener("keydown", (event) => {
      if (event.key !== "Escape") return;
      event.stopPropagation();
      this.close();
    });
    root.append(this.panel);
    this.stale = false; // whether a drawing waits until nobody types
    this.drawing = false;
    this.held = false; // whether a slider or a button is: a press ends on the node on which it began
    this.body.addEventListener("change", (event) => { event.target.drawn = event.target.value; }, true);
    this.body.addEventListener("pointerdown", (event) => { this.held = !event.target.closest("select"); }); // a list that opens may swallow the end of the press
    for (const name of ["pointerup", "pointercancel"]) window.addEventListener(name, () => this.held && setTimeout(() => this.release()));
    this.body.addEventListener("focusout", () => !this.drawing && setTimeout(() => this.stale && this.draw()));
    this.what = null; // {lane: uid} or {settings: true}
    this.opener = null;
    this.open_sections = new Set(["common"]);
  }

  openLane(uid, opener, knob = null) {
    this.app.selectLane(uid);
    this.open({ lane: uid }, opener);
    if (knob) this.body.querySelector(`[data-knob="${CSS.escape(knob)}"] input, [data-knob="${CSS.escape(knob)}"] select, [data-knob="${CSS.escape(knob)}"] textarea`)?.focus();
  }

  openSettings(opener) {
    this.open({ settings: true }, opener);
  }

  open(what, opener) {
    this.what = what;
    this.opener = opener;
    // Beside the lane that is being edited, not on top of it.
    const card = what.lane ? this.app.lanes.card(what.lane).root.getBoundingClientRect() : null;
    this.panel.classList.toggle("left", Boolean(card) && (card.left + card.right) / 2 > innerWidth / 2 && card.left > 430 && !isNarrow());
    this.panel.hidden = false;
    document.documentElement.classList.add("drawer-open");
    this.draw(true);
    this.body.scrollTop = 0;
    this.closer.focus({ preventScroll: true });
  }

  close() {
    if (!this.what) return;
    if (this.app.refused.get(this.what.lane)?.reverted) this.app.refused.delete(this.what.lane);
    this.what = null;
    this.stale = this.held = false;
    this.panel.hidden = true;
    document.documentElement.classList.remove("drawer-open");
    this.app.popover.hide();
    if (this.opener?.isConnected) this.opener.focus({ preventScroll: true });
  }

  /** What was held was let go. */
  release() {
    this.held = false;
    if (this.stale) this.draw();
  }

  /** The text field that has the focus, if one has. */
  get typedIn() {
    const node = document.activeElement;
    return this.body.contains(node) && node.matches("textarea, input:not([type=range], [type=checkbox], [type=radio])") ? node : null;
  }

  /** Draw anew, keeping the place: what had the focus has it again. A field belongs to who types: nothing is drawn under their hands. */
  draw(opening = false) {
    if (!this.what) return;
    const typed = opening ? null : this.typedIn;
    if (!opening && (this.held || (typed && typed.value !== typed.drawn))) {
      this.stale = true;
      return;
    }
    this.stale = false;
    const lane = this.what.lane ? this.app.request.lanes.find((one) => one.uid === this.what.lane) : null;
    if (this.what.lane && !lane) return this.close();
    const focused = document.activeElement?.closest?.("[data-focus]")?.dataset.focus;
    const scroll = this.body.scrollTop;
    this.closer.setAttribute("aria-label", t("close"));
    this.title.textContent = lane ? t("lane_settings", { name: lane.name || t("lane", { number: this.app.request.lanes.indexOf(lane) + 1 }) }) : t("settings");
    this.panel.setAttribute("aria-label", this.title.textContent);
    this.panel.style.setProperty("--lane", lane ? this.app.colourOf(lane.uid) : "var(--accent)");
    this.drawing = true;
    this.body.replaceChildren(...(lane ? this.lane(lane) : this.settings()).filter(Boolean));
    for (const node of this.body.querySelectorAll("input, textarea")) node.drawn = node.value;
    this.body.scrollTop = scroll;
    if (focused) this.focusAgain(this.body.querySelector(`[data-focus="${CSS.escape(focused)}"]`), typed);
    this.drawing = false;
  }

  /** What had the focus has it again; in a text field its text stays, and what holds is shown once the field is left. */
  focusAgain(node, typed) {
    if (typed && node && typed.value !== node.value) {
      node.value = node.drawn = typed.value;
      this.stale = true;
    }
    node?.focus({ preventScroll: true });
    if (typed && node && typed.selectionStart !== null) node.setSelectionRange(typed.selectionStart, typed.selectionEnd);
  }

  // --- one lane ----------------------------------------------------------------------------

  lane(lane) {
    const { app } = this;
    const { declarations } = app;
    const strategy = declarations.strategies.find((one) => one.name === lane.strategy);
    const edit = (change) => app.edit(lane.uid, change);
    const refused = app.refused.get(lane.uid);
    const shownAtKnob = refused && app.knobNamed(refused.values?.name);
    const common = declarations.stages.filter((stage) => stage.common);
    const rest = declarations.stages.filter((stage) => !stage.common);
    return [
      refused && !shownAtKnob ? el("p.error", { role: "alert" }, refusal(refused)) : null,
      this.field("lane-name", t("name"), null, el("input", { type: "text", maxlength: "60", value: lane.name, onchange: (event) => edit((one) => { one.name = event.target.value; }) })),
      ...serverFields(this, lane),
      this.field("lane-strategy", t("strategy"), said(strategy.summary), this.choice(declarations.strategies.map((one) => [one.name, said(one.label)]), lane.strategy,
        (value) => edit((one) => app.setStrategy(one, value)))),
      ...Object.entries(strategy.knobs).filter(([, knob]) => asksFor(strategy, lane, knob)).map(([name, knob]) => this.knob(lane, null, name, knob)),
      el("h3", {}, t("stages")),
      this.segmented("lane-defaults", t("defaults"), t("defaults_help"), [["off", t("defaults_off")], ["inherit", t("defaults_inherit")]], lane.defaults, (value) => edit((one) => { one.defaults = value; })),
      ...common.flatMap((stage) => this.stage(lane, stage)),
      this.section("more", t("more_stages"), () => rest.map((stage) => this.explainedStage(lane, stage))),
      this.section("order", t("order"), () => this.order(lane, edit)),
      el("h3", {}, t("limits")),
      this.field("lane-max", t("max_new_tokens"), t("max_new_tokens_help"), el("input.number", { type: "number", min: "1", max: String(declarations.limits.max_new_tokens), step: "1", value: String(lane.max_new_tokens),
        onchange: (event) => edit((one) => { one.max_new_tokens = asNumber(event.target.value); }) })),
      this.field("lane-stop", t("stop_strings"), t("stop_help"), el("textarea", { rows: "2", spellcheck: "false", value: lane.stop.map(escaped).join("\n"),
        onchange: (event) => edit((one) => { one.stop = event.target.value.split("\n").filter(Boolean).map(unescaped); }) })),
      lane.server ? null : this.field("lane-model", t("model"), null, this.choice([["", t("model_same")], ...this.modelChoices(lane.model)], lane.model ?? "", (value) => edit((one) => { one.model = value || null; }))),
    ];
  }

  /** A stage that fewer people know: what it does stands beside its knobs. */
  explainedStage(lane, stage) {
    const knobs = this.stage(lane, stage);
    const summary = el("p.stage-summary", {}, said(stage.summary));
    return el("div.stage", {}, knobs.length > 1 ? [el("b", {}, said(stage.label)), summary, ...knobs] : [...knobs, summary]);
  }

  stage(lane, stage) {
    return Object.entries(stage.knobs).map(([name, knob]) => this.knob(lane, stage, name, knob));
  }

  /** One knob: label with help, slider and number box (or what its kind needs), its message if it was refused. */
  knob(lane, stage, name, knob) {
    const { app } = this;
    const asked = name in lane.knobs;
    const running = stage ? app.effective.get(lane.uid)?.stages.find((one) => one.stage === stage.name) : null;
    const inherited = !asked && running && running.origin !== "asked" ? running.knobs[name] : undefined;
    const value = asked ? lane.knobs[name] : inherited ?? knob.off ?? knob.default;
    const label = said(knob.label);
    const set = (next) => app.edit(lane.uid, (one) => { one.knobs[name] = next; });
    const refused = app.refused.get(lane.uid);
    const message = refused?.values?.name === name ? refusal(refused) : null;
    const isOff = !asked && inherited === undefined;
    const status = asked
      ? el("button.reset", { type: "button", title: t("reset_knob", { name: label }), "aria-label": t("reset_knob", { name: label }), onclick: () => app.edit(lane.uid, (one) => { delete one.knobs[name]; }) }, "↺")
      : el("span.muted", {}, inherited !== undefined ? t(`origin_${running.origin}`) : knob.off !== null ? t("off") : "");
    const id = `knob-${name}`;
    const help = el("button.knob-label", { type: "button", tabindex: "0" }, label);
    app.popover.explain(help, () => [el("p.hint", {}, said(knob.help)), el("p.hint.muted", {}, t("range", { range: knob.range }))]);
    const idle = stage?.kind === "warper" && !app.declarations.strategies.find((one) => one.name === lane.strategy).warps;
    return el("div", { class: `knob${isOff ? " is-off" : ""}${idle ? " idle" : ""}${message ? " wrong" : ""}`, "data-knob": name },
      el("div.knob-head", {}, help, pageLink("a.knob-entry", "parameters", name, { "aria-label": t("entry_of", { name: label }), title: t("entry_of", { name: label }) }, "?"), idle ? el("span.tag", {}, t("idle")) : null, stageMark(app, lane, stage), status),
      el("div.knob-control", {}, this.control(id, label, knob, value, set)),
      name === "drafter" && app.declarations.drafters?.[value] ? el("span.field-help", {}, said(app.declarations.drafters[value].summary)) : null,
      message ? el("p.error", { role: "alert" }, message) : null);
  }

  control(id, label, knob, value, set) {
    const shared = { "aria-label": label };
    if (knob.kind === "bool") return el("input.switch", { ...shared, "data-focus": id, type: "checkbox", role: "switch", checked: Boolean(value), onchange: (event) => set(event.target.checked) });
    if (knob.kind === "choice") return this.choice(knob.choices.map((one) => [one, (id === "knob-drafter" && said(this.app.declarations.drafters?.[one]?.label)) || one.replaceAll("_", " ")]), value, set, { ...shared, "data-focus": id });
    if (knob.kind === "tokens" || knob.kind === "biases") {
      return el("textarea", { ...shared, "data-focus": id, rows: "2", spellcheck: "false", placeholder: knob.range, value: asLines(value), onchange: (event) => set(event.target.value) });
    }
    if (knob.kind === "text") {
      return el("textarea", { ...shared, "data-focus": id, rows: "2", spellcheck: "false", placeholder: knob.range, value: String(value ?? ""), onchange: (event) => set(event.target.value) });
    }
    const box = el("input.number", { ...shared, "data-focus": id, type: "text", inputmode: "decimal", autocomplete: "off", value: String(value), onchange: (event) => set(asNumber(event.target.value)) });
    if (!knob.slider) return [box];
    const [low, high] = knob.slider;
    const slider = el("input.slider", { ...shared, "data-focus": `${id}-slider`, type: "range", min: String(low), max: String(high), step: String(knob.step ?? (knob.kind === "int" ? 1 : (high - low) / 100)), value: String(value) });
    const paint = () => slider.style.setProperty("--at", `${(100 * (Number(slider.value) - low)) / (high - low)}%`);
    paint();
    slider.addEventListener("input", () => {
      box.value = slider.value;
      paint();
    });
    slider.addEventListener("change", () => set(Number(slider.value)));
    return [slider, box];
  }

  /** The stages that are on, in order, with buttons that move them; and the two well-known orders. */
  order(lane, edit) {
    const { app } = this;
    const on = (app.effective.get(lane.uid)?.stages ?? []).map((stage) => stage.stage);
    const swap = (at, by) => edit((one) => {
      const full = app.orderOf(one);
      const a = full.indexOf(on[at]);
      const b = full.indexOf(on[at + by]);
      [full[a], full[b]] = [full[b], full[a]];
      one.order = full;
    });
    return [
      this.segmented("lane-order", t("order"), t("order_help"), [["transformers", t("order_transformers")], ["vllm", t("order_vllm")]], lane.order, (value) => edit((one) => { one.order = value; })),
      typeof lane.order === "string" ? null : el("p.muted", {}, t("order_own")),
      on.length ? el("ol.order", {}, on.map((name, index) => {
        const label = said(app.stage(name)?.label) || name;
        return el("li", {}, el("span", {}, label),
          el("button.quiet", { type: "button", "data-focus": `up-${name}`, disabled: index === 0, "aria-label": t("earlier", { name: label }), onclick: () => swap(index, -1) }, icon("up")),
          el("button.quiet", { type: "button", "data-focus": `down-${name}`, disabled: index === on.length - 1, "aria-label": t("later", { name: label }), onclick: () => swap(index, 1) }, icon("down")));
      })) : el("p.muted", {}, t("order_empty")),
    ];
  }

  // --- the whole comparison ----------------------------------------------------------------

  settings() {
    const { app } = this;
    const { request, models, declarations } = app;
    const set = (change) => app.editRequest(change);
    return [
      el("h3", {}, t("models")),
      this.models(),
      declarations.public ? null : this.freeModel(),
      declarations.public || !models ? null : el("div.pair", {},
        this.field("device", t("device"), null, this.choice(models.devices.map((one) => [one, one]), models.device, (value) => app.setDevice(value, models.dtype))),
        this.field("dtype", t("dtype"), null, this.choice(models.dtypes.map((one) => [one, one]), models.dtype, (value) => app.setDevice(models.device, value)))),
      el("h3", {}, t("prompt")),
      this.field("system", t("system"), t("system_help"), el("textarea", { rows: "2", value: request.prompt.system ?? "", onchange: (event) => set((one) => { one.prompt.system = event.target.value || null; }) })),
      this.field("seed", t("seed"), t("seed_help"), el("input.number", { type: "text", inputmode: "numeric", value: String(request.seed), onchange: (event) => set((one) => { one.seed = asNumber(event.target.value); }) })),
      this.toggle("share", t("share_prompt"), t("share_prompt_help"), request.share_prompt, (value) => set((one) => { one.share_prompt = value; })),
      this.toggle("align", t("align"), t("align_help"), request.align, (value) => set((one) => { one.align = value; })),
      ...serversSection(app),
      el("button.secondary", { type: "button", onclick: () => app.reset() }, t("classic")),
      el("p.muted", {}, t("classic_help")),
      el("div.row.draft-pairs", {}, el("span", {}, t("draft_pairs")), Object.keys(declarations.pairs ?? {}).map((name) =>
        el("button.secondary.small", { type: "button", disabled: app.live, onclick: () => app.askPair(name) }, t(`draft_pair_${name}`)))),
    ];
  }

  models() {
    const { app } = this;
    const chosen = app.request.model ?? app.models?.default;
    const entries = [...(app.models?.entries ?? [])];
    if (chosen && !entries.some((entry) => entry.id === chosen)) entries.push({ id: chosen, name: chosen, note: null, languages: null, loaded: false, reachable: true });
    return el("div.models", { role: "radiogroup", "aria-label": t("model") }, entries.map((entry) => {
      const radio = el("input", { type: "radio", name: "playground-model", "data-focus": `model-${entry.id}`, checked: entry.id === chosen, onchange: () => app.chooseModel(entry.id) });
      const tags = [entry.loaded ? t("model_loaded") : null, entry.reachable === false ? t("model_unreachable") : null, entry.role && TEXTS[entry.role] ? t(entry.role) : null].filter(Boolean);
      return el("label", { class: `model${entry.reachable === false ? " unreachable" : ""}` }, radio,
        el("span.model-name", {}, entry.name, languagesOf(entry) ? el("span.muted", {}, ` · ${languagesOf(entry)}`) : null),
        entry.note ? el("span.model-note", {}, said(entry.note)) : null,
        el("span.model-tags", {}, tags.map((tag) => el("span.tag", {}, tag))));
    }));
  }

  freeModel() {
    const box = el("input", { type: "text", maxlength: "300", spellcheck: "false", autocomplete: "off", "data-focus": "free-model", placeholder: "org/name · /path/to/folder · file.gguf" });
    const use = () => box.value.trim() && this.app.chooseModel(box.value.trim());
    box.addEventListener("keydown", (event) => event.key === "Enter" && use());
    return el("div.field", {}, el("span.field-label", {}, t("model_other")), el("div.row", {}, labelled(box, t("model_other")), el("button.secondary", { type: "button", onclick: use }, t("model_use"))));
  }

  modelChoices(current) {
    const choices = (this.app.models?.entries ?? []).map((entry) => [entry.id, entry.name]);
    if (current && !choices.some(([id]) => id === current)) choices.push([current, current]);
    return choices;
  }

  // --- pieces ------------------------------------------------------------------------------

  field(id, label, help, control) {
    control.setAttribute("data-focus", id);
    return el("label.field", {}, el("span.field-label", {}, label), control, help ? el("span.field-help", {}, help) : null);
  }

  toggle(id, label, help, value, set) {
    return el("label.field.toggle", {}, el("input.switch", { type: "checkbox", role: "switch", "data-focus": id, checked: value, onchange: (event) => set(event.target.checked) }),
      el("span.field-label", {}, label), el("span.field-help", {}, help));
  }

  choice(choices, value, set, attributes = {}) {
    return el("select", { ...attributes, onchange: (event) => set(event.target.value) }, choices.map(([id, text]) => el("option", { value: id, selected: id === value }, text)));
  }

  segmented(id, label, help, choices, value, set) {
    return el("div.field", {}, el("span.field-label", {}, label),
      el("div.segmented", { role: "group", "aria-label": label }, choices.map(([one, text]) =>
        el("button", { type: "button", "data-focus": `${id}-${one}`, "aria-pressed": String(one === value), onclick: () => set(one) }, text))),
      help ? el("span.field-help", {}, help) : null);
  }

  section(id, title, build) {
    const details = el("details.section", { open: this.open_sections.has(id) }, el("summary", {}, title), ...build().filter(Boolean));
    details.addEventListener("toggle", () => (details.open ? this.open_sections.add(id) : this.open_sections.delete(id)));
    return details;
  }
}

/** Whether a knob means something beside the values that the lane's other knobs have. */
function asksFor(strategy, lane, knob) {
  if (!knob.only) return true;
  const [name, values] = knob.only;
  const other = strategy.knobs[name];
  return asksFor(strategy, lane, other) && values.includes(lane.knobs[name] ?? other.default);
}

/** What to say of a refused value: that the last good one stays, where there is one. */
const refusal = (error) => (error.reverted ? t("not_applied", { text: said(error.text) }) : said(error.text));

function labelled(node, label) {
  node.setAttribute("aria-label", label);
  return node;
}

/** A number if it is one; else the text as it stands, for the server to refuse with its own words. */
function asNumber(text) {
  const trimmed = text.trim().replace(",", ".");
  return trimmed !== "" && Number.isFinite(Number(trimmed)) ? Number(trimmed) : text;
}

const escaped = (text) => text.replaceAll("\\", "\\\\").replaceAll("\n", "\\n");
const unescaped = (text) => text.replace(/\\([\\n])/g, (_, sign) => (sign === "n" ? "\n" : "\\"));

/** Token sequences and biases as people type them: one entry per line. */
function asLines(value) {
  if (typeof value === "string") return value;
  const sequence = (entry) => (Array.isArray(entry) ? entry.map((id) => `#${id}`).join(" ") : String(entry));
  return (value ?? []).map((entry) => (Array.isArray(entry) && entry.length === 2 && (typeof entry[0] === "string" || Array.isArray(entry[0])) ? `${sequence(entry[0])}: ${entry[1]}` : sequence(entry))).join("\n");
}
