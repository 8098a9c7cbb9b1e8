// The page "Parameters", made from the declarations; and which page the address asks for.

Object.assign(TEXTS, {
  pages: { en: "Pages", zh: "页面" },
  page_compare: { en: "Compare", zh: "对比" },
  page_parameters: { en: "Parameters", zh: "参数" },
  parameters_lead: {
    en: "Every number that you can set between the model’s scores and the next token: what it does, and what it is called elsewhere.",
    zh: "从模型的分数到下一个词元之间，能够设置的每一个数：它做什么，在别处叫什么。",
  },
  parameters_loading: { en: "Collecting the parameters…", zh: "正在收集参数…" },
  parameters_find: { en: "Find a parameter", zh: "查找参数" },
  parameters_find_placeholder: { en: "name, word, library’s name…", zh: "名称、词语、库里的叫法…" },
  parameters_found: { en: "{count} of {total}", zh: "{count} / {total}" },
  parameters_none: { en: "No parameter has these words.", zh: "没有包含这些词的参数。" },
  parameters_print: { en: "Print", zh: "打印" },
  parameters_order: { en: "In the order of", zh: "顺序依照" },
  parameters_order_help: { en: "Each stage works on what the one before it left, so the order changes the result.", zh: "每个阶段处理前一个阶段的结果，因此顺序会改变结果。" },
  parameters_overview: { en: "All of them, in the order in which they run", zh: "全部参数，按执行顺序排列" },
  way: { en: "The way from logits to a token", zh: "从 logits 到词元的路" },
  way_logits: { en: "Logits", zh: "Logits" },
  way_logits_help: { en: "one score per token of the vocabulary", zh: "词表中每个词元一个分数" },
  way_processor: { en: "Processors", zh: "处理器" },
  way_processor_help: { en: "edit scores, mostly by what was said so far; also in greedy decoding", zh: "多按已有文本修改分数；贪心解码也适用" },
  way_warper: { en: "Warpers", zh: "整形器" },
  way_warper_help: { en: "reshape what is drawn from; idle where nothing is drawn", zh: "改变抽取所用的分布；不抽取时空闲" },
  way_probabilities: { en: "Probabilities", zh: "概率" },
  way_probabilities_help: { en: "softmax of the scores that are left", zh: "对剩下的分数做 softmax" },
  way_strategy: { en: "Choice", zh: "选择" },
  way_strategy_help: { en: "the strategy takes the likeliest, rolls a die, or keeps several texts", zh: "由策略决定：取最可能的、掷骰子，或保留多条文本" },
  group_processor: { en: "processor", zh: "处理器" },
  group_warper: { en: "warper", zh: "整形器" },
  group_strategy: { en: "strategy", zh: "策略" },
  groups_processor: { en: "Processors", zh: "处理器" },
  groups_warper: { en: "Warpers", zh: "整形器" },
  groups_strategy: { en: "Strategies", zh: "策略" },
  acts_on: { en: "Acts on", zh: "作用于" },
  acts_history: { en: "history", zh: "历史" },
  acts_logits: { en: "logits", zh: "logits" },
  acts_probabilities: { en: "probabilities", zh: "概率" },
  acts_choice: { en: "the choice", zh: "选择" },
  acts_history_help: { en: "reads the tokens so far, and edits scores by them", zh: "查看已有词元，并据此修改分数" },
  acts_logits_help: { en: "changes scores, whatever was said", zh: "直接改变分数，与已有文本无关" },
  acts_probabilities_help: { en: "looks at the probabilities to decide which tokens stay", zh: "根据概率决定保留哪些词元" },
  acts_choice_help: { en: "decides how tokens are taken from the distribution", zh: "决定如何从分布中取词元" },
  parameter: { en: "Parameter", zh: "参数" },
  part_of: { en: "of {name}", zh: "属于 {name}" },
  off_value: { en: "Off at", zh: "关闭值" },
  off_none: { en: "no off value", zh: "没有关闭值" },
  default_value: { en: "Default", zh: "默认值" },
  range_label: { en: "Range", zh: "范围" },
  range_whole: { en: "whole numbers {range}", zh: "整数 {range}" },
  range_tokens: { en: "a list of tokens: text or ids", zh: "词元列表：文本或编号" },
  range_biases: { en: "a list of tokens, each with a number in {range}", zh: "词元列表，每项附一个 {range} 内的数" },
  range_text: { en: "text", zh: "文本" },
  range_any: { en: "any number", zh: "任意数" },
  empty_text: { en: "empty", zh: "空" },
  empty_list: { en: "empty list", zh: "空列表" },
  larger: { en: "Larger", zh: "调大" },
  longer: { en: "Longer", zh: "加长" },
  switched_on: { en: "On", zh: "打开" },
  chosen_otherwise: { en: "Choices", zh: "选项" },
  alive: { en: "Tokens alive", zh: "存活词元" },
  alive_short: { en: "Larger → alive", zh: "调大 → 存活" },
  alive_fewer: { en: "fewer", zh: "更少" },
  alive_more: { en: "more", zh: "更多" },
  alive_unchanged: { en: "unchanged", zh: "不变" },
  alive_depends: { en: "depends", zh: "视情况" },
  cost: { en: "Cost", zh: "开销" },
  mistake: { en: "Common mistake", zh: "常见误区" },
  elsewhere: { en: "Elsewhere", zh: "在别处" },
  library: { en: "Library", zh: "库" },
  its_name: { en: "Name", zh: "名称" },
  difference: { en: "What differs", zh: "有何不同" },
  not_there: { en: "not there", zh: "没有" },
  drawn_before: { en: "without", zh: "未使用" },
  drawn_on: { en: "What it does to an example", zh: "它对一个例子的作用" },
  drawn_caption: { en: "Computed by the stage itself on a fixed example. Prompt “{prompt}”, output so far “{output}”. Grey: without it; H: entropy.", zh: "由该阶段本身在固定例子上算出。提示词“{prompt}”，已有输出“{output}”。灰色为未使用时；H 为熵。" },
  drawn_caption_start: { en: "Computed by the stage itself on a fixed example, at its first step. Prompt “{prompt}”. Grey: without it; H: entropy.", zh: "由该阶段本身在固定例子的第一步上算出。提示词“{prompt}”。灰色为未使用时；H 为熵。" },
  drawn_alive: { en: "{alive} alive", zh: "存活 {alive}" },
  drawn_entropy: { en: "H {entropy} nats", zh: "H {entropy} 奈特" },
  word: { en: "Word", zh: "词" },
  show_here: { en: "Show on this step", zh: "在当前步上查看" },
  show_here_help: { en: "Back to Compare, with {name} opened at the selected step", zh: "回到“对比”，在所选的步上打开{name}" },
  link_to: { en: "Link to {name}", zh: "{name} 的链接" },
  entry_of: { en: "{name} on the page Parameters", zh: "“参数”页上的 {name}" },
});

