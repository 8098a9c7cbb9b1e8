// What if: knobs that decide the recorded steps again, with the same dice and no model.

Object.assign(TEXTS, {
  what_if: { en: "What if", zh: "如果……" },
  what_if_help: { en: "Move a knob: this step and every earlier one are decided again from the record, with the same dice. No model runs.", zh: "拖动任一参数：这一步及之前的每一步都会依据记录、用同样的骰子重新决定，不运行模型。" },
  what_if_early: { en: "The knobs work as soon as the server has started up.", zh: "服务器启动完成后即可使用这些参数。" },
  what_if_badge: { en: "What if · from the record", zh: "如果 · 依据记录" },
  what_if_estimated: { en: "A range (0.16–0.18) and a hatched end of a bar are what the record leaves open: it doesn't hold the score of every token, and each probability depends on all of them.", zh: "数值范围（0.16–0.18）与条形末端的斜线表示记录无法确定的部分：记录不含每个词元的分数，而每个概率都取决于全部词元。" },
  what_if_reset: { en: "Back to what was recorded", zh: "回到记录" },
  what_if_keep: { en: "Keep this as a lane", zh: "存为一条通道" },
  what_if_lane: { en: "{name}, what if", zh: "{name}（如果）" },
  what_if_kept: { en: "Added as a lane. Run to see where it goes.", zh: "已添加为通道。运行后可看到结果。" },
  what_if_more: { en: "More knobs of this lane", zh: "这条通道的其他参数" },
  what_if_choose: { en: "Chooses", zh: "选择方式" },
  what_if_argmax: { en: "the likeliest", zh: "取最可能" },
  what_if_die: { en: "by the die", zh: "掷骰子" },
  what_if_idle: { en: "Takes the likeliest token: temperature, top-k, top-p and min-p can't change which one that is.", zh: "取最可能的词元：温度、top-k、top-p 与 min-p 都不会改变结果。" },
  what_if_same: { en: "would still take {token}: {p} (recorded {was}).", zh: "仍会选 {token}：{p}（记录为 {was}）。" },
  what_if_flips: { en: "would take {token} ({p}) instead of {recorded}.", zh: "会选 {token}（{p}），而不是 {recorded}。" },
  what_if_flips_unrecorded: { en: "would take a token that wasn't recorded, instead of {recorded}.", zh: "会选一个没有记录的词元，而不是 {recorded}。" },
  what_if_flips_unsure: { en: "would take another token than {recorded}; the record leaves open which.", zh: "会选别的词元，而不是 {recorded}；记录无法确定是哪一个。" },
  what_if_flips_among: { en: "would take another token than {recorded}: {possible}, or another.", zh: "会选别的词元，而不是 {recorded}：可能是 {possible} 等。" },
  what_if_undecided: { en: "undecided here: needs the model. Recorded was {recorded}.", zh: "在这里无法决定：需要模型。记录为 {recorded}。" },
  what_if_needs_model: { en: "undecided here.", zh: "在这里无法决定。" },
  what_if_with_die: { en: "Same die: {u}.", zh: "同样的骰子：{u}。" },
  what_if_first: { en: "Token {number} would become {token}: the first that changes.", zh: "第 {number} 个词元会变成 {token}：这是第一个变化。" },
  what_if_first_unrecorded: { en: "Token {number} would become a token that wasn't recorded: the first that changes.", zh: "第 {number} 个词元会变成一个没有记录的词元：这是第一个变化。" },
  what_if_first_unsure: { en: "Token {number} would become another token; the record leaves open which. It is the first that changes.", zh: "第 {number} 个词元会变成别的词元（记录无法确定是哪一个）：这是第一个变化。" },
  what_if_beyond: { en: "From there on the model would have read another text; this picture takes the text before it as it was.", zh: "从那里起模型读到的会是另一段文本；这幅图仍按原来的文本绘制。" },
  what_if_none: { en: "No token changes: all {count} stay.", zh: "没有词元变化：{count} 个全部保持不变。" },
  what_if_none_sure: { en: "No token surely changes.", zh: "没有确定会变化的词元。" },
  what_if_so_far: { en: "Tokens 1 to {count} stay; looking further once the knob rests.", zh: "第 1 到 {count} 个词元保持不变；参数停下后会继续查看。" },
  what_if_open: { en: "Token {number} is undecided: needs the model.", zh: "第 {number} 个词元无法决定：需要模型。" },
  what_if_assuming: { en: "The rest holds only if it stays.", zh: "后面的结论以它不变为前提。" },
  what_if_go: { en: "Show token {number}", zh: "查看第 {number} 个词元" },
  what_if_mark: { en: "What if: would become {token}", zh: "如果：会变成 {token}" },
  what_if_mark_open: { en: "What if: undecided, needs the model", zh: "如果：无法决定，需要模型" },
});

