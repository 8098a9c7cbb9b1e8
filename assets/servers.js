// Servers: which there are, what each can do, lanes that run there, and verdicts from pasted figures without connecting to any.

Object.assign(TEXTS, {
  page_servers: { en: "Servers", zh: "服务器" },
  servers_lead: { en: "Where a model outgrows one machine it runs on a server. Compare lanes there, and find out whether speculation pays.", zh: "一台机器放不下的模型在服务器上运行。在此比较服务器上的通道，并看推测解码是否划算。" },
  servers_connect: { en: "Connect", zh: "连接" },
  servers_none: { en: "No server is configured.", zh: "尚未配置服务器。" },
  servers_none_public: { en: "This public page has no server of its own. Run the app on your machine to use yours; “Without connecting” works here too.", zh: "此公开页面没有配置服务器。在自己的机器上运行本应用即可使用您的服务器；“不连接服务器”在此也可用。" },
  servers_configure: { en: "To keep one, name it before the app starts; its key is read from the environment only:", zh: "要保留服务器，请在应用启动前命名；密钥只从环境变量读取：" },
  servers_address: { en: "Address", zh: "地址" },
  servers_name: { en: "Name (optional)", zh: "名称（可选）" },
  servers_ask: { en: "Ask what it can do", zh: "询问其能力" },
  servers_again: { en: "Ask again", zh: "重新询问" },
  servers_forget: { en: "Forget", zh: "移除" },
  servers_asking: { en: "Asking {name}: a dozen requests of a token or two… {seconds} s", zh: "正在询问 {name}：十余个只有一两个词元的请求…… {seconds} 秒" },
  servers_not_asked: { en: "Not asked yet.", zh: "尚未询问。" },
  servers_add_lane: { en: "Add a lane on it", zh: "在其上添加通道" },
  servers_move_lanes: { en: "Run all lanes on it", zh: "所有通道都在其上运行" },
  servers_key_set: { en: "key from {name}", zh: "密钥来自 {name}" },
  servers_key_missing: { en: "{name} is not set: no key is sent", zh: "{name} 未设置：不发送密钥" },
  servers_typed: { en: "typed in here", zh: "在此输入" },
  servers_open: { en: "Servers…", zh: "服务器…" },
  servers_open_help: { en: "Connect a vLLM, llama.cpp or other OpenAI-compatible server, and compare lanes there.", zh: "连接 vLLM、llama.cpp 或其他 OpenAI 兼容服务器，并在其上比较通道。" },
  can_kind: { en: "Program", zh: "程序" },
  can_models: { en: "Models", zh: "模型" },
  can_context: { en: "Longest text", zh: "最大长度" },
  can_tokens: { en: "{count} tokens", zh: "{count} 个词元" },
  can_token_ids: { en: "Token ids in the stream", zh: "流中给出词元编号" },
  can_logprobs: { en: "Log-probabilities", zh: "对数概率" },
  can_logprobs_most: { en: "{count} per step", zh: "每步 {count} 个" },
  can_usage: { en: "Counts tokens (usage)", zh: "统计词元数（usage）" },
  can_request_metrics: { en: "Its own times per request", zh: "逐请求的自身计时" },
  can_request_speculation: { en: "Speculation per request", zh: "逐请求的推测数据" },
  can_metrics: { en: "/metrics", zh: "/metrics" },
  can_speculation: { en: "Speculates", zh: "开启推测解码" },
  can_beam: { en: "Beam search", zh: "束搜索" },
  can_beam_note: { en: "not while it streams", zh: "流式输出时不可用" },
  can_chat: { en: "Chat template", zh: "对话模板" },
  can_completions: { en: "Raw text", zh: "原始文本" },
  can_refused: { en: "Refuses", zh: "拒绝的参数" },
  can_yes: { en: "yes", zh: "有" },
  can_no: { en: "no", zh: "没有" },
  can_unknown: { en: "not known", zh: "未知" },
  scale_raw_log_probability: { en: "raw, before temperature", zh: "原始值，温度之前" },
  scale_processed_log_probability: { en: "processed: after temperature and filters", zh: "已处理：温度与过滤之后" },
  doubt_sum_above_one: { en: "untrustworthy: the probabilities of this step add up to more than 1", zh: "不可信：这一步的概率之和大于 1" },
  doubt_above_zero: { en: "untrustworthy: a log-probability lies above 0", zh: "不可信：有对数概率大于 0" },
  doubt_certain_without_rival: { en: "untrustworthy: the server calls this token certain and names no other", zh: "不可信：服务器称此词元必然出现，且未给出其他候选" },
  doubt_lane: { en: "Log-probabilities of {count} of {total} tokens are {why}.", zh: "{total} 个词元中有 {count} 个的对数概率{why}。" },
  lane_where: { en: "Runs on", zh: "运行于" },
  lane_here: { en: "this machine", zh: "本机" },
  lane_where_help: { en: "A server streams the same events; what it can't do is refused by name.", zh: "服务器给出同样的事件；做不到的会按名称拒绝。" },
  lane_server_model: { en: "Model on the server", zh: "服务器上的模型" },
  lane_server_first: { en: "the server’s first", zh: "服务器的第一个" },
  lane_server_asking: { en: "Asking {name} what it can do…", zh: "正在询问 {name} 的能力……" },
  stage_unknown: { en: "unknown to {name}", zh: "{name} 不支持" },
  stage_refused: { en: "refused by {name}", zh: "{name} 拒绝" },
  on_server: { en: "on {name}", zh: "在 {name}" },
  chunk_of: { en: "Chunk {number}: {tokens}, {gap}.", zh: "第 {number} 块：{tokens}，{gap}。" },
  chunk_tokens: { en: "{count} tokens", zh: "{count} 个词元" },
  chunk_token: { en: "one token", zh: "1 个词元" },
  chunk_uncounted: { en: "tokens not counted by the server", zh: "服务器未统计词元数" },
  chunk_gap: { en: "{ms} after the chunk before it", zh: "距上一块 {ms}" },
  chunk_first: { en: "{ms} after the request was sent", zh: "距请求发出 {ms}" },
  server_token: { en: "p = {p} ({scale})", zh: "p = {p}（{scale}）" },
  server_no_numbers: { en: "The server gives no log-probabilities here.", zh: "服务器在此未给出对数概率。" },
  server_own_id: { en: "no id from the server", zh: "服务器未给出编号" },
  server_sentence: { en: "wrote {token}", zh: "写出 {token}" },
  sent_title: { en: "What was sent to {name} (POST /v1/{path})", zh: "发送给 {name} 的内容（POST /v1/{path}）" },
  remote_loop: { en: "n/a (remote): what a server’s loop spends its time on can’t be seen from here. Its chunk gaps and its own figures stand in the lane’s numbers.", zh: "不适用（远程）：从这里看不到服务器循环的耗时分布。数据块间隔与服务器自身的数据见通道的数字行。" },
  remote_kv: { en: "n/a (remote): the KV cache of {name} is on the server. Its use over time is part of the experiment on the page Servers.", zh: "不适用（远程）：{name} 的 KV 缓存在服务器上。其占用变化见“服务器”页的实验。" },
  remote_latency: { en: "{name}: n/a (remote) in this picture, whose steps were timed on this machine. Times by chunk are in the lane’s numbers.", zh: "{name}：不适用（远程），此图只含本机计时的步。按数据块的时间见通道的数字行。" },
  measure_token_p50: { en: "amortised p50", zh: "摊销 p50" },
  measure_token_p95: { en: "amortised p95", zh: "摊销 p95" },
  measure_tpot: { en: "TPOT", zh: "TPOT" },
  measure_gap_p50: { en: "chunk gap p50", zh: "块间隔 p50" },
  measure_gap_p95: { en: "chunk gap p95", zh: "块间隔 p95" },
  measure_per_chunk: { en: "tok/chunk", zh: "词元/块" },
  measure_server_queue: { en: "queue", zh: "排队" },
  measure_server_ttft: { en: "TTFT", zh: "首词元" },
  measure_server_prefill: { en: "prefill", zh: "预填充" },
  measure_server_decode: { en: "decode", zh: "解码" },
  measure_server_itl: { en: "mean ITL", zh: "平均间隔" },
  measure_server_speed: { en: "tok/s", zh: "词元/秒" },
  measures_reported: { en: "reported by the server", zh: "服务器报告" },
  remote_spec_head: { en: "Speculation on {name}", zh: "{name} 上的推测解码" },
  remote_spec_request: { en: "The server’s own figures for this request ({fields}).", zh: "服务器针对此请求给出的数据（{fields}）。" },
  remote_spec_counters: { en: "Difference of two /metrics snapshots of the whole server, {seconds} s apart. {others}", zh: "整个服务器两次 /metrics 快照之差，相隔 {seconds} 秒。{others}" },
  remote_spec_alone: { en: "It wrote nothing for others in that time.", zh: "期间未为他人生成词元。" },
  remote_spec_others: { en: "It wrote {count} tokens for others in that time: their guesses are in these counts.", zh: "期间为他人生成了 {count} 个词元：其猜测也计入这些数。" },
  remote_spec_others_unknown: { en: "Whether it served others in that time isn’t known.", zh: "期间是否服务他人未知。" },
  remote_spec_unknown: { en: "Unknown: this server tells nothing of its speculation, neither by request nor in /metrics.", zh: "未知：此服务器既未逐请求、也未在 /metrics 中给出推测解码的数据。" },
  remote_spec_wait: { en: "The server gives its figures at the end of the reply.", zh: "服务器在回复结束时给出数据。" },
  remote_rounds_help: { en: "Per-step lists of the server. Which tokens were guessed isn’t told; a round stands beside its chunk of the stream where both fit together.", zh: "服务器的逐步列表。未说明猜了哪些词元；能与数据块对应的轮次旁列出该块的词元。" },
  remote_round: { en: "Round {round}: {accepted} of {drafted} guesses accepted. {text}", zh: "第 {round} 轮：{drafted} 个猜测中接受 {accepted} 个。{text}" },
  remote_round_unplaced: { en: "place in the text not known", zh: "在文本中的位置未知" },
  remote_position: { en: "position", zh: "位置" },
  remote_position_all: { en: "of all drafts", zh: "占全部草稿" },
  remote_position_reached: { en: "of those that got there", zh: "占到达此处的" },
  pasted: { en: "Without connecting", zh: "不连接服务器" },
  pasted_help: { en: "Paste two /metrics pages of a server, taken before and after some traffic, or drop in two result files of `vllm bench serve --save-result`. Nothing is sent to any server.", zh: "粘贴同一服务器在一段流量前后的两个 /metrics 页面，或拖入两个 `vllm bench serve --save-result` 结果文件。不会向任何服务器发送数据。" },
  pasted_metrics: { en: "Two /metrics snapshots", zh: "两个 /metrics 快照" },
  pasted_files: { en: "Two bench results", zh: "两个基准结果" },
  pasted_before: { en: "Before", zh: "之前" },
  pasted_after: { en: "After", zh: "之后" },
  pasted_seconds: { en: "Seconds between them (optional)", zh: "相隔秒数（可选）" },
  pasted_first: { en: "First result", zh: "第一个结果" },
  pasted_second: { en: "Second result", zh: "第二个结果" },
  pasted_place: { en: "the whole page: curl http://host:8000/metrics", zh: "完整页面：curl http://host:8000/metrics" },
  pasted_choose: { en: "Choose a file", zh: "选择文件" },
  pasted_drop: { en: "or drop it here", zh: "或拖到此处" },
  pasted_go: { en: "What do they say?", zh: "它们说明什么？" },
  pasted_large: { en: "This file is larger than {most} MB.", zh: "此文件超过 {most} MB。" },
  ledger_value: { en: "value", zh: "数值" },
  config_copy: { en: "Copy", zh: "复制" },
  config_copied: { en: "Copied", zh: "已复制" },
});