const PAGES = ["compare", "parameters", "servers"];
const GROUPS = ["processor", "warper", "strategy"];
const LIBRARY_NAMES = { transformers: "transformers", vllm: "vLLM", openai: "OpenAI" };
const ALIVE_SIGNS = { fewer: "↓", more: "↑", unchanged: "=", depends: "~" };

/** The address of a page, and of a knob's entry on it; what else the address says stays. */
function addressOf(page, knob = null) {
  const asked = new URLSearchParams(location.search);
  if (page === "compare") asked.delete("show");
  else asked.set("show", page);
  const query = asked.toString();
  return `${location.pathname}${query ? `?${query}` : ""}${knob ? `#${encodeURIComponent(knob)}` : ""}`;
}

/** A link to a page, or to a knob's entry: followed without loading anything anew. */
function pageLink(what, page, knob, attributes, ...children) {
  return el(what, { href: addressOf(page, knob), "data-page": page, "data-knob-entry": knob, ...attributes }, ...children);
}

class Parameters {
  constructor(app, root, nav) {
    this.app = app;
    this.root = root;
    this.nav = nav;
    this.declared = null; // what the server says, once somebody opened the page
    this.order = "transformers";
    this.find = "";
    app.root.addEventListener("click", (event) => this.follow(event));
    window.addEventListener("popstate", () => this.turn());
    this.turn();
  }