/** The knobs that people move first, in the order in which their stages run. */
const WHAT_IF_KNOBS = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty"];

class WhatIf {
  constructor(app) {
    this.app = app;
    this.changed = new Map(); // "run/uid" → the knobs that were moved
    this.answer = null; // the newest, with the key that it answers
    this.error = null;
    this.thorough = false; // a knob rests: every step is worth its time
    this.built = null;
    this.marks = [];
    this.result = el("div.what-if-result", { "aria-live": "polite" });
    this.first = el("div.what-if-knobs");
    this.more = el("div.what-if-knobs");
    this.others = el("details.what-if-more", {}, el("summary", { "data-t": "what_if_more" }), this.more);
    this.note = el("p.what-if-note", { hidden: true });
    this.resetButton = el("button.secondary.small", { type: "button", "data-t": "what_if_reset", onclick: () => this.reset() });
    this.keepButton = el("button.secondary.small", { type: "button", onclick: () => this.keep() }, icon("plus"), el("span", { "data-t": "what_if_keep" }));
    this.root = el("section.what-if", { "data-t-label": "what_if" },
      el("header.what-if-head", {}, el("h3", { "data-t": "what_if" }), el("p.muted", { "data-t": "what_if_help" }), el("span.what-if-buttons", {}, this.resetButton, this.keepButton)),
      this.result, this.first, this.note, this.others);
  }

  slot(uid) {
    return `${this.app.run?.id}/${uid}`;
  }

  /** What was moved in a lane; null where nothing was. */
  changes(uid) {
    const changes = this.changed.get(this.slot(uid));
    return changes && Object.keys(changes).length ? changes : null;
  }

  set(name, value) {
    const { app } = this;
    const { uid, lane } = app.focused();
    const changes = { ...this.changes(uid) };
    if (JSON.stringify(value) === JSON.stringify(this.recorded(lane, name))) delete changes[name];
    else changes[name] = value;
    this.changed.set(this.slot(uid), changes);
    this.thorough = false;
    this.error = null;
    app.focus.draw();
  }

  /** Bring a knob of the selected lane into view, under the keyboard; false where it can't decide anything here. */
  open(name) {
    const { app } = this;
    if (!app.run?.about || app.focused().position === null) return false;
    app.focus.show("pipeline");
    this.draw();
    const control = this.root.querySelector(`[data-what-if="${CSS.escape(name)}"], [data-focus="what-if-${CSS.escape(name)}"]`);
    if (!control || control.disabled || control.closest(".idle")) return false;
    this.others.open ||= this.more.contains(control);
    control.closest(".knob").scrollIntoView({ block: "center" });
    control.focus({ preventScroll: true });
    return true;
  }

  reset() {
    const { uid } = this.app.focused();
    this.changed.delete(this.slot(uid));
    this.answer = this.error = this.built = null;
    this.app.focus.draw();
  }

  /** What a knob of a lane was when it ran. */
  recorded(lane, name) {
    const about = this.app.run.about.lanes[lane];
    if (name === "strategy") return about.strategy;
    for (const stage of about.stages) if (name in stage.knobs) return stage.knobs[name];
    const knob = this.app.declarations.stages.map((stage) => stage.knobs[name]).find(Boolean);
    return knob?.off ?? knob?.default;
  }

