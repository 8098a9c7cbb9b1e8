// The guided experiment: the same prompts at the same loads on two servers, with and without speculation, in turns.

Object.assign(TEXTS, {
  load_title: { en: "Baseline against speculative", zh: "基线与推测对比" },
  load_help: { en: "The same prompts at the same loads on two servers, in turns; warm-up left out, every prompt behind a line of its own so that no cached prefix helps. One server twice: it is measured, you restart it with speculation, it is measured again.", zh: "同样的提示词、同样的负载，在两台服务器上交替测量；预热不计入，每条提示词前加一行不同的前缀，避免缓存命中。若两次选同一台服务器：先测量，由您以推测解码重启，再测量。" },
  load_commands: { en: "How to start the two servers", zh: "如何启动两台服务器" },
  load_commands_model: { en: "Model", zh: "模型" },
  load_commands_draft: { en: "Draft model", zh: "草稿模型" },
  load_commands_k: { en: "Guesses per step (k)", zh: "每步猜测数（k）" },
  load_need_servers: { en: "Connect a server first: it can be chosen here then.", zh: "请先连接服务器，然后即可在此选择。" },
  load_baseline: { en: "Baseline", zh: "基线" },
  load_speculative: { en: "Speculative", zh: "推测" },
  load_choose: { en: "choose…", zh: "选择…" },
  load_prompts: { en: "Prompts", zh: "提示词" },
  load_prompts_shipped: { en: "shipped set, {count}", zh: "自带，{count} 条" },
  load_prompts_own: { en: "own JSONL file", zh: "自己的 JSONL 文件" },
  load_prompts_help: { en: "One JSON object per line with “prompt” or “messages”.", zh: "每行一个 JSON 对象，含 “prompt” 或 “messages”。" },
  load_concurrency: { en: "Streams at once", zh: "并发数" },
  load_concurrency_help: { en: "a list, as 1, 2, 4, 8", zh: "列表，如 1, 2, 4, 8" },
  load_repeats: { en: "Repeats", zh: "重复次数" },
  load_requests: { en: "Requests per load", zh: "每个负载的请求数" },
  load_requests_help: { en: "empty: every prompt once", zh: "留空：每条提示词一次" },
  load_tokens: { en: "Most new tokens", zh: "新词元上限" },
  load_slo_ttft: { en: "SLO: TTFT at most, ms", zh: "SLO：TTFT 上限，毫秒" },
  load_slo_tpot: { en: "SLO: TPOT at most, ms", zh: "SLO：TPOT 上限，毫秒" },
  load_slo_help: { en: "for goodput; optional", zh: "用于有效吞吐；可选" },
  load_more: { en: "More", zh: "更多" },
  load_rates: { en: "Or requests per second", zh: "或每秒请求数" },
  load_rates_help: { en: "open loop: sent at random times, answered or not", zh: "开环：按随机时刻发送，不等待回复" },
  load_ignore_eos: { en: "Write on to the limit (ignore_eos)", zh: "一直写到上限（ignore_eos）" },
  load_ignore_eos_help: { en: "equal lengths on both sides", zh: "两侧长度一致" },
  load_unique: { en: "A line of its own before every prompt", zh: "每条提示词前加不同的一行" },
  load_unique_help: { en: "so that prefix caching doesn’t fake the TTFT", zh: "避免前缀缓存使首词元时间失真" },
  load_config: { en: "--speculative-config of the speculative server", zh: "推测服务器的 --speculative-config" },
  load_config_help: { en: "optional: the answer then holds your method and model", zh: "可选：给出后，答案会包含您的 method 与 model" },
  load_start: { en: "Measure", zh: "开始测量" },
  load_stop: { en: "Stop", zh: "停止" },
  load_open: { en: "Open a saved result…", zh: "打开已保存的结果…" },
  load_starting: { en: "Asking both servers what they can do…", zh: "正在询问两台服务器的能力……" },
  load_now: { en: "{side}, {level}, repeat {repeat}: {done} of {of} requests", zh: "{side}，{level}，第 {repeat} 次重复：{done} / {of} 个请求" },
  load_so_far: { en: "here so far: TTFT {ttft}, TPOT {tpot} (medians of {requests})", zh: "本单元至今：TTFT {ttft}，TPOT {tpot}（{requests} 个请求的中位数）" },
  load_sample: { en: "/metrics: {running} running, {waiting} waiting, KV cache {kv}", zh: "/metrics：运行 {running}，等待 {waiting}，KV 缓存 {kv}" },
  load_restart: { en: "The baseline is measured. Restart {server} with --speculative-config now, then go on.", zh: "基线已测完。请现在以 --speculative-config 重启 {server}，然后继续。" },
  load_restart_confirm: { en: "Restart {server} with this setting now, then go on. Only this server is measured again; the baseline is the one measured before.", zh: "请现在以此设置重启 {server}，然后继续。仅重新测量这台服务器；基线沿用之前的结果。" },
  load_confirm: { en: "Confirm it with a run", zh: "再测一次验证" },
  load_confirms_back: { en: "The result that this confirms", zh: "查看被验证的结果" },
  load_confirms: { en: "Expected and measured", zh: "预期与实测" },
  load_restarted: { en: "It is restarted: go on", zh: "已重启：继续" },
  load_failed: { en: "The experiment ended: {text}", zh: "实验已结束：{text}" },
  load_live: { en: "{figure}, so far", zh: "{figure}（至今）" },
  load_cells: { en: "Measured so far", zh: "已测量" },
  load_level: { en: "load", zh: "负载" },
  load_side: { en: "server", zh: "服务器" },
  load_repeat: { en: "repeat", zh: "重复" },
  load_answered: { en: "answered", zh: "完成" },
  load_failed_count: { en: "failed", zh: "失败" },
  load_acceptance: { en: "acceptance", zh: "接受率" },
  load_throughput: { en: "tokens/s", zh: "词元/秒" },
  load_tokens_step: { en: "tokens per step", zh: "每步词元" },
  load_step: { en: "step", zh: "一步" },
  load_expected: { en: "expected speed-up", zh: "预期加速比" },
  load_verdict: { en: "The answer", zh: "结论" },
  load_compared: { en: "The record: baseline against speculative", zh: "记录：基线与推测" },
  load_compared_help: { en: "Medians of the repeats (smallest–largest). ITL is amortised: a chunk’s gap divided by its tokens.", zh: "各次重复的中位数（最小–最大）。词元间隔为摊销值：数据块间隔除以其词元数。" },
  load_loaded: { en: "By load and server", zh: "按负载与服务器" },
  load_requested: { en: "Every request ({count})", zh: "逐个请求（{count}）" },
  load_requested_shown: { en: "The first {shown} are shown; the saved result has them all.", zh: "显示前 {shown} 个；保存的结果包含全部。" },
  load_save: { en: "Save the result", zh: "保存结果" },
  load_markdown: { en: "Copy as Markdown", zh: "复制为 Markdown" },
  load_fig_speed_up: { en: "Speed-up against the load", zh: "加速比与负载" },
  load_fig_itl: { en: "ITL against the load", zh: "词元间隔与负载" },
  load_fig_tpot: { en: "TPOT against the load", zh: "TPOT 与负载" },
  load_fig_throughput: { en: "Throughput", zh: "吞吐" },
  load_fig_goodput: { en: "Goodput under the SLO", zh: "满足 SLO 的有效吞吐" },
  load_fig_acceptance: { en: "Acceptance", zh: "接受率" },
  load_fig_over_time: { en: "The servers over time", zh: "服务器随时间的变化" },
});