  get page() {
    const asked = new URLSearchParams(location.search).get("show");
    return PAGES.includes(asked) ? asked : "compare";
  }

  follow(event) {
    const link = event.target.closest?.("a[data-page]");
    if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    this.go(link.dataset.page, link.dataset.knobEntry ?? null);
  }

  go(page, knob = null) {
    const address = addressOf(page, knob);
    if (address !== location.pathname + location.search + location.hash) history.pushState(history.state, "", address);
    return this.turn();
  }

  /** Show the page that the address asks for, at the entry that it names. */
  async turn() {
    const open = this.page === "parameters";
    const turned = open === this.root.hidden;
    this.app.root.classList.toggle("at-parameters", open);
    this.root.hidden = !open;
    this.app.serversPage.turn(this.page === "servers");
    history.scrollRestoration = open ? "manual" : "auto"; // an entry is gone to by its name
    this.speak();
    this.app.popover.hide();
    if (!open) {
      if (turned) {
        scrollTo(0, 0);
        window.dispatchEvent(new Event("resize")); // what was drawn while it was hidden takes its size
      }
      return;
    }
    this.app.editor?.close();
    const first = !this.declared;
    await this.load();
    if (this.root.hidden || !this.declared) return;
    if (turned || first) this.draw();
    this.reveal(decodeURIComponent(location.hash.slice(1)), turned);
  }

  async load() {
    while (!this.declared && !this.root.hidden) {
      this.root.replaceChildren(el("p.parameters-wait", { role: "status" }, t("parameters_loading")));
      const answer = await this.app.call("parameters");
      if (!answer.error) this.declared = answer;
      else {
        this.root.replaceChildren(el("p.parameters-wait.error", { role: "alert" }, said(answer.error.text)));
        await new Promise((resolve) => setTimeout(resolve, 1500));
      }
    }
  }

  reveal(knob, turned) {
    const card = knob && this.root.querySelector(`[data-parameter="${CSS.escape(knob)}"]`);
    for (const node of this.root.querySelectorAll(".parameter.named")) node.classList.remove("named");
    if (card) {
      if (card.hidden) {
        this.find = this.finder.value = "";
        this.filter();
      }
      card.classList.add("named");
      card.scrollIntoView({ block: "start" });
      card.focus({ preventScroll: true });
    } else if (turned) {
      scrollTo(0, 0);
      this.title.focus({ preventScroll: true });
    }
  }

  /** The texts of the navigation and of the page, in the language now. */
  speak() {
    const { page } = this;
    this.nav.replaceChildren(...PAGES.map((one) => pageLink("a", one, null, { "aria-current": one === page ? "page" : null }, t(`page_${one}`))));
    document.title = page === "compare" ? t("title") : `${t(`page_${page}`)} · ${t("title")}`;
    if (this.declared && !this.root.hidden) this.draw();
  }

  // --- drawing -----------------------------------------------------------------------------