/** What of a server lane's numbers stands on its card; a chunk gap is no token latency, and has a name of its own. */
const SERVER_MEASURES = {
  ttft: "measure_ttft", decode: "measure_decode", e2e: "measure_e2e", tpot: "measure_tpot", itl_p50: "measure_token_p50", itl_p95: "measure_token_p95",
  chunk_gap_p50: "measure_gap_p50", chunk_gap_p95: "measure_gap_p95", tokens_per_chunk: "measure_per_chunk", tokens_per_second: "measure_speed", tokens: "measure_tokens",
  server_queue: "measure_server_queue", server_ttft: "measure_server_ttft", server_prefill: "measure_server_prefill", server_decode: "measure_server_decode",
  server_itl: "measure_server_itl", server_tokens_per_second: "measure_server_speed",
};

/** The server that wrote a lane of the run; null for a lane of this machine. */
function serverOf(app, uid) {
  return app.run?.about?.lanes[app.run.uids.indexOf(uid)]?.server ?? null;
}

/** Over the figures that a server gives of itself. */
function reportedHead() {
  return el("div.measures-reported", { style: `order: ${2 * Object.keys(SERVER_MEASURES).indexOf("server_queue") - 1}` }, el("dt", {}, t("measures_reported")), el("dd"));
}

/** The measures that a lane's card shows, with their short names. */
function measuresOf(app, uid) {
  return serverOf(app, uid) ? SERVER_MEASURES : SHORT_MEASURES;
}