/** A figure of an experiment: of its result, or of what is measured so far. */
class LoadPlot extends Plot {
  constructor(app, name, panel) {
    super(app, name);
    this.panel = panel;
  }

  get run() {
    return this.panel.id;
  }

  key() {
    const { app, panel } = this;
    const cells = panel.view ? null : panel.state?.cells.length ?? null; // a figure of the result is drawn once
    if (!panel.view && cells === null) return null;
    const sampled = cells !== null && this.name === "over_time" ? panel.state.sampled : null;
    return { run: panel.id, cells, sampled, theme: app.theme(), language, narrow: this.root.clientWidth < 560 };
  }

  ask(key) {
    return this.app.call("load_figure", key.run, this.name, { theme: key.theme, language: key.language, narrow: key.narrow }, null, null);
  }
}

/** What a confirming run was to show, and what it showed. */
function confirmedBlock(confirms, back) {
  return el("div.verdict-block", {},
    el("ul.verdict-levels", {}, confirms.levels.map((level) => el("li", { "data-confirmed": String(level.as_expected) }, said(level.sentence)))),
    copyLine(`--speculative-config '${confirms.config_text}'`),
    confirms.load ? el("div", {}, el("button.secondary.small", { type: "button", onclick: back }, t("load_confirms_back"))) : null);
}