  draw() {
    const { order } = this;
    this.title = el("h2", { id: "playground-parameters-title", tabindex: "-1" }, t("page_parameters"));
    this.finder = el("input", { type: "search", value: this.find, placeholder: t("parameters_find_placeholder"), "aria-label": t("parameters_find"), autocomplete: "off", spellcheck: "false", oninput: () => {
      this.find = this.finder.value;
      this.filter();
    } });
    this.found = el("span.muted", { role: "status" });
    this.none = el("p.parameters-wait", { hidden: true }, t("parameters_none"));
    const orders = Object.keys(this.declared.orders).map((name) => el("button", { type: "button", "aria-pressed": String(name === order), onclick: () => {
      this.order = name;
      this.draw();
      this.root.querySelector(".parameters-tools [aria-pressed=true]").focus({ preventScroll: true });
    } }, LIBRARY_NAMES[name] ?? name));
    this.root.replaceChildren(
      el("header.parameters-head", {}, this.title, el("p", {}, t("parameters_lead"))),
      this.way(),
      el("div.parameters-tools", {},
        this.finder, this.found,
        el("div.parameters-order", { title: t("parameters_order_help") }, el("span.muted", {}, t("parameters_order")), el("div.segmented", { role: "group", "aria-label": t("parameters_order") }, orders)),
        el("button.secondary.small", { type: "button", onclick: () => window.print() }, t("parameters_print"))),
      this.overview(),
      ...GROUPS.flatMap((group) => {
        const entries = this.inOrder().filter((entry) => entry.group === group);
        return entries.length ? [el("section.parameter-group", {}, el("h2", {}, t(`groups_${group}`)), ...entries.map((entry) => this.card(entry)))] : [];
      }),
      this.none);
    this.filter();
  }

  /** The entries as they run: stages in the order that was chosen, then what the strategies have. */
  inOrder() {
    const at = this.declared.orders[this.order];
    const place = (entry) => (entry.group === "strategy" ? at.length : at.indexOf(entry.owners[0].name));
    const kind = (entry) => GROUPS.indexOf(entry.group);
    return [...this.declared.entries].sort((one, other) => kind(one) - kind(other) || place(one) - place(other));
  }

  way() {
    const stations = ["logits", "processor", "warper", "probabilities", "strategy"];
    return el("ol.way", { "aria-label": t("way") }, stations.map((one) => el("li", { class: `way-${one}` }, el("b", {}, t(`way_${one}`)), el("span", {}, t(`way_${one}_help`)))));
  }

  overview() {
    const { libraries } = this.declared;
    const heads = [["", t("parameter")], ["wide", t("acts_on")], ["wide", t("range_label")], ["", t("off_value")], ["", t("alive_short")], ...libraries.map((name) => ["wide", LIBRARY_NAMES[name]])];
    const row = (entry) => el("tr", { "data-row": entry.name, "data-group": entry.group },
      el("th", { scope: "row" }, pageLink("a", "parameters", entry.name, {}, said(entry.knob.label))),
      el("td.wide", {}, t(`acts_${entry.acts_on}`)),
      el("td.wide.number", {}, rangeOf(entry.knob, true)),
      el("td.number", {}, offOf(entry.knob, true)),
      el("td.alive", {}, entry.more ? aliveOf(entry.more.alive) : "—"),
      ...libraries.map((name) => {
        const there = entry.libraries.find((one) => one.library === name);
        return el("td.wide", {}, there.name ? el("code", {}, breakable(there.name)) : el("span.muted", { "aria-label": t("not_there") }, "—"));
      }));
    const entries = this.inOrder();
    return el("div.table-wrap.parameters-overview", {}, el("table", {},
      el("caption.sr-only", {}, t("parameters_overview")),
      el("thead", {}, el("tr", {}, heads.map(([wide, text]) => el("th", { scope: "col", class: wide }, text)))),
      GROUPS.map((group) => el("tbody", { "data-group": group }, entries.filter((entry) => entry.group === group).map(row)))));
  }