  /** The lane as it would be, added to the comparison. */
  keep() {
    const { app } = this;
    const { uid } = app.focused();
    const changes = this.changes(uid);
    const at = app.request.lanes.findIndex((lane) => lane.uid === uid);
    if (!changes || at < 0) return;
    const { uid: _, branch, ...lane } = clone(app.request.lanes[at]);
    const { strategy, ...knobs } = changes;
    lane.name = t("what_if_lane", { name: app.laneName(uid).slice(0, 40) });
    if (strategy) app.setStrategy(lane, strategy);
    Object.assign(lane.knobs, knobs);
    app.insert(lane, at + 1);
    app.announce(t("what_if_kept"));
  }

  // --- the knobs ---------------------------------------------------------------------------

  draw() {
    const { app } = this;
    const { lane, uid } = app.focused();
    const about = app.run.about?.lanes[lane];
    if (!about) return;
    const changes = this.changes(uid) ?? {};
    const follows = (app.declarations.choosers ?? ["greedy", "sample"]).includes(about.strategy);
    const greedy = (changes.strategy ?? about.strategy) === "greedy" || Number(changes.temperature) < 1e-5;
    const shape = JSON.stringify([this.slot(uid), language, app.whole, greedy, follows]);
    if (shape !== this.built) {
      this.built = shape;
      this.build(lane, about, changes, greedy, follows);
    }
    this.resetButton.disabled = !this.changes(uid);
    this.keepButton.disabled = !this.changes(uid) || !app.whole || app.request.lanes.length >= app.declarations.limits.lanes;
    const note = !app.whole ? t("what_if_early") : this.error ? said(this.error.text) : greedy && follows ? t("what_if_idle") : "";
    this.note.hidden = !note;
    this.note.textContent = note;
    this.note.classList.toggle("wrong", Boolean(this.error));
    this.tell();
    this.mark(uid);
  }