class LoadPanel {
  constructor(app) {
    this.app = app;
    this.id = memory.read(sessionStorage, "load");
    this.form = null; // what the server says of prompts and commands
    this.state = null;
    this.view = null; // the result in numbers
    this.own = null; // the visitor's own prompts
    this.asked = { concurrency: "1, 2, 4, 8", repeats: "3", max_new_tokens: "128", requests: "", rates: "", slo_ttft: "", slo_tpot: "", config: "", ...memory.read(localStorage, "load", {}) };
    this.names = { model: "", draft: "", k: "4" };
    this.title = el("h3.servers-h", { id: "playground-servers-load" });
    this.help = el("p.muted");
    this.commands = el("details.load-commands");
    this.fields = el("div.load-form");
    this.progress = el("div.load-progress", { "aria-live": "off" });
    this.live = el("div.draft-figures.load-live", { hidden: true });
    this.livePlots = new Map(); // name → its figure and title, while an experiment runs
    this.result = el("div.load-result");
    this.file = el("input", { type: "file", accept: ".json,application/json", hidden: true, onchange: () => this.openFile(this.file.files[0]) });
    this.promptsFile = el("input", { type: "file", accept: ".jsonl,.json,.txt", hidden: true, onchange: () => this.takePrompts(this.promptsFile.files[0]) });
    this.root = el("section.servers-part", { "aria-labelledby": "playground-servers-load" }, this.title, this.help, this.commands, this.fields, this.progress, this.live, this.result, this.file, this.promptsFile);
    this.renew = debounced(() => this.loadForm(), 400);
  }

  /** The page was opened: ask for what the form needs, and look at the experiment that this tab began. */
  open() {
    this.opened = true;
    if (!this.form) this.loadForm();
    if (this.id) this.poll();
  }

  leave() {
    this.opened = false;
    clearTimeout(this.timer);
  }

  async loadForm() {
    const k = Number(this.names.k);
    const answer = await this.app.call("load_form", this.names.model.trim() || null, this.names.draft.trim() || null, Number.isInteger(k) ? k : 4);
    if (answer.error) {
      this.commandError = answer.error;
      this.drawCommands();
      return;
    }
    this.commandError = null;
    this.form = answer;
    this.draw();
  }

  draw() {
    this.title.textContent = t("load_title");
    this.help.textContent = t("load_help");
    this.drawCommands();
    this.drawForm();
    this.drawProgress();
    this.drawLive();
    this.drawResult();
  }

  drawServers() {
    if (this.opened) this.drawForm();
  }

  get running() {
    return Boolean(this.state && !["done", "failed"].includes(this.state.phase));
  }

  // --- the form ------------------------------------------------------------------------------