/** The servers that the page knows, the configured ones and those that somebody typed in, and what each can do. */
class ServerBook {
  constructor(app) {
    this.app = app;
    this.entries = null; // the configured ones, once asked for
    this.error = null;
    this.public = false;
    this.typed = (memory.read(localStorage, "servers", []) ?? []).filter((one) => typeof one?.url === "string").slice(0, 12);
    this.known = new Map(); // name, or name and model → what it can do
    this.problems = new Map(); // name → why it can't be asked
    this.asking = new Map(); // name → since when, in ms
  }

  async load() {
    const answer = await this.app.call("servers");
    this.error = answer.error ?? null;
    this.entries = answer.entries ?? [];
    this.public = Boolean(answer.public);
    for (const entry of this.entries) if (entry.can) this.take(entry);
    this.changed();
  }

  /** All of them, configured first: what a lane calls it, and how people do. */
  get all() {
    const typed = this.public ? [] : this.typed.filter((one) => !(this.entries ?? []).some((entry) => entry.name === one.url));
    return [...(this.entries ?? []), ...typed.map((one) => ({ name: one.url, label: one.name || hostOf(one.url), address: one.url, configured: false, key: false, key_env: null }))];
  }

  labelOf(name) {
    return this.all.find((entry) => entry.name === name)?.label ?? (name?.startsWith("http") ? hostOf(name) : name ?? "");
  }

  can(name, model = null) {
    return this.known.get(`${name} ${model ?? ""}`) ?? this.known.get(`${name} `) ?? null;
  }

  take(entry, model = null, name = entry.name) {
    for (const key of new Set([`${name} ${model ?? ""}`, `${name} ${entry.can.model}`])) this.known.set(key, entry.can);
  }

  /** Ask a server what it can do, unless that is known; draws what depends on it when the answer is there. */
  async ask(name, model = null, again = false) {
    const key = `${name} ${model ?? ""}`;
    if (this.asking.has(name) || (!again && this.known.has(key))) return;
    this.asking.set(name, performance.now());
    this.problems.delete(name);
    this.changed();
    const answer = await this.app.call("probe_server", name, model, again);
    this.asking.delete(name);
    if (answer.error) this.problems.set(name, answer.error);
    else this.take(answer.server, model, name);
    this.changed();
    this.app.tellPrepare();
  }

  type(url, name) {
    this.typed = [{ url, name }, ...this.typed.filter((one) => one.url !== url)].slice(0, 12);
    memory.write(localStorage, "servers", this.typed);
  }

  forget(url) {
    this.typed = this.typed.filter((one) => one.url !== url);
    memory.write(localStorage, "servers", this.typed);
    this.problems.delete(url);
    this.changed();
  }

  changed() {
    this.app.serversPage?.drawConnect();
    this.app.serversPage?.load?.drawServers();
    this.app.editor?.draw();
  }
}

function hostOf(url) {
  try {
    return new URL(url).host;
  } catch {
    return url.slice(0, 60);
  }
}

// --- a lane's settings ---------------------------------------------------------------------