  build(lane, about, changes, greedy, follows) {
    const { app } = this;
    const declared = (name) => app.declarations.stages.find((stage) => name in stage.knobs);
    const focused = document.activeElement?.dataset?.whatIf;
    const knobs = (stage, names) => names.map((name) => this.knob(lane, stage, name, greedy && stage.kind === "warper"));
    const common = WHAT_IF_KNOBS.flatMap((name) => (declared(name) ? knobs(declared(name), [name]) : []));
    const others = about.stages.map((one) => app.stage(one.stage)).filter((stage) => stage && (app.declarations.followed ?? []).includes(stage.name))
      .flatMap((stage) => knobs(stage, Object.keys(stage.knobs).filter((name) => !WHAT_IF_KNOBS.includes(name))));
    this.first.replaceChildren(this.choice(about, changes), ...common);
    this.more.replaceChildren(...others);
    this.others.hidden = !others.length;
    for (const control of this.root.querySelectorAll(".what-if-knobs :is(input, select, textarea, button)")) control.disabled = !app.whole || !follows;
    if (focused) this.root.querySelector(`[data-what-if="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  /** By the die, or always the likeliest. */
  choice(about, changes) {
    const now = changes.strategy ?? about.strategy;
    return el("div.knob", {}, el("div.knob-head", {}, el("span.field-label", {}, t("what_if_choose"))),
      el("div.segmented", { role: "group", "aria-label": t("what_if_choose") }, [["greedy", "what_if_argmax"], ["sample", "what_if_die"]].map(([value, key]) =>
        el("button", { type: "button", "data-what-if": `choose-${value}`, "aria-pressed": String(now === value), onclick: () => {
          this.built = null;
          this.set("strategy", value);
        } }, t(key)))));
  }

  knob(lane, stage, name, idle) {
    const { app } = this;
    const knob = stage.knobs[name];
    const { uid } = app.focused();
    const value = this.changes(uid)?.[name] ?? this.recorded(lane, name);
    const label = said(knob.label);
    const help = el("button.knob-label", { type: "button" }, label);
    app.popover.explain(help, () => [el("p.hint", {}, said(knob.help)), el("p.hint.muted", {}, t("range", { range: knob.range }))]);
    const controls = knob.slider ? this.slider(name, label, knob, value) : app.editor.control(`what-if-${name}`, label, knob, value, (next) => this.set(name, next));
    return el("div", { class: `knob${idle ? " idle" : ""}` }, el("div.knob-head", {}, help, idle ? el("span.tag", {}, t("idle")) : null), el("div.knob-control", {}, controls));
  }

  /** A slider that decides while it moves, and a box that takes any value. */
  slider(name, label, knob, value) {
    const [low, high] = knob.slider;
    const box = el("input.number", { type: "text", inputmode: "decimal", autocomplete: "off", "aria-label": label, "data-what-if": `${name}-box`, value: String(value) });
    const slider = el("input.slider", { type: "range", "aria-label": label, "data-what-if": name, min: String(low), max: String(high), step: String(knob.step ?? (knob.kind === "int" ? 1 : (high - low) / 100)), value: String(value) });
    const paint = () => slider.style.setProperty("--at", `${(100 * (Number(slider.value) - low)) / (high - low)}%`);
    paint();
    slider.addEventListener("input", () => {
      box.value = slider.value;
      paint();
      this.set(name, Number(slider.value));
    });
    box.addEventListener("change", () => {
      slider.value = box.value;
      paint();
      this.set(name, asNumber(box.value));
    });
    return [slider, box];
  }

  // --- the answer --------------------------------------------------------------------------

  /** The newest answer; a lane that took long is looked at to its end once the knob rests. */
  heard(key, answer) {
    this.error = answer.error ?? null;
    this.answer = answer.error ? null : { key, ...answer };
    clearTimeout(this.rest);
    if (answer.cut && !key.thorough) {
      this.rest = setTimeout(() => {
        this.thorough = true;
        this.app.focus.draw();
      }, 250);
    }
  }

  /** The answer for a lane, if it is about what is moved there now. */
  current(uid) {
    const changes = this.changes(uid);
    return changes && this.answer?.key.slot === this.slot(uid) ? this.answer : null;
  }

  /** What the step in the picture would become, as the sentence above it. */
  sentence(name, answer) {
    const { step } = answer;
    const badge = [el("span.what-if-badge", {}, t("what_if_badge")), " ", el("b", {}, name), " "];
    if (!step) return [...badge, said(answer.why)];
    const p = step.p === null ? "–" : [...new Set(step.p.map(probability))].join("–");
    const key = step.verdict === "flips_unsure" && step.possible.length ? "what_if_flips_among" : `what_if_${step.verdict}`;
    const parts = fill(TEXTS[key][language], { p, was: probability(step.recorded_p) }).split(/(\{\w+\})/);
    const code = (text) => el("code.token-name", {}, text);
    const filled = parts.map((part) => ({ "{token}": () => code(step.token ?? ""), "{recorded}": () => code(step.recorded), "{possible}": () => el("span", {}, step.possible.flatMap((one, index) => [index ? ", " : "", code(one)])) })[part]?.() ?? part);
    const die = step.u === null || step.verdict === "needs_model" ? [] : [` ${t("what_if_with_die", { u: step.u.toFixed(3) })}`];
    return [...badge, ...filled, ...die, ...(step.reason ? [` ${said(step.reason)}`] : [])];
  }

  /** What happens to the lane's text. */
  tell() {
    const { uid } = this.app.focused();
    const answer = this.current(uid);
    const here = this.app.run.lane(uid)?.tokens.length ?? 0; // a recording knows more tokens than it has played
    const told = answer ? JSON.stringify([here > (answer.flip?.position ?? 0), here > (answer.undecided?.position ?? 0), answer.flip, answer.undecided, answer.seen, answer.cut, answer.position, answer.estimated, language]) : "";
    this.result.hidden = !answer || Boolean(answer.why);
    if (this.told === told) return;
    this.told = told;
    if (this.result.hidden) return this.result.replaceChildren();
    const { flip, undecided } = answer;
    const lines = [];
    const go = (position) => (position === answer.position || position >= here ? [] : [" ", el("button.link", { type: "button", onclick: () => this.show(uid, position) }, t("what_if_go", { number: position + 1 }))]);
    if (undecided && undecided.verdict === "undecided") lines.push(el("p", {}, t("what_if_open", { number: undecided.position + 1 }), ` ${t("what_if_assuming")}`, ...go(undecided.position)));
    if (flip) {
      const key = { flips_unrecorded: "what_if_first_unrecorded", flips_unsure: "what_if_first_unsure" }[flip.verdict] ?? "what_if_first";
      const [before, after] = t(key, { number: flip.position + 1, token: "\u0000" }).split("\u0000");
      lines.push(el("p", {}, el("b", {}, before, ...(after === undefined ? [] : [el("code.token-name", {}, flip.token ?? ""), after])), flip.position < answer.position ? ` ${t("what_if_beyond")}` : "", ...go(flip.position)));
    } else if (undecided?.verdict === "needs_model") lines.push(el("p", {}, said(undecided.reason)));
    else if (answer.cut) lines.push(el("p", {}, t("what_if_so_far", { count: answer.seen })));
    else lines.push(el("p", {}, undecided ? t("what_if_none_sure") : t("what_if_none", { count: answer.count })));
    if (answer.estimated) lines.push(el("p.muted", {}, t("what_if_estimated")));
    return this.result.replaceChildren(...lines);
  }

  show(uid, position) {
    this.app.select(uid, position);
    const { strip } = this.app.lanes.card(uid);
    if (strip.nodes[position]) strip.reveal(strip.nodes[position]);
  }

  /** The first token that would flip, and the first that is open, in the strip. */
  mark(uid) {
    const answer = this.current(uid);
    const nodes = this.app.lanes.card(uid)?.strip.nodes ?? [];
    const wanted = [];
    if (answer?.flip) wanted.push([nodes[answer.flip.position], "flip", answer.flip.token ?? "?"]);
    if (answer?.undecided?.verdict === "undecided") wanted.push([nodes[answer.undecided.position], "open", "?"]);
    for (const [node, kind] of this.marks) if (!wanted.some(([one, other]) => one === node && other === kind)) {
      delete node.dataset[kind];
      node.removeAttribute("aria-description");
    }
    this.marks = wanted.filter(([node]) => node);
    for (const [node, kind, text] of this.marks) {
      if (node.dataset[kind] === text) continue;
      node.dataset[kind] = text;
      node.setAttribute("aria-description", kind === "flip" ? t("what_if_mark", { token: text }) : t("what_if_mark_open"));
    }
  }
}

/** The pipeline of the step in focus: as it was recorded, or as it would be. */
class PipelinePlot extends Plot {
  constructor(app) {
    super(app, "pipeline");
    this.drawn = null; // the key of the picture that stands there
  }

  key() {
    const key = super.key();
    if (key === null) return null;
    const { uid } = this.app.focused();
    const changes = this.app.whatIf.changes(uid);
    return changes ? { ...key, ...this.moment(), slot: this.app.whatIf.slot(uid), changes, thorough: this.app.whatIf.thorough } : key;
  }

  /** The lane's marks depend on the answer, whether the picture is in sight or not. */
  get wanted() {
    return this.inView || Boolean(this.app.run && this.app.whatIf.changes(this.app.focused().uid));
  }

  pause() {
    return this.key()?.changes && !this.app.moving ? 0 : super.pause();
  }

  async ask(key) {
    if (!key.changes) return super.ask(key);
    const answer = await this.app.call("what_if", key.view, key.lane, key.position, key.changes, { theme: key.theme, language: key.language, narrow: key.narrow, moving: !key.thorough });
    this.app.whatIf.heard(key, answer);
    // Where the record can't draw the step under these knobs, it still shows what was.
    return answer.figure ? answer : super.ask(key);
  }

  told(key) {
    this.drawn = key;
    if (this.app.run) this.app.focus.drawPipeline();
  }
}