  drawCommands() {
    const focused = this.commands.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const input = (name, key) => el("label.field", {}, el("span.field-label", {}, t(key)), el("input", { type: "text", maxlength: "200", spellcheck: "false", autocomplete: "off", value: this.names[name], "data-focus": name, placeholder: { model: "Qwen/Qwen3-8B", draft: "Qwen/Qwen3-0.6B", k: "4" }[name], oninput: (event) => {
      this.names[name] = event.target.value;
      this.renew();
    } }));
    this.commands.replaceChildren(el("summary", {}, t("load_commands")),
      el("div.load-names", {}, input("model", "load_commands_model"), input("draft", "load_commands_draft"), input("k", "load_commands_k")),
      this.commandError ? el("p.error", { role: "alert" }, said(this.commandError.text)) : "",
      ...(this.form?.commands ?? []).map((one) => el("article.load-command", { "data-command": one.name },
        el("h4", {}, said(one.title)), copyLine(one.command), el("p.muted", {}, [said(one.checked.text), ...one.notes.map(said)].join(" ")))));
    if (focused) this.commands.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  drawForm() {
    const { app, asked } = this;
    const servers = app.servers.all;
    if (!this.form || app.servers.entries === null) return this.fields.replaceChildren();
    const focused = this.fields.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const opened = this.fields.querySelector("details")?.open ?? false;
    const keep = () => memory.write(localStorage, "load", asked);
    const field = (name, key, help = null, attributes = {}) => el("label.field", {}, el("span.field-label", {}, t(key)),
      el("input", { type: "text", inputmode: "decimal", autocomplete: "off", spellcheck: "false", value: asked[name], "data-focus": name, maxlength: "300", oninput: (event) => {
        asked[name] = event.target.value;
        keep();
      }, ...attributes }), help ? el("span.field-help", {}, t(help)) : null);
    const pick = (side) => el("label.field", {}, el("span.field-label", {}, t(`load_${side}`)), el("select", { "data-focus": side, onchange: (event) => {
      asked[side] = event.target.value;
      keep();
      if (asked[side]) app.servers.ask(asked[side]);
      this.drawForm();
    } }, el("option", { value: "" }, t("load_choose")), servers.map((entry) => el("option", { value: entry.name, selected: entry.name === asked[side] }, entry.label))));
    const toggle = (name, key, help, otherwise) => el("label.field.toggle", {}, el("input.switch", { type: "checkbox", role: "switch", "data-focus": name, checked: asked[name] ?? otherwise, onchange: (event) => {
      asked[name] = event.target.checked;
      keep();
    } }), el("span.field-label", {}, t(key)), el("span.field-help", {}, t(help)));
    const prompts = el("div.field", {}, el("span.field-label", {}, t("load_prompts")), el("div.row", {}, el("div.segmented", { role: "group", "aria-label": t("load_prompts") },
      el("button", { type: "button", "aria-pressed": String(!this.own), onclick: () => { this.own = null; this.drawForm(); } }, t("load_prompts_shipped", this.form.prompts)),
      el("button", { type: "button", "aria-pressed": String(Boolean(this.own)), onclick: () => this.promptsFile.click() }, this.own ? this.own.name : t("load_prompts_own")))), el("span.field-help", {}, t("load_prompts_help")));
    const ready = asked.baseline && asked.speculative && !this.running && !this.beginning;
    this.fields.replaceChildren(
      servers.length || app.servers.public ? "" : el("p.muted", {}, t("load_need_servers")),
      el("div.load-row", {}, pick("baseline"), pick("speculative"), prompts),
      el("div.load-row", {}, field("concurrency", "load_concurrency", "load_concurrency_help"), field("repeats", "load_repeats"), field("max_new_tokens", "load_tokens"), field("requests", "load_requests", "load_requests_help")),
      el("details.section", { open: opened }, el("summary", {}, t("load_more")),
        el("div.load-row", {}, field("rates", "load_rates", "load_rates_help"), field("slo_ttft", "load_slo_ttft", "load_slo_help"), field("slo_tpot", "load_slo_tpot", "load_slo_help")),
        toggle("unique_prefixes", "load_unique", "load_unique_help", true), toggle("ignore_eos", "load_ignore_eos", "load_ignore_eos_help", false),
        field("config", "load_config", "load_config_help", { inputmode: "text", maxlength: "2000", placeholder: "{\"method\": \"ngram\", \"num_speculative_tokens\": 4}" })),
      el("div.row.load-buttons", {}, el("button.primary", { type: "button", disabled: !ready, onclick: () => this.start() }, icon("play"), t("load_start")),
        el("button.secondary", { type: "button", disabled: this.running, onclick: () => { this.file.value = ""; this.file.click(); } }, t("load_open"))),
      this.problem ? el("p.error", { role: "alert" }, said(this.problem.text)) : "");
    if (focused) this.fields.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
    return undefined;
  }

  async takePrompts(file) {
    if (!file) return;
    if (file.size > 8e6) this.problem = { text: { en: fill(TEXTS.pasted_large.en, { most: 8 }), zh: fill(TEXTS.pasted_large.zh, { most: 8 }) } };
    else {
      this.own = { name: file.name, text: await file.text() };
      this.problem = null;
    }
    this.promptsFile.value = "";
    this.drawForm();
  }

  /** What the form asks for, as plain values; what is no number is sent as it stands, and refused by name. */
  wanted() {
    const { asked } = this;
    const list = (text) => text.split(/[\s,，、]+/).filter(Boolean).map(asNumber);
    const number = (text) => (text.trim() ? asNumber(text) : null);
    const seconds = (text) => {
      const value = number(text);
      return typeof value === "number" ? value / 1000 : value;
    };
    return {
      baseline: asked.baseline, speculative: asked.speculative, prompts: this.own, concurrency: list(asked.concurrency), rates: list(asked.rates),
      repeats: number(asked.repeats) ?? 3, requests: number(asked.requests), max_new_tokens: number(asked.max_new_tokens) ?? 128,
      unique_prefixes: asked.unique_prefixes ?? true, ignore_eos: asked.ignore_eos ?? false, slo_ttft: seconds(asked.slo_ttft), slo_tpot: seconds(asked.slo_tpot), config: asked.config.trim() || null,
    };
  }

  async start() {
    this.beginning = true;
    this.problem = null;
    this.drawForm();
    const answer = await this.app.call("load_start", this.wanted(), this.app.visitor);
    this.beginning = false;
    this.take(answer);
  }

  async openFile(file) {
    if (!file) return;
    const most = this.app.servers.public ? 10 : 100;
    if (file.size > most * 1e6) {
      this.problem = { text: { en: fill(TEXTS.pasted_large.en, { most }), zh: fill(TEXTS.pasted_large.zh, { most }) } };
      this.drawForm();
      return;
    }
    this.take(await this.app.call("load_open", await file.text(), this.app.visitor));
  }

  take(answer) {
    this.problem = answer.error ?? null;
    if (!answer.error) {
      this.id = answer.load;
      this.state = this.view = null;
      memory.write(sessionStorage, "load", this.id);
      this.drawResult();
      this.poll();
    }
    this.drawForm();
  }

  // --- while it runs -------------------------------------------------------------------------

  async poll() {
    clearTimeout(this.timer);
    const { id } = this;
    if (!id || !this.opened) return;
    const answer = await this.app.call("load_state", id);
    if (this.id !== id) return;
    if (answer.error?.code === "load_unknown") {
      this.id = this.state = null;
      memory.write(sessionStorage, "load", null);
    } else if (!answer.error) {
      const before = this.running;
      this.state = answer;
      if (answer.result && !this.view) await this.loadView();
      if (before !== this.running) this.drawForm();
    }
    this.drawProgress();
    this.drawLive();
    if (this.running || answer.error) this.timer = setTimeout(() => this.poll(), answer.error ? 3000 : 500);
  }

  async control(action) {
    const answer = await this.app.call("load_control", this.id, action, this.app.visitor);
    if (answer.error) this.problem = answer.error;
    this.poll();
  }

  drawProgress() {
    const { state } = this;
    if (!state || (state.phase === "done" && state.result)) {
      this.progress.replaceChildren();
      this.drawnProgress = null;
      return;
    }
    const key = JSON.stringify([state, language]);
    if (this.drawnProgress === key) return;
    this.drawnProgress = key;
    if (state.phase === "failed") {
      this.progress.replaceChildren(el("p.error", { role: "alert" }, t("load_failed", { text: said(state.error?.text) })));
      return;
    }
    const { now, so_far: far, sample, restart } = state;
    const asks = restart?.config_text ? "load_restart_confirm" : "load_restart";
    const ms = (value) => (value === null ? "–" : milliseconds(value));
    const lines = restart ? [el("p.load-restart", { role: "alert" }, t(asks, { server: restart.server }), restart.problem ? ` ${said(restart.problem)}` : ""), restart.config_text ? copyLine(`--speculative-config '${restart.config_text}'`) : null]
      : now ? [el("p", {}, t("load_now", { side: t(`load_${now.side}`), level: said(now.level), repeat: now.repeat + 1, done: state.done, of: state.of })),
        far.requests ? el("p.muted", {}, t("load_so_far", { ttft: ms(far.ttft), tpot: ms(far.tpot), requests: far.requests })) : null,
        sample ? el("p.muted", {}, t("load_sample", { running: sample.running ?? "?", waiting: sample.waiting ?? "?", kv: sample.kv_usage === null ? "?" : `${(100 * sample.kv_usage).toFixed(1)} %` })) : null]
        : [el("p", {}, t("load_starting"))];
    const bar = el("div", { class: state.of ? "progress" : "progress unknown", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": state.of ? String(Math.round((100 * state.done) / state.of)) : null }, el("span", { style: state.of ? `transform: scaleX(${state.done / state.of})` : null }));
    const head = ["load_level", "load_side", "load_repeat"].map((name) => t(name)).concat(["TTFT p50", "ITL p50", "TPOT p50", t("load_throughput"), t("load_acceptance"), t("load_answered"), t("load_failed_count")]);
    const cells = state.cells.map((cell) => [said(cell.level), t(`load_${cell.side}`), cell.repeat + 1, ms(cell.ttft_p50), ms(cell.itl_p50), ms(cell.tpot_p50), cell.throughput === null ? "–" : cell.throughput.toFixed(1), cell.acceptance === null ? "–" : `${(100 * cell.acceptance).toFixed(1)} %`, cell.requests, cell.failed]);
    this.progress.replaceChildren(...[bar, ...lines,
      state.mine ? el("div.row", {}, restart ? el("button.primary", { type: "button", onclick: () => this.control("resume") }, t("load_restarted")) : null, el("button.secondary.stop", { type: "button", onclick: () => this.control("stop") }, icon("stop"), t("load_stop"))) : null,
      cells.length ? el("h4.plot-title", {}, t("load_cells")) : null, cells.length ? tableOf([head, ...cells]) : null].filter(Boolean));
  }

  /** The figures of what is measured so far: each appears when there is something in it, and grows cell by cell. */
  drawLive() {
    const names = this.view ? [] : this.state?.figures ?? [];
    for (const [name, { box }] of this.livePlots) {
      if (names.includes(name)) continue;
      box.remove();
      this.livePlots.delete(name);
    }
    for (const name of names) {
      if (!this.livePlots.has(name)) {
        const plot = new LoadPlot(this.app, name, this);
        const title = el("h4.plot-title");
        this.livePlots.set(name, { plot, title, box: el("div", { class: name === "over_time" ? "wide-figure" : "", "data-figure": name }, title, plot.root) });
      }
      const { title } = this.livePlots.get(name);
      title.textContent = t("load_live", { figure: t(`load_fig_${name}`) });
    }
    const boxes = names.map((name) => this.livePlots.get(name).box);
    if (boxes.length !== this.live.children.length || boxes.some((box, index) => this.live.children[index] !== box)) this.live.replaceChildren(...boxes);
    this.live.hidden = !boxes.length;
    this.drawFigures();
  }

  // --- the result ----------------------------------------------------------------------------

  async loadView() {
    const answer = await this.app.call("load_view", this.id, null, null);
    if (answer.error) this.problem = answer.error;
    else this.view = answer;
    this.drawResult();
  }

  drawResult() {
    const { view, app } = this;
    if (!view) {
      this.result.replaceChildren();
      this.plots = null;
      this.drawnResult = null;
      return;
    }
    if (this.drawnResult !== `${this.id}.${language}`) {
      this.drawnResult = `${this.id}.${language}`;
      const names = view.figures.filter((name) => name !== "goodput" || view.slo.ttft !== null || view.slo.tpot !== null);
      this.plots = names.map((name) => new LoadPlot(app, name, this));
      const count = Math.max(0, view.requests.length - 1);
      const pays = view.verdict ? view.verdict.levels.some((level) => level.k > 0) : view.confirms ? view.confirms.levels.every((level) => level.as_expected !== false) : null;
      const told = el("span.muted", { "aria-live": "polite" });
      const inWords = (rows) => tableOf(language === "zh" ? rows.map((row) => row.map((cell) => view.words[cell] ?? cell)) : rows);
      this.result.replaceChildren(...[
        el("h4.plot-title", {}, t(view.confirms ? "load_confirms" : "load_verdict")),
        el("p.draft-verdict", { "data-won": pays === null ? "unknown" : pays ? "yes" : "no" }, said(view.sentence)),
        view.confirms ? confirmedBlock(view.confirms, () => this.take({ load: view.confirms.load })) : view.verdict ? verdictBlock(view.verdict) : el("ul.verdict-levels", {}, view.sentences.map((sentence) => el("li", {}, said(sentence)))),
        view.verdict ? el("div.row", {}, el("button.secondary", { type: "button", "data-focus": "confirm", onclick: () => this.confirm() }, icon("play"), t("load_confirm"))) : null,
        ...view.notes.map((note) => el("p.pasted-note", {}, said(note))), ...view.failures.map((line) => el("p.error", {}, said(line))),
        el("h4.plot-title", {}, t("load_compared")), el("div.load-compared", {}, inWords(view.compared)), el("p.muted", {}, t("load_compared_help")),
        el("div.draft-figures", {}, names.map((name, index) => el("div", { class: name === "over_time" ? "wide-figure" : "" }, el("h4.plot-title", {}, t(`load_fig_${name}`)), this.plots[index].root))),
        el("details.plot-table", {}, el("summary", {}, t("load_loaded")), inWords(view.loaded)),
        el("details.plot-table", {}, el("summary", {}, t("load_requested", { count: view.request_count })), count < view.request_count ? el("p.muted", {}, t("load_requested_shown", { shown: count })) : "", count ? inWords(view.requests) : ""),
        el("p.muted.load-about", {}, said(view.about)),
        el("div.row.load-buttons", {}, el("button.secondary", { type: "button", onclick: () => this.save() }, icon("download"), t("load_save")), el("button.secondary", { type: "button", onclick: async () => {
          const saved = await app.call("load_saved", this.id);
          if (saved.error) return;
          await copyText(said(saved.markdown));
          told.textContent = t("copied");
        } }, icon("copy"), t("load_markdown")), told),
      ].filter(Boolean));
    }
    this.drawFigures();
  }

  /** Figures look different in another theme, and on a narrower page. */
  drawFigures() {
    for (const plot of [...(this.plots ?? []), ...[...this.livePlots.values()].map((one) => one.plot)]) plot.want();
  }

  /** The run that confirms the answer: the server is restarted with its setting, and only that side is measured again. */
  async confirm() {
    this.take(await this.app.call("load_confirm", this.id, this.app.visitor));
    this.progress.scrollIntoView({ block: "center", behavior: calm() ? "auto" : "smooth" });
  }

  async save() {
    const answer = await this.app.call("load_saved", this.id);
    if (answer.error) return;
    const address = URL.createObjectURL(new Blob([answer.json], { type: "application/json" }));
    el("a", { href: address, download: `load-${this.id.slice(0, 8)}.json` }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10000);
  }
}