/** In a lane's settings: where it runs, and with which model there. */
function serverFields(editor, lane) {
  const { app } = editor;
  const { servers } = app;
  if (servers.entries === null) return [];
  const edit = (change) => app.edit(lane.uid, change);
  const choices = [["", t("lane_here")], ...servers.all.map((entry) => [entry.name, entry.label])];
  if (lane.server && !choices.some(([name]) => name === lane.server)) choices.push([lane.server, servers.labelOf(lane.server)]);
  if (choices.length === 1) return [];
  const where = editor.field("lane-server", t("lane_where"), t("lane_where_help"), editor.choice(choices, lane.server ?? "", (value) => {
    if (value) servers.ask(value);
    edit((one) => Object.assign(one, { server: value || null, model: null }));
  }));
  if (!lane.server) return [where];
  const can = servers.can(lane.server, lane.model);
  const problem = servers.problems.get(lane.server);
  if (!can && !problem) setTimeout(() => servers.ask(lane.server, lane.model), 0);
  const state = problem ? el("p.error", { role: "alert" }, said(problem.text))
    : can ? null : el("p.muted", { role: "status" }, t("lane_server_asking", { name: servers.labelOf(lane.server) }));
  const models = can?.models.map(([name]) => [name, name]) ?? [];
  if (lane.model && !models.some(([name]) => name === lane.model)) models.push([lane.model, lane.model]);
  return [where, state, editor.field("lane-server-model", t("lane_server_model"), null, editor.choice([["", t("lane_server_first")], ...models], lane.model ?? "", (value) => {
    if (value) servers.ask(lane.server, value);
    edit((one) => { one.model = value || null; });
  }))];
}

/** Beside a stage's knob: that the lane's server can't run it. */
function stageMark(app, lane, stage) {
  if (!lane.server || !stage) return null;
  const why = app.servers.can(lane.server, lane.model)?.refused_stages[stage.name];
  return why ? el("span.tag.stage-off", {}, t(`stage_${why}`, { name: app.servers.labelOf(lane.server) })) : null;
}

/** Among a lane's chips: the server that it runs on. */
function serverChip(app, lane, uid) {
  const { servers } = app;
  const model = lane.model ?? servers.can(lane.server)?.model ?? null;
  const open = el("button.chip-open", { type: "button", onclick: () => app.editor.openLane(uid, open) }, t("on_server", { name: servers.labelOf(lane.server) }), model ? el("b", {}, ` ${model}`) : null);
  return el("li.chip.server-chip", {}, open, el("button.chip-off", { type: "button", "aria-label": t("lane_here"), title: t("lane_here"), onclick: () => app.edit(uid, (one) => Object.assign(one, { server: null, model: null })) }, icon("close")));
}

/** In the settings of the comparison: the way to the page of servers. */
function serversSection(app) {
  return [el("h3", {}, t("page_servers")), el("p.muted", {}, t("servers_open_help")), el("div", {}, pageLink("a.secondary.small", "servers", null, {}, t("servers_open")))];
}

// --- a lane's tokens -----------------------------------------------------------------------