  card(entry) {
    const { knob, more } = entry;
    const label = said(knob.label);
    const whole = entry.owners.map((owner) => said(owner.label)).join(" · ");
    const id = `playground-parameter-${entry.name}`;
    const facts = [
      [t("off_value"), offOf(knob), "brief"],
      [t("default_value"), valueOf(knob, knob.default), "brief"],
      [t("range_label"), rangeOf(knob), "brief"],
      ...(more ? [
        [t({ tokens: "longer", biases: "larger", bool: "switched_on", choice: "chosen_otherwise" }[knob.kind] ?? "larger"), said(more.larger)],
        [t("alive"), [el("b.alive", {}, aliveOf(more.alive)), " ", said(more.why)]],
        [t("cost"), said(more.cost)],
      ] : []),
    ];
    return el("article.parameter", { "data-parameter": entry.name, "data-group": entry.group, tabindex: "-1", "aria-labelledby": id },
      el("header.parameter-head", {},
        el("h3", { id }, label),
        el("code.muted", {}, entry.name),
        el("span.tag", {}, t(`group_${entry.group}`)),
        el("span.tag", { title: t(`acts_${entry.acts_on}_help`) }, `${t("acts_on")} ${t(`acts_${entry.acts_on}`)}`),
        whole !== label ? el("span.muted", {}, t("part_of", { name: whole })) : null,
        el("span.parameter-tools", {},
          pageLink("a.quiet", "parameters", entry.name, { "aria-label": t("link_to", { name: label }), title: t("link_to", { name: label }) }, "#"),
          el("button.secondary.small", { type: "button", title: t("show_here_help", { name: label }), onclick: () => this.showOnStep(entry) }, t("show_here")))),
      el("div.parameter-body", {},
        el("div.parameter-words", {},
          el("p.parameter-help", {}, said(knob.help)),
          el("dl.facts", {}, facts.map(([name, value, kind]) => el("div", { class: kind }, el("dt", {}, name), el("dd", {}, value)))),
          more ? el("p.mistake", {}, el("b", {}, t("mistake")), " ", said(more.mistake)) : null),
        el("div.parameter-side", {},
          entry.drawings.length ? this.drawing(entry) : null,
          this.elsewhere(entry))));
  }

  elsewhere(entry) {
    return el("table.elsewhere", {},
      el("caption.sr-only", {}, t("elsewhere")),
      el("colgroup", {}, el("col.library"), el("col.name"), el("col")),
      el("thead", {}, el("tr.sr-only", {}, [t("library"), t("its_name"), t("difference")].map((text) => el("th", { scope: "col" }, text)))),
      el("tbody", {}, entry.libraries.map((one) => el("tr", {},
        el("th", { scope: "row" }, LIBRARY_NAMES[one.library] ?? one.library),
        el("td", {}, one.name ? el("code", {}, breakable(one.name)) : el("span.muted", {}, one.difference ? "—" : t("not_there"))),
        el("td", {}, said(one.difference))))));
  }

  /** The example before and after, word by word: a table of bars, so that it reads without eyes and prints. */
  drawing(entry) {
    const { example } = this.declared;
    const columns = [{ ...example.before, title: t("drawn_before") }, ...entry.drawings];
    const most = Math.max(...columns.flatMap((column) => column.p));
    const cell = (column, index) => {
      const p = column.p[index];
      const gone = p === 0;
      const before = example.before.p[index];
      return el("td", { class: gone ? "gone" : "" },
        el("span.mini", { style: `--p:${p / most};--before:${before / most}`, "aria-hidden": "true" }),
        el("span.mini-p", {}, gone ? "×" : p < 0.005 ? "<.01" : p.toFixed(2).replace(/^0/, "")));
    };
    return el("figure.drawing", {},
      el("table", {},
        el("caption.sr-only", {}, t("drawn_on")),
        el("thead", {}, el("tr", {}, el("th", { scope: "col" }, el("span.sr-only", {}, t("word"))), columns.map((column) => el("th", { scope: "col" }, el("b", {}, said(column.title)), el("span", {}, t("drawn_alive", column)), el("span", {}, t("drawn_entropy", { entropy: column.entropy.toFixed(2) })))))),
        el("tbody", {}, example.words.map((word, index) => el("tr", {}, el("th", { scope: "row" }, word), columns.map((column) => cell(column, index)))))),
      el("figcaption", {}, t(entry.more.at_start ? "drawn_caption_start" : "drawn_caption", example)));
  }