/** In the window of a token that a server wrote: its number and what that is worth, its rivals, its chunk. */
function serverCandidates(app, token, uid) {
  const logarithm = token.rlp ?? token.lp;
  const scale = token.sc ? t(`scale_${token.sc}`) : null;
  const rows = token.top.map(([text, before, , chosen]) => el("li", { class: `candidate${chosen ? " chosen" : ""}` },
    el("span.candidate-text", {}, text), el("span.bars", { "aria-hidden": "true" }, el("span.bar.after", { style: `--p:${before}` })), el("span.candidate-p.after", {}, probability(before))));
  return [
    el("header.popover-head", {}, el("code.token-name", {}, token.n), el("span.muted", {}, `${t("token_number", { number: token.p + 1 })} · ${token.t < 0 ? t("server_own_id") : `#${token.t}`}`)),
    token.d ? el("p.popover-p.doubt", {}, t(`doubt_${token.d}`)) : el("p.popover-p", {}, scale ? t("server_token", { p: probability(logarithm === null ? null : Math.exp(logarithm)), scale }) : t("server_no_numbers")),
    rows.length ? el("ol.candidates", { style: `--lane:${app.colourOf(uid)}` }, rows) : null,
    token.chunk ? el("p.muted", {}, chunkWords(token.chunk)) : null,
  ].filter(Boolean);
}

function chunkWords(chunk) {
  const gap = chunk.gap === null ? t("chunk_first", { ms: milliseconds(chunk.s) }) : t("chunk_gap", { ms: milliseconds(chunk.gap) });
  return t("chunk_of", { number: chunk.number, tokens: chunk.t === null ? t("chunk_uncounted") : t(chunk.t === 1 ? "chunk_token" : "chunk_tokens", { count: chunk.t }), gap });
}

/** Under the tokens of a server lane: what can't be believed of its numbers. */
function doubtNote(log) {
  const doubted = (log?.tokens ?? []).filter((token) => token.d);
  return doubted.length ? t("doubt_lane", { count: doubted.length, total: log.tokens.length, why: t(`doubt_${doubted[0].d}`) }) : null;
}

/** What is said above the pipeline of a token that a server wrote. */
function serverSentence(name, token) {
  const [before, after] = t("server_sentence", { token: "\u0000" }).split("\u0000");
  const logarithm = token.rlp ?? token.lp;
  const facts = [token.d ? t(`doubt_${token.d}`) : token.sc ? t("server_token", { p: probability(logarithm === null ? null : Math.exp(logarithm)), scale: t(`scale_${token.sc}`) }) : t("server_no_numbers"), token.chunk ? chunkWords(token.chunk) : null];
  return [el("b", {}, name), ` ${before}`, el("code.token-name", {}, token.n), `${after}: ${facts.filter(Boolean).join(" · ")}`];
}

/** The whole request as it was sent to a lane's server: every parameter by name, so that no default of the server's slips in. */
class SentNote {
  constructor(app) {
    this.app = app;
    this.title = el("summary");
    this.body = el("pre", { tabindex: "0" });
    this.root = el("details.sent-note", { hidden: true }, this.title, this.body);
  }

  draw(uid) {
    const { run } = this.app;
    const sent = run.about?.lanes[run.uids.indexOf(uid)]?.sent ?? null;
    this.root.hidden = !sent;
    if (!sent) return;
    const { path, ...body } = sent;
    this.title.textContent = t("sent_title", { name: serverOf(this.app, uid), path });
    this.body.textContent = Object.entries(body).map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join("\n");
  }
}

/** What the panels of this machine say where a lane ran elsewhere. */
class RemoteNotes {
  constructor(app) {
    this.app = app;
    this.root = el("p.remote-note", { hidden: true });
  }

  /** Returns whether there is nothing else to see in this tab. */
  draw(tab) {
    const { app } = this;
    const { uid } = app.focused();
    const remote = app.run.uids.filter((one) => serverOf(app, one));
    const names = remote.map((one) => app.laneName(one)).join(", ");
    const text = tab === "loop" && serverOf(app, uid) ? t("remote_loop") : tab === "kv" && remote.length ? t("remote_kv", { name: names }) : tab === "latency" && remote.length ? t("remote_latency", { name: names }) : "";
    this.root.hidden = !text;
    this.root.textContent = text;
    return Boolean(text) && (tab === "loop" || remote.length === app.run.uids.length);
  }
}

// --- speculation on a server ---------------------------------------------------------------

/** A server's own record of its guesses: where it comes from, the ledger, and the rounds where it tells them. */
class RemoteSpeculation {
  constructor(app) {
    this.app = app;
    this.head = el("p.where");
    this.source = el("p.remote-source");
    this.rounds = el("div.draft-rounds.remote-rounds", { role: "list" });
    this.roundsHelp = el("p.beam-note");
    this.table = el("div.draft-ledger");
    this.positions = el("div.remote-positions");
    this.root = el("section.panel.speculation.remote-speculation", { hidden: true }, el("div.panel-head", {}, this.head), this.source,
      this.roundsTitle = el("h3.plot-title", { "data-t": "draft_rounds" }), this.rounds, this.roundsHelp,
      this.ledgerTitle = el("h3.plot-title", { "data-t": "draft_ledger" }), this.table,
      this.positionsTitle = el("h3.plot-title", { "data-t": "draft_acceptance" }), this.positions);
    this.loading = new Asking(() => this.load());
  }

  /** Whether the lane in focus ran on a server that told something of its guesses. */
  get relevant() {
    const { app } = this;
    if (!app.run) return false;
    const { lane, uid } = app.focused();
    return Boolean(serverOf(app, uid) && app.seen.lanes[lane]?.counted);
  }

  draw() {
    const { app } = this;
    const { lane, uid } = app.focused();
    const log = app.seen.lanes[lane];
    this.root.style.setProperty("--lane", app.colourOf(uid));
    const key = `${app.run.id}.${lane}.${Boolean(log.finished)}.${language}`;
    if (log.finished) this.loading.want(`${key}.${app.viewed}`);
    this.head.replaceChildren(el("span.swatch", { "aria-hidden": "true" }), el("b", {}, app.laneName(uid)), el("span.muted", {}, ` · ${t("remote_spec_head", { name: serverOf(app, uid) })}`));
    if (this.shown === key) return;
    this.shown = key;
    this.source.textContent = log.finished ? "" : t("remote_spec_wait");
    for (const node of [this.rounds, this.table, this.positions]) node.replaceChildren();
    for (const node of [this.roundsTitle, this.rounds, this.roundsHelp, this.ledgerTitle, this.positionsTitle]) node.hidden = true;
  }

  async load() {
    const { app, shown } = this;
    const { lane } = app.focused();
    const log = app.seen.lanes[lane];
    const answer = await app.call("server_speculation", app.viewed, lane);
    if (this.shown !== shown) return;
    if (answer.error) {
      this.source.textContent = said(answer.error.text);
      return;
    }
    const others = answer.other_tokens === null ? t("remote_spec_others_unknown") : answer.other_tokens ? t("remote_spec_others", { count: answer.other_tokens }) : t("remote_spec_alone");
    this.source.textContent = answer.source === "request" ? t("remote_spec_request", answer) : answer.source === "counters" ? t("remote_spec_counters", { seconds: answer.window ?? "?", others }) : t("remote_spec_unknown");
    if (answer.source === "unknown") return;
    this.ledgerTitle.hidden = false;
    this.table.replaceChildren(quantityTable(answer.rows));
    this.drawRounds(answer.rounds, log, lane);
    if (answer.positions.length) {
      this.positionsTitle.hidden = false;
      this.positions.replaceChildren(positionTable(answer.positions));
    }
  }

  drawRounds(rounds, log, lane) {
    const shown = rounds.length > 0;
    for (const node of [this.roundsTitle, this.rounds, this.roundsHelp]) node.hidden = !shown;
    this.roundsHelp.textContent = t("remote_rounds_help");
    const { app } = this;
    this.rounds.replaceChildren(...rounds.map(([drafted, accepted, start, stop], index) => {
      const placed = start !== null;
      const tokens = placed ? log.tokens.slice(start, stop) : [];
      const text = tokens.map((token) => token.n).join("");
      const guesses = Array.from({ length: drafted ?? accepted }, (_, at) => {
        const state = at < accepted ? (placed && at >= tokens.length ? "c" : "a") : at === accepted ? "r" : "n";
        const name = placed && state === "a" ? tokens[at]?.n : "";
        return [state === "r" ? el("span.draft-cut") : null, el(`span.draft-guess.${GUESS_STATES[state]}`, {}, el("i", {}, GUESS_SIGNS[state]), name || "")];
      }).flat().filter(Boolean);
      const extra = placed && tokens.length > accepted ? tokens[accepted] : null;
      const origin = drafted === null || accepted < drafted ? "resampled" : "bonus";
      const label = t("remote_round", { round: index + 1, accepted, drafted: drafted ?? "?", text: placed ? text : t("remote_round_unplaced") });
      return el("div.draft-round", { role: "listitem" },
        el("button.remote-go", { type: "button", "aria-label": label, disabled: !placed, onclick: () => {
          const uid = app.run.uids[lane];
          app.select(uid, stop - 1);
          app.lanes.card(uid)?.strip.frame(start, stop);
        } }, String(index + 1)),
        el("span.draft-guesses", { "data-shade": "origin" }, guesses, extra ? [el("span.draft-arrow", {}, "→"), el("span.draft-extra.token", { "data-origin": origin }, extra.n)] : null, placed ? null : el("span.muted", {}, t("remote_round_unplaced"))),
        el("span.draft-ms", {}, `${accepted} / ${drafted ?? "?"}`));
    }));
  }
}

/** Numbers with their units, how each was got, and its formula. */
function quantityTable(rows) {
  return el("div.table-wrap", { tabindex: "0" }, el("table", {},
    el("thead", {}, el("tr", {}, ["what", "value", "how", "formula"].map((key) => el("th", { scope: "col" }, t(`draft_ledger_${key}`))))),
    el("tbody", {}, rows.map((row) => el("tr", { "data-row": row.name }, el("th", { scope: "row" }, said(row.label)), el("td.draft-value", {}, shownQuantity(row)), el("td.muted", {}, t(`how_${row.how}`)), el("td.draft-formula", {}, said(row.formula)))))));
}

function shownQuantity({ value, unit }) {
  if (typeof value !== "number") return "–";
  if (unit === "x") return `${value.toFixed(2)} ×`;
  if (unit === "1" || unit === "tokens") return `${Number.isInteger(value) ? value.toLocaleString() : value.toFixed(3)}${unit === "tokens" ? ` ${t("measure_tokens")}` : ""}`;
  const [shown, said_] = quantity(value, unit);
  return `${shown} ${said_ || (unit === "1/s" ? "1/s" : "")}`.trim();
}

/** Acceptance by position in the draft, as bars with both denominators. */
function positionTable(positions) {
  const cell = (share) => el("td", {}, share === null ? "–" : [el("span.position-bar", { style: `--p:${share}` }), share.toFixed(3)]);
  return el("div.table-wrap", { tabindex: "0" }, el("table", {},
    el("thead", {}, el("tr", {}, ["remote_position", "remote_position_all", "remote_position_reached"].map((key) => el("th", { scope: "col" }, t(key))))),
    el("tbody", {}, positions.map(([all, reached], index) => el("tr", {}, el("th", { scope: "row" }, String(index + 1)), cell(all), cell(reached))))));
}

/** A line to copy, with its button. */
function copyLine(text) {
  const button = el("button.secondary.small", { type: "button", onclick: async () => {
    await copyText(text);
    button.textContent = t("config_copied");
    setTimeout(() => { button.textContent = t("config_copy"); }, 1800);
  } }, t("config_copy"));
  return el("div.copy-line", {}, el("code", { tabindex: "0" }, text), button);
}

/** Which k, load by load: sentences, the server's setting, the table behind them. */
function verdictBlock(verdict) {
  const rows = verdict.levels.flatMap((level) => level.expected.map((one) => [said(level.level.text), one.k, one.tokens.value.toFixed(2), `${milliseconds(one.step.value)} (${t(`how_${one.step.how}`)})`, `${one.speed_up.value.toFixed(2)} × (${one.low.toFixed(2)}–${one.high.toFixed(2)})`]));
  return el("div.verdict-block", {},
    el("ul.verdict-levels", {}, verdict.levels.map((level) => el("li", { "data-k": String(level.k) }, said(level.sentence)))),
    verdict.config_text ? copyLine(`--speculative-config '${verdict.config_text}'`) : null,
    el("p.muted", {}, said(verdict.config_note)), el("p.muted", {}, said(verdict.confirm)),
    el("details.plot-table", {}, el("summary", {}, t("as_table")), tableOf([[t("load_level"), "k", t("load_tokens_step"), t("load_step"), t("load_expected")], ...rows])));
}

// --- the page ------------------------------------------------------------------------------

class ServersPage {
  constructor(app, root) {
    this.app = app;
    this.root = root;
    this.title = el("h2", { id: "playground-servers-title", tabindex: "-1" });
    this.lead = el("p.servers-lead");
    this.connect = el("section.servers-part", { "aria-labelledby": "playground-servers-connect" });
    this.address = el("input", { type: "url", maxlength: "300", spellcheck: "false", autocomplete: "off", placeholder: "http://gpu-box:8000" });
    this.alias = el("input", { type: "text", maxlength: "40", spellcheck: "false", autocomplete: "off" });
    this.load = new LoadPanel(app);
    this.pasted = new PastedPanel(app);
    root.append(el("header.parameters-head", {}, this.title, this.lead), this.connect, this.load.root, this.pasted.root);
    this.clock = null;
  }

  /** Show the page or leave it; what it needs is asked for when it is first opened. */
  turn(open) {
    const turned = open === this.root.hidden;
    this.app.root.classList.toggle("at-servers", open);
    this.root.hidden = !open;
    if (!open) {
      this.load.leave();
      return;
    }
    this.app.editor?.close();
    this.speak();
    if (turned) {
      scrollTo(0, 0);
      this.app.servers.load();
      this.load.open();
    }
  }

  speak() {
    if (this.root.hidden) return;
    this.title.textContent = t("page_servers");
    this.lead.textContent = t("servers_lead");
    this.drawConnect();
    this.load.draw();
    this.pasted.draw();
  }

  drawConnect() {
    if (this.root.hidden) return;
    const { servers } = this.app;
    const focused = this.connect.contains(document.activeElement) ? document.activeElement : null;
    const { all } = servers;
    const form = servers.public || servers.entries === null ? null : el("form.servers-form", { onsubmit: (event) => this.add(event) },
      el("label.field", {}, el("span.field-label", {}, t("servers_address")), this.address), el("label.field", {}, el("span.field-label", {}, t("servers_name")), this.alias),
      el("button.secondary", { type: "submit" }, t("servers_ask")));
    const how = servers.public ? null : el("details.servers-how", {}, el("summary", {}, t("servers_configure")), el("pre", {}, "PLAYGROUND_SERVERS=\"lab=http://gpu-box:8000 fast=https://llm.example.org\"\nPLAYGROUND_KEY_FAST=…"));
    this.connect.replaceChildren(...[
      el("h3.servers-h", { id: "playground-servers-connect" }, t("servers_connect")),
      servers.error ? el("p.error", { role: "alert" }, said(servers.error.text)) : null,
      servers.entries !== null && !all.length ? el("p.muted", {}, t(servers.public ? "servers_none_public" : "servers_none")) : null,
      form, all.length ? el("div.server-cards", {}, all.map((entry) => this.card(entry))) : null, how,
    ].filter(Boolean));
    if (focused && this.connect.contains(focused)) focused.focus({ preventScroll: true });
    // Where there is nothing to connect to, what works without comes first.
    if (servers.public && servers.entries?.length === 0) this.load.root.before(this.pasted.root);
    clearTimeout(this.clock);
    if (servers.asking.size) this.clock = setTimeout(() => this.drawConnect(), 1000);
  }

  add(event) {
    event.preventDefault();
    const url = this.address.value.trim().replace(/\/+$/, "");
    if (!url) return;
    this.app.servers.type(url, this.alias.value.trim());
    this.address.value = this.alias.value = "";
    this.app.servers.ask(url);
  }

  card(entry) {
    const { app } = this;
    const { servers } = app;
    const since = servers.asking.get(entry.name);
    const can = servers.can(entry.name);
    const problem = servers.problems.get(entry.name);
    const key = entry.key_env ? t(entry.key ? "servers_key_set" : "servers_key_missing", { name: entry.key_env }) : null;
    const room = app.request && app.whole && app.request.lanes.length < app.declarations.limits.lanes;
    const state = since !== undefined ? el("div.server-asking", { role: "status" }, el("p", {}, t("servers_asking", { name: entry.label, seconds: Math.round((performance.now() - since) / 1000) })), el("div.progress.unknown", {}, el("span")))
      : problem ? el("p.error", { role: "alert" }, said(problem.text)) : can ? capabilityTable(can) : el("p.muted", {}, t("servers_not_asked"));
    return el("article.server-card", { "data-server": entry.label },
      el("header", {}, el("h4", {}, entry.label), el("span.muted", {}, [entry.address, key, entry.configured ? null : t("servers_typed")].filter(Boolean).join(" · "))),
      state,
      el("div.row.server-tools", {},
        can && room ? el("button.secondary.small", { type: "button", onclick: () => this.addLane(entry) }, icon("plus"), t("servers_add_lane")) : null,
        can && app.request ? el("button.secondary.small", { type: "button", onclick: () => this.moveLanes(entry) }, t("servers_move_lanes")) : null,
        since === undefined && !(can && servers.public) ? el("button.secondary.small", { type: "button", onclick: () => servers.ask(entry.name, null, true) }, t(can || problem ? "servers_again" : "servers_ask")) : null,
        entry.configured ? null : el("button.secondary.small", { type: "button", onclick: () => servers.forget(entry.name) }, t("servers_forget"))));
  }

  addLane(entry) {
    const { app } = this;
    app.parameters.go("compare");
    app.insert({ name: entry.label, strategy: "greedy", server: entry.name }, app.request.lanes.length, false);
  }

  moveLanes(entry) {
    const { app } = this;
    app.parameters.go("compare");
    app.editRequest((request) => request.lanes.forEach((lane) => Object.assign(lane, { server: entry.name, model: null })));
  }
}

/** What a server can do, as a small table: a tick, a dash for what it can't, a question mark for what isn't known. */
function capabilityTable(can) {
  const mark = (value, more = "") => el("td", {}, el("span", { class: `can can-${value === null ? "unknown" : value ? "yes" : "no"}`, "aria-label": t(value === null ? "can_unknown" : value ? "can_yes" : "can_no") }, value === null ? "?" : value ? "✓" : "–"), more ? ` ${more}` : "");
  const plain = (text) => el("td", {}, text);
  const rows = [
    ["kind", plain([can.kind_name, can.version].filter(Boolean).join(" "))],
    ["models", plain(can.models.map(([name]) => name).join(", "))],
    ["context", plain(can.context === null ? "?" : t("can_tokens", { count: can.context.toLocaleString() }))],
    ["completions", mark(can.completions)], ["chat", mark(can.chat)], ["token_ids", mark(can.token_ids)],
    ["logprobs", mark(can.logprobs > 0, can.logprobs ? [t("can_logprobs_most", { count: can.logprobs }), can.scale ? t(`scale_${can.scale}`) : t("can_unknown")].join(" · ") : "")],
    ["usage", mark(can.usage)], ["request_metrics", mark(can.request_metrics)], ["request_speculation", mark(can.request_speculation)], ["metrics", mark(can.metrics)],
    ["speculation", mark(can.speculation)], ["beam", mark(can.beam_search, can.beam_search ? t("can_beam_note") : "")],
    ["refused", plain(can.refused.length ? can.refused.join(", ") : "–")],
  ];
  return el("table.capabilities", {}, el("tbody", {}, rows.map(([key, cell]) => el("tr", { "data-can": key }, el("th", { scope: "row" }, t(`can_${key}`)), cell))));
}

/** A box for a text that is pasted, or a file that is chosen or dropped. */
class PasteBox {
  constructor(key, most, changed) {
    this.key = key;
    this.most = most; // a function: the largest file, in MB
    this.text = "";
    this.name = "";
    this.changed = changed;
    this.area = el("textarea", { rows: "5", spellcheck: "false", autocomplete: "off", oninput: () => this.put(this.area.value, "") });
    this.input = el("input", { type: "file", hidden: true, onchange: () => this.read(this.input.files[0]) });
    this.label = el("span.field-label");
    this.told = el("span.muted");
    this.choose = el("button.secondary.small", { type: "button", onclick: () => this.input.click() });
    this.root = el("div.paste-box", {}, this.label, this.area, el("div.row", {}, this.choose, this.told, this.input));
    this.root.addEventListener("dragover", (event) => event.preventDefault());
    this.root.addEventListener("drop", (event) => {
      const [file] = event.dataTransfer?.files ?? [];
      if (!file) return;
      event.preventDefault();
      event.stopPropagation();
      this.root.dispatchEvent(new Event("dropped", { bubbles: true }));
      this.read(file);
    });
  }

  draw(textual) {
    this.label.textContent = t(this.key);
    this.area.hidden = !textual;
    this.area.placeholder = t("pasted_place");
    this.area.setAttribute("aria-label", t(this.key));
    this.choose.textContent = t("pasted_choose");
    this.told.textContent = this.name || t("pasted_drop");
  }

  async read(file) {
    if (!file) return;
    const most = this.most();
    if (file.size > most * 1e6) {
      this.put("", t("pasted_large", { most }));
      return;
    }
    const text = await file.text();
    if (file.size < 3e6 && !this.area.hidden) this.area.value = text;
    this.put(text, file.name);
  }

  put(text, name) {
    this.text = text;
    this.name = name;
    this.told.textContent = name || t("pasted_drop");
    this.changed();
  }
}

/** Verdicts from figures that somebody has: nothing is sent to any server. */
class PastedPanel {
  constructor(app) {
    this.app = app;
    this.mode = "metrics";
    const changed = () => this.drawButton();
    const fileLimit = () => (app.servers.public ? 10 : 50);
    this.boxes = {
      metrics: [new PasteBox("pasted_before", () => 5, changed), new PasteBox("pasted_after", () => 5, changed)],
      files: [new PasteBox("pasted_first", fileLimit, changed), new PasteBox("pasted_second", fileLimit, changed)],
    };
    this.seconds = el("input.number", { type: "text", inputmode: "decimal", autocomplete: "off" });
    this.title = el("h3.servers-h", { id: "playground-servers-pasted" });
    this.help = el("p.muted");
    this.modes = el("div.segmented", { role: "group" });
    this.inputs = el("div.paste-boxes");
    this.secondsField = el("label.field.paste-seconds", {}, el("span.field-label"), this.seconds);
    this.button = el("button.primary", { type: "button", onclick: () => this.ask() });
    this.result = el("div.pasted-result", { "aria-live": "polite" });
    this.root = el("section.servers-part", { "aria-labelledby": "playground-servers-pasted" }, this.title, this.help, this.modes, this.inputs, this.secondsField, el("div", {}, this.button), this.result);
  }

  draw() {
    this.title.textContent = t("pasted");
    this.help.textContent = t("pasted_help");
    this.modes.setAttribute("aria-label", t("pasted"));
    this.modes.replaceChildren(...Object.keys(this.boxes).map((mode) => el("button", { type: "button", "aria-pressed": String(mode === this.mode), onclick: () => {
      this.mode = mode;
      this.answer = this.problem = null;
      this.draw();
    } }, t(`pasted_${mode}`))));
    const boxes = this.boxes[this.mode];
    for (const box of boxes) box.draw(this.mode === "metrics");
    this.inputs.replaceChildren(...boxes.map((box) => box.root));
    this.secondsField.hidden = this.mode !== "metrics";
    this.secondsField.firstChild.textContent = t("pasted_seconds");
    this.button.textContent = t("pasted_go");
    this.drawButton();
    this.drawResult();
  }

  drawButton() {
    this.button.disabled = this.boxes[this.mode].some((box) => !box.text.trim());
  }

  async ask() {
    const [first, second] = this.boxes[this.mode].map((box) => box.text);
    const seconds = this.seconds.value.trim() ? asNumber(this.seconds.value) : null;
    this.button.disabled = true;
    const answer = await (this.mode === "metrics" ? this.app.call("pasted_snapshots", first, second, seconds) : this.app.call("pasted_bench", first, second));
    this.problem = answer.error ?? null;
    this.answer = answer.error ? null : answer;
    this.drawButton();
    this.drawResult();
  }

  drawResult() {
    const { answer, problem } = this;
    if (problem) return this.result.replaceChildren(el("p.error", { role: "alert" }, said(problem.text)));
    if (!answer) return this.result.replaceChildren();
    return this.result.replaceChildren(...[
      el("p.draft-verdict", {}, said(answer.verdict)),
      ...answer.notes.map((note) => el("p.muted.pasted-note", {}, said(note))),
      answer.which_k ? verdictBlock(answer.which_k) : null,
      answer.positions.length ? el("h4.plot-title", {}, t("draft_acceptance")) : null, answer.positions.length ? positionTable(answer.positions) : null,
      el("h4.plot-title", {}, t("draft_ledger")), el("div.draft-ledger", {}, quantityTable(answer.ledger.filter((row) => row.value !== null))),
    ].filter(Boolean));
  }
}