  /** Hide what doesn't have every word that was typed. */
  filter() {
    const words = this.find.toLowerCase().split(/\s+/).filter(Boolean);
    let count = 0;
    for (const entry of this.declared.entries) {
      const texts = [entry.name, said(entry.knob.label), said(entry.knob.help), ...entry.owners.flatMap((owner) => [said(owner.label), said(owner.summary)]), t(`group_${entry.group}`), t(`acts_${entry.acts_on}`),
        ...entry.libraries.flatMap((one) => [one.name, one.name && one.library])].join(" ").toLowerCase();
      const fits = words.every((word) => texts.includes(word));
      count += Number(fits);
      for (const node of this.root.querySelectorAll(`[data-parameter="${CSS.escape(entry.name)}"], [data-row="${CSS.escape(entry.name)}"]`)) node.hidden = !fits;
    }
    for (const group of this.root.querySelectorAll(".parameter-group")) group.hidden = !group.querySelector(".parameter:not([hidden])");
    this.root.querySelector(".parameters-overview").hidden = !count;
    this.none.hidden = Boolean(count);
    this.found.textContent = t("parameters_found", { count, total: this.declared.entries.length });
  }

  // --- back to the comparison --------------------------------------------------------------

  /** Back to Compare: the selected step under this knob, or, where it can't be re-decided, the lane's settings at it. */
  showOnStep(entry) {
    const { app } = this;
    if (!app.editor) return;
    this.go("compare");
    const uid = this.laneFor(entry);
    const now = app.run ? app.focused() : null;
    if (now && now.uid !== uid && app.run.uids.includes(uid)) app.select(uid, now.position);
    if (app.whatIf?.open?.(entry.name)) return;
    if (!app.declarations.stages.find((stage) => stage.name === entry.owners[0].name)?.common) app.editor.open_sections.add("more");
    app.editor.openLane(uid, null, entry.name);
    app.editor.body.querySelector(`[data-knob="${CSS.escape(entry.name)}"]`)?.scrollIntoView({ block: "center" });
  }

  /** The lane to show it on: the selected one if the knob can do something there, else the first where it can, else a new one. */
  laneFor(entry) {
    const { app } = this;
    const lanes = app.request.lanes;
    const selected = lanes.find((lane) => lane.uid === app.selection.uid) ?? lanes[0];
    const fits = (lane) => {
      if (entry.group === "strategy") return entry.owners.some((owner) => owner.name === lane.strategy);
      return entry.group === "processor" || app.declarations.strategies.find((one) => one.name === lane.strategy).warps;
    };
    const found = [selected, ...lanes].find(fits);
    if (found || entry.group !== "strategy" || lanes.length >= app.declarations.limits.lanes) return (found ?? selected).uid;
    app.insert({ strategy: entry.owners[0].name, name: said(entry.owners[0].label) }, lanes.length);
    return app.request.lanes.at(-1).uid;
  }
}

/** A long name that may break after its underscores. */
const breakable = (name) => name.split(/(?<=_)/).flatMap((part, index) => (index ? [el("wbr"), part] : [part]));

const aliveOf = (alive) => `${ALIVE_SIGNS[alive]} ${t(`alive_${alive}`)}`;

/** A knob's value in words. */
function valueOf(knob, value) {
  if (knob.kind === "bool") return t(value ? "on" : "off");
  if (Array.isArray(value)) return value.length ? asLines(value) : t("empty_list");
  return value === "" ? t("empty_text") : String(value);
}

function offOf(knob, short = false) {
  if (knob.off === null) return short ? "—" : t("off_none");
  return valueOf(knob, knob.off);
}

/** The range in words; the short form only where it is a list. */
function rangeOf(knob, short = false) {
  if (knob.kind === "bool") return `${t("off")} | ${t("on")}`;
  if (knob.kind === "choice") return knob.range;
  if (knob.kind === "text") return t("range_text");
  if (knob.kind === "tokens") return t("range_tokens");
  if (knob.kind === "biases") return t("range_biases", { range: `[${knob.low}, ${knob.high}]` });
  if (knob.low === null && knob.high === null) return t("range_any");
  const range = knob.range.replace(">=", "≥");
  return knob.kind === "int" && !short ? t("range_whole", { range }) : range;
}
