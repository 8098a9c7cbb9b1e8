// Speculative decoding seen whole: where every token comes from, round by round, what it won or lost, and which k would pay.

Object.assign(TEXTS, {
  tab_speculation: { en: "Speculation", zh: "投机解码" },
  colour_origin: { en: "Origin", zh: "来源" },
  colour_help_origin: { en: "where a token of a speculative lane comes from; other lanes have no colour", zh: "投机解码通道中词元的来源；其他通道不着色" },
  origin_accepted: { en: "accepted draft", zh: "被接受的草稿" },
  origin_resampled: { en: "own choice after a rejection", zh: "拒绝后自行选择" },
  origin_bonus: { en: "bonus", zh: "奖励词元" },
  origin_plain: { en: "plain, no draft", zh: "普通（无草稿）" },
  draft_word_accepted: { en: "accepted", zh: "接受" },
  draft_word_rejected: { en: "rejected", zh: "拒绝" },
  draft_word_never: { en: "never judged", zh: "未判定" },
  draft_word_cut: { en: "accepted, behind the end", zh: "接受，但在结尾之后" },
  draft_told_accepted: { en: "A guess that stood: p {p}, q {q}, accepted with probability min(1, p/q) = {accept}{die}.", zh: "被接受的猜测：p {p}，q {q}，接受概率 min(1, p/q) = {accept}{die}。" },
  draft_told_resampled: { en: "The guess {guess} was rejected here: p {p}, q {q}, accept probability {accept}{die}. This token stands instead.", zh: "此处的猜测 {guess} 被拒绝：p {p}，q {q}，接受概率 {accept}{die}。改用这个词元。" },
  draft_told_bonus: { en: "All {count} guesses before it stood; the same forward gave this token on top.", zh: "之前的 {count} 个猜测全部成立；同一次前向额外给出此词元。" },
  draft_told_plain: { en: "No guess stood before it: {why}.", zh: "之前没有猜测：{why}。" },
  draft_die: { en: ", die u = {u}", zh: "，骰子 u = {u}" },
  draft_no_die: { en: " (greedy: p is 1 for the likeliest token, 0 for every other)", zh: "（贪心：最可能的词元 p 为 1，其余为 0）" },
  draft_why_no_match: { en: "the drafter found nothing", zh: "起草器没有找到" },
  draft_why_adaptive: { en: "guessing pauses, nothing was accepted lately", zh: "近来毫无接受，暂停猜测" },
  draft_why_max_new_tokens: { en: "only one token is left to write", zh: "只剩一个词元可写" },
  draft_why_context: { en: "the context is full", zh: "上下文已满" },
  draft_why_confidence: { en: "the drafter was in doubt", zh: "起草器没有把握" },
  draft_why_first: { en: "the prompt's own forward gives the first token", zh: "第一个词元来自提示词自身的前向" },
  draft_why_none: { en: "there was none", zh: "没有" },
  draft_limit_adaptive: { en: "fewer guesses: earlier ones failed", zh: "猜测减少：先前的失败了" },
  draft_limit_confidence: { en: "stopped at a doubtful guess", zh: "在没把握的猜测处停止" },
  draft_limit_max_new_tokens: { en: "cut by the length limit", zh: "受长度上限限制" },
  draft_limit_context: { en: "cut by the context", zh: "受上下文限制" },
  draft_limit_no_match: { en: "nothing found", zh: "没有找到" },
  draft_source_prompt: { en: "found in the prompt by {count} tokens", zh: "在提示词中以 {count} 个词元匹配" },
  draft_source_output: { en: "found in the output by {count} tokens", zh: "在输出中以 {count} 个词元匹配" },
  draft_source_earlier_run: { en: "found in an earlier run by {count} tokens", zh: "在先前的运行中以 {count} 个词元匹配" },
  draft_source_recorded: { en: "from the recorded answer", zh: "来自已有答案" },
  draft_head: { en: "{rounds} rounds · {accepted} of {drafted} guesses accepted", zh: "{rounds} 轮 · {drafted} 个猜测中接受 {accepted} 个" },
  draft_head_one: { en: "1 round · {accepted} of {drafted} guesses accepted", zh: "1 轮 · {drafted} 个猜测中接受 {accepted} 个" },
  draft_rounds: { en: "Round by round", zh: "逐轮查看" },
  draft_rounds_label: { en: "Rounds of {name}. Arrow keys walk; Enter selects the round's tokens.", zh: "{name} 的各轮。方向键移动；回车选中该轮的词元。" },
  draft_round_label: { en: "Round {round}: {guesses}. {extra}. {ms}.", zh: "第 {round} 轮：{guesses}。{extra}。{ms}。" },
  draft_round_none: { en: "no guess", zh: "没有猜测" },
  draft_round_ended: { en: "the text ended inside the draft", zh: "文本在草稿内结束" },
  draft_round_extra: { en: "then {token}, {origin}", zh: "随后 {token}，{origin}" },
  draft_bar_draft: { en: "draft", zh: "起草" },
  draft_bar_verify: { en: "verify (one forward)", zh: "验证（一次前向）" },
  draft_bar_rest: { en: "stages, choice, rollback", zh: "各阶段、选择、回滚" },
  draft_scale: { en: "bars to one scale", zh: "同一比例" },
  draft_choose: { en: "Choose a round: its guesses with p, q, the accept probability and the die.", zh: "选择一轮：查看其猜测的 p、q、接受概率与骰子。" },
  draft_guess: { en: "guess", zh: "猜测" },
  draft_verdict_word: { en: "verdict", zh: "判定" },
  draft_accept: { en: "accept probability", zh: "接受概率" },
  draft_acceptance: { en: "Acceptance by position in the draft", zh: "按草稿位置的接受率" },
  draft_histogram: { en: "Accepted per round", zh: "每轮接受数" },
  draft_rate: { en: "Acceptance along the text", zh: "沿文本的接受率" },
  draft_gain: { en: "Milliseconds won and lost", zh: "赢得与损失的毫秒" },
  draft_which_k: { en: "Three factors, and which k", zh: "三个因素，以及该猜多少个" },
  draft_factors_help: { en: "Speed-up = (h × tokens per round + 1 − h) ÷ (h × (k × draft cost + verify cost) + 1 − h), costs in plain steps. h is the drafter’s hit rate: a round in which it finds no guess is a plain step. Move a slider to ask “what if”: it needs no model.", zh: "加速 =（h × 每轮词元数 + 1 − h）÷（h ×（k × 起草代价 + 验证代价）+ 1 − h），代价以普通步计。h 是起草器的命中率：没有找到猜测的一轮就是普通的一步。移动滑块即可问“假如”：不需要模型。" },
  draft_factor_alpha: { en: "a guess is accepted", zh: "猜测被接受的概率" },
  draft_factor_draft: { en: "draft cost per guess", zh: "每个猜测的起草代价" },
  draft_factor_verify: { en: "verify cost per further position", zh: "每多验证一个位置的代价" },
  draft_factor_k: { en: "guesses per round (k)", zh: "每轮猜测数（k）" },
  draft_steps: { en: "steps", zh: "步" },
  draft_measured: { en: "measured", zh: "实测" },
  draft_estimated: { en: "estimated", zh: "估计" },
  draft_as_measured: { en: "Back to measured", zh: "恢复实测值" },
  draft_sum_hit: { en: "h = {hit}: the drafter had a guess in {rounds} of the {asked} rounds in which it was asked (the hit rate).", zh: "h = {hit}：起草器被询问的 {asked} 轮中有 {rounds} 轮有猜测（命中率）。" },
  draft_run_k: { en: "Run it with k = {k}", zh: "以 k = {k} 运行" },
  draft_run_plain: { en: "No k pays here: plain decoding is fastest", zh: "没有划算的 k：普通解码最快" },
  draft_same: { en: "The same as the target?", zh: "与目标模型相同吗？" },
  draft_test: { en: "Test it: {draws} short draws with and without guesses", zh: "检验：有无猜测各抽取 {draws} 次" },
  draft_testing: { en: "Testing: {done} of {draws} draws each. A run goes first.", zh: "检验中：各 {done} / {draws} 次抽取。运行优先。" },
  draft_test_help: { en: "χ² over the pairs of second and third token, rare pairs pooled, seeds all different.", zh: "对第二、第三个词元组成的对做 χ² 检验，罕见的对合并，种子各不相同。" },
  draft_round_name: { en: "Round {round}", zh: "第 {round} 轮" },
  draft_unit_rounds: { en: "rounds", zh: "轮" },
  draft_unit_token: { en: "token", zh: "词元" },
  draft_unit_tokens: { en: "tokens", zh: "词元" },
  draft_unit_round: { en: "round", zh: "轮" },
  draft_ledger: { en: "The ledger", zh: "账本" },
  draft_ledger_what: { en: "what", zh: "项目" },
  draft_ledger_value: { en: "value", zh: "数值" },
  draft_ledger_how: { en: "how", zh: "来源" },
  draft_ledger_formula: { en: "formula and denominator", zh: "公式与分母" },
  draft_identity: { en: "Who, what, where", zh: "对象与环境" },
  draft_server: { en: "On a server", zh: "在服务器上" },
  draft_add_plain: { en: "Add the plain lane and run", zh: "添加普通通道并运行" },
  draft_plain_name: { en: "plain", zh: "普通" },
  draft_pairs: { en: "Try the pair, plain and speculative:", zh: "试试普通与投机这一对：" },
  draft_pair_copying: { en: "on code to be rewritten", zh: "改写代码" },
  draft_pair_not_copying: { en: "on a story to be invented", zh: "编一个故事" },
  draft_others: { en: "Drafters that need training: on a server", zh: "需要训练的起草器：在服务器上" },
  draft_others_help: { en: "These need weights trained for the very model, so this page doesn't run them: a server does. Add one as a lane, and its own figures of acceptance stand here.", zh: "它们需要专为该模型训练的权重，因此本页不运行它们，而由服务器运行。把服务器加为通道，即可在此看到它报告的接受情况。" },
  draft_card_medusa: { en: "Extra heads on the target's last hidden state, each guessing one position further ahead, all at once. Their guesses form a tree that one forward verifies.", zh: "在目标模型最后的隐藏状态上加若干头，各自同时猜更远一个位置。猜测构成一棵树，由一次前向验证。" },
  draft_needs_medusa: { en: "Needs heads trained for this model. Its “typical acceptance” is lossy when sampling.", zh: "需要为此模型训练的头。采样时其 “typical acceptance” 是有损的。" },
  draft_card_eagle: { en: "A small autoregressive head that continues the target's own features (EAGLE-3: of several layers) and guesses token after token, in its later versions as a tree.", zh: "一个小型自回归头，延续目标模型自身的特征（EAGLE-3：多层特征），逐个猜词元；较新版本猜成一棵树。" },
  draft_needs_eagle: { en: "Needs a head trained for this model, with a KV cache of its own. Lossless.", zh: "需要为此模型训练的头，并有自己的 KV 缓存。无损。" },
  draft_card_mtp: { en: "Multi-token prediction: layers that the model was pretrained with guess the token after the next one, and on from there.", zh: "多词元预测：模型预训练时自带的层，猜测再下一个词元，并可继续往后。" },
  draft_needs_mtp: { en: "Needs a model that brings them (DeepSeek-V3 and others); nothing to train. Lossless.", zh: "需要自带这些层的模型（如 DeepSeek-V3）；无需训练。无损。" },
  draft_with: { en: "vLLM:", zh: "vLLM：" },
});

/** Level 0 throughout: origins are told by shape and colour of their own. */
COLOUR_SCALES.origin = { edges: [], level: () => 0, legend: () => originLegend() };

const ORIGINS = ["accepted", "resampled", "bonus", "plain"];
const GUESS_STATES = { a: "accepted", r: "rejected", n: "never", c: "cut" };
const GUESS_SIGNS = { a: "✓", r: "✗", n: "·", c: "✂" };
const DRAFT_PLOTS = [["draft_acceptance", "draft_positions"], ["draft_histogram", "draft_histogram"], ["draft_rate", "draft_rate"], ["draft_gain", "draft_gain"]];
const DRAFT_CARDS = { medusa: '{"method": "medusa", "model": "…"}', eagle: '{"method": "eagle3", "model": "…", "num_speculative_tokens": 3}', mtp: '{"method": "mtp", "num_speculative_tokens": 1}' };
const FACTORS = { alpha: [0, 1, 0.01], draft: [0, 1, 0.01], verify: [0, 1, 0.01] };

const speculative = (strategy) => Boolean(strategy?.startsWith("speculative"));

function originLegend() {
  return el("ul.legend.origins", { "data-shade": "origin" }, ORIGINS.map((origin) => el("li", {}, el("span.token", { "data-origin": origin }, t(`origin_${origin}`)))));
}

/** How many tokens a round wrote. */
const written = (round) => round.g.filter(([, , state]) => state === "a").length + (round.e ? 1 : 0);

/** The round that wrote the token at a position. */
function roundOf(log, position) {
  for (let at = log.drafts.length - 1; at >= 0; at--) {
    const round = log.drafts[at];
    if (round.p <= position) return position < round.p + written(round) ? round : null;
  }
  return null;
}

/** p, q and min(1, p/q) in as few digits as give the accept probability that is shown, from p and q as they are shown. */
function judgement(p, q, accept) {
  const shown = (value, digits) => (value === null || value === undefined ? "–" : value === 0 || value === 1 ? probability(value) : value < 1e-6 ? value.toExponential(digits - 1) : value.toPrecision(digits));
  let digits = 2;
  while (digits < 5 && typeof p === "number" && q > 0 && probability(Math.min(1, shown(p, digits) / shown(q, digits))) !== probability(accept)) digits += 1;
  return { p: shown(p, digits), q: shown(q, digits), accept: probability(accept) };
}

/** In a token's window: what the round of its own says of it. */
function draftFacts(app, token, uid) {
  const log = app.run?.lane(uid);
  if (!log?.drafts.length || !ORIGINS.includes(token.o)) return null;
  const round = roundOf(log, token.p);
  const guess = round?.g[token.p - round.p] ?? null;
  const [, name, , q, p, accept, u] = guess ?? [];
  const values = { guess: name, ...judgement(p, q, accept), die: u === null || u === undefined ? t("draft_no_die") : t("draft_die", { u: u.toFixed(3) }), count: round?.g.length };
  if (token.o === "plain") values.why = t(token.p === 0 ? "draft_why_first" : `draft_why_${round?.l ?? "none"}`);
  return el("p.draft-told", {}, el("span.token", { "data-origin": token.o }, t(`origin_${token.o}`)), " ", t(`draft_told_${token.o}`, values));
}

/** The rounds as rows: guesses, cut, extra token, and times to one scale. */
class Rounds {
  constructor(app, chosen) {
    this.app = app;
    this.chosen = chosen;
    this.box = el("div.draft-rounds", { role: "listbox", tabindex: "-1" });
    this.box.addEventListener("click", (event) => this.pick(event.target.closest(".draft-round"), false));
    this.box.addEventListener("keydown", (event) => this.keyed(event));
    this.clear(null);
  }

  clear(log) {
    this.log = log;
    this.rows = [];
    this.selected = null;
    this.longest = 0;
    this.box.replaceChildren();
  }

  grow(log) {
    if (log !== this.log || log.drafts.length < this.rows.length) this.clear(log);
    if (this.rows.length === log.drafts.length) return;
    const atEnd = this.box.scrollTop + this.box.clientHeight >= this.box.scrollHeight - 30;
    const fresh = log.drafts.slice(this.rows.length).map((round) => this.row(round));
    this.rows.push(...fresh);
    this.box.append(...fresh);
    if (this.selected === null) this.rows[0].tabIndex = 0;
    this.box.style.setProperty("--longest", String(this.longest || 1));
    if (atEnd && this.app.run.state.phase === "running") this.box.scrollTop = this.box.scrollHeight;
  }

  row(round) {
    const [draft, verify, select, rollback] = round.s;
    const whole = draft + verify + select + rollback;
    this.longest = Math.max(this.longest, whole);
    const cut = round.g.findIndex(([, , state]) => state === "r" || state === "c");
    const guesses = round.g.map(([, name, state], index) => [index === cut ? el("span.draft-cut", {}) : null, el(`span.draft-guess.${GUESS_STATES[state]}`, {}, el("i", {}, GUESS_SIGNS[state]), name)]).flat().filter(Boolean);
    const extra = round.e ? el("span.draft-extra.token", { "data-origin": round.o }, round.e[1]) : null;
    const said = round.g.map(([, name, state]) => `${name} ${t(`draft_word_${GUESS_STATES[state]}`)}`).join(", ") || t("draft_round_none");
    const label = t("draft_round_label", { round: round.r + 1, guesses: said, extra: round.e ? t("draft_round_extra", { token: round.e[1], origin: t(`origin_${round.o}`) }) : t("draft_round_ended"), ms: milliseconds(whole) });
    const bar = (kind, seconds) => el(`span.draft-part.${kind}`, { style: `--s:${seconds}` });
    return el("div.draft-round", { role: "option", tabindex: "-1", "aria-selected": "false", "aria-label": label, "data-round": String(round.r) },
      el("span.draft-number", {}, String(round.r + 1)),
      el("span.draft-guesses", { "data-shade": "origin" }, guesses, guesses.length ? el("span.draft-arrow", {}, "→") : null, extra),
      el("span.draft-bar", {}, bar("drafting", draft), bar("verifying", verify), bar("rest", select + rollback)),
      el("span.draft-ms", {}, milliseconds(whole)));
  }

  pick(row, focus) {
    if (!row) return;
    const before = this.selected === null ? this.rows[0] : this.rows[this.selected];
    before.setAttribute("aria-selected", "false");
    before.classList.remove("selected");
    before.tabIndex = -1;
    this.selected = Number(row.dataset.round);
    row.setAttribute("aria-selected", "true");
    row.classList.add("selected");
    row.tabIndex = 0;
    if (focus) row.focus({ preventScroll: true });
    const top = row.offsetTop - this.box.offsetTop;
    if (top < this.box.scrollTop) this.box.scrollTop = top - 6;
    else if (top + row.offsetHeight > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + row.offsetHeight - this.box.clientHeight + 6;
    this.chosen(this.log.drafts[this.selected]);
  }

  keyed(event) {
    const row = event.target.closest(".draft-round");
    if (!row || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = Number(row.dataset.round);
    const last = this.rows.length - 1;
    const to = { ArrowUp: at - 1, ArrowLeft: at - 1, ArrowDown: at + 1, ArrowRight: at + 1, Home: 0, End: last, Enter: at, " ": at }[event.key];
    if (to === undefined) return;
    this.pick(this.rows[Math.max(0, Math.min(last, to))], true);
    event.preventDefault();
  }
}

/** The expected speed-up over k, for the factors as the sliders have them. */
class WhichK extends Plot {
  constructor(app, panel) {
    super(app, "draft_which_k");
    this.panel = panel;
  }

  key() {
    const { app, panel } = this;
    if (!app.run?.about || !panel.tables) return null;
    return { run: app.run.id, view: app.viewed, lane: panel.lane, factors: panel.moved, state: panel.loaded, theme: app.theme(), language, narrow: this.root.clientWidth < 560 };
  }

  async ask(key) {
    const answer = await this.app.call("which_k", key.view, key.lane, key.factors, { theme: key.theme, language: key.language, narrow: key.narrow });
    if (!answer.error) this.panel.curve = answer;
    return answer;
  }

  /** What a slider was moved for is answered in words, too, which may be in sight where the picture isn't. */
  get wanted() {
    return this.inView || this.panel.stale;
  }

  told() {
    this.panel.stale = false;
    this.panel.drawFactors();
  }
}

/** Everything about the guesses of the lane in focus. */
class SpeculationPanel {
  constructor(app) {
    this.app = app;
    this.tables = null; // what the server knows of the lane
    this.curve = null;
    this.moved = {}; // the factors that somebody moved
    this.stale = false; // whether the curve isn't theirs yet
    this.k = null;
    this.head = el("p.where");
    this.verdict = el("p.draft-verdict", { "aria-live": "polite" });
    this.offer = el("div.row.draft-offer");
    this.rounds = new Rounds(app, (round) => this.choose(round));
    this.legend = el("p.draft-legend");
    this.detail = el("div.draft-detail", { "aria-live": "polite" });
    this.plots = DRAFT_PLOTS.map(([, name]) => new Plot(app, name));
    this.which = new WhichK(app, this);
    this.factors = el("div.draft-factors");
    this.sum = el("p.draft-sum", { "aria-live": "polite" });
    this.run = el("button.primary.draft-run", { type: "button", onclick: () => this.runBest() });
    this.back = el("button.secondary.small", { type: "button", "data-t": "draft_as_measured", onclick: () => this.move({}) });
    this.same = el("div.draft-same");
    this.table = el("div.draft-ledger");
    this.cards = el("div.draft-cards");
    this.pairs = el("div.row.draft-pairs");
    const title = (key) => el("h3.plot-title", { "data-t": key });
    this.root = el("section.panel.speculation", {}, el("div.panel-head", {}, this.head), this.verdict, this.offer,
      title("draft_rounds"), this.rounds.box, this.legend, this.detail,
      el("div.draft-figures", {}, DRAFT_PLOTS.map(([key], index) => el("div", {}, title(key), this.plots[index].root))),
      title("draft_which_k"), el("p.beam-note", { "data-t": "draft_factors_help" }),
      el("div.draft-factor-box", {}, el("div", {}, this.factors, this.sum, el("div.row", {}, this.run, this.back)), this.which.root),
      title("draft_same"), this.same, title("draft_ledger"), this.table, this.pairs, title("draft_others"), el("p.beam-note", { "data-t": "draft_others_help" }), this.cards);
    this.soon = debounced(() => this.which.want(), 120);
    this.loading = new Asking(() => this.load());
  }

  /** Whether the lane in focus guesses ahead. */
  get relevant() {
    const { app } = this;
    return Boolean(app.run && app.seen.lanes[app.focused().lane]?.drafts.length);
  }

  draw() {
    const { app } = this;
    const { lane, uid } = app.focused();
    const log = app.seen.lanes[lane];
    this.root.style.setProperty("--lane", app.colourOf(uid));
    const key = `${app.run.id}.${lane}`;
    if (this.shown !== key) {
      this.shown = key;
      this.loading.forget();
      Object.assign(this, { lane, tables: null, curve: null, loaded: null, moved: {}, k: null, told: null, test: null });
      this.rounds.clear(log);
      this.forget();
      for (const box of [this.table, this.same, this.verdict, this.offer, this.factors, this.sum]) box.replaceChildren();
      this.run.hidden = true;
    }
    if (this.spoken !== language) this.speak(log);
    this.rounds.box.setAttribute("aria-label", t("draft_rounds_label", { name: app.laneName(uid, app.run.about?.lanes[lane]) }));
    this.rounds.grow(log);
    this.drawHead(uid, log);
    for (const plot of [...this.plots, this.which]) plot.want();
    this.verdict.setAttribute("aria-live", app.moving ? "off" : "polite"); // what changes all the time is not read out
    this.loaded = `${key}.${app.viewed}.${app.run.live ? Math.floor(log.drafts.length / 8) : "over"}`;
    this.loading.want(this.loaded);
  }

  speak(log) {
    const { app } = this;
    const first = this.spoken === undefined;
    this.spoken = language;
    const bar = (kind, key) => el("span.draft-key", {}, el(`span.draft-part.${kind}`), t(key));
    this.legend.replaceChildren(...["a", "r", "n", "c"].map((state) => el("span.draft-key", {}, el(`span.draft-guess.${GUESS_STATES[state]}`, {}, el("i", {}, GUESS_SIGNS[state])), t(`draft_word_${GUESS_STATES[state]}`))),
      bar("drafting", "draft_bar_draft"), bar("verifying", "draft_bar_verify"), bar("rest", "draft_bar_rest"), el("span", {}, t("draft_scale")));
    this.cards.replaceChildren(...Object.entries(DRAFT_CARDS).map(([name, config]) => el("article.draft-card", {},
      el("h4", {}, name === "mtp" ? "MTP" : name === "eagle" ? "EAGLE" : "Medusa"), el("p", {}, t(`draft_card_${name}`)), el("p", {}, t(`draft_needs_${name}`)), el("p.muted", {}, t("draft_with"), " ", el("code", {}, `--speculative-config '${config}'`)))));
    this.pairs.replaceChildren(el("span", {}, t("draft_pairs")), ...["copying", "not_copying"].map((name) =>
      el("button.secondary.small", { type: "button", onclick: () => app.askPair(name) }, t(`draft_pair_${name}`))));
    if (!first) this.rounds.clear(log);
    this.forget();
    if (this.tables) this.drawTables();
  }

  drawHead(uid, log) {
    const { app } = this;
    const guesses = log.drafts.flatMap((round) => round.g);
    const values = { rounds: log.drafts.length, drafted: guesses.length, accepted: guesses.filter(([, , state]) => state === "a" || state === "c").length };
    const text = `${values.rounds}.${values.drafted}.${uid}.${language}.${app.laneName(uid)}`;
    if (this.told === text) return;
    this.told = text;
    this.head.replaceChildren(el("span.swatch", { "aria-hidden": "true" }), el("b", {}, app.laneName(uid, app.run.about?.lanes[this.lane])), el("span.muted", {}, ` · ${t(values.rounds === 1 ? "draft_head_one" : "draft_head", values)}`));
    for (const button of this.pairs.querySelectorAll("button")) button.disabled = !app.whole || app.live;
  }

  // --- one round ---------------------------------------------------------------------------

  forget() {
    this.detail.replaceChildren(el("p.muted", {}, t("draft_choose")));
  }

  choose(round) {
    const { app } = this;
    const uid = app.run.uids[this.lane];
    const count = written(round);
    if (count) app.select(uid, round.p + count - 1);
    app.lanes.card(uid)?.strip.frame(round.p, round.p + count);
    const shown = (value) => (value === null || value === undefined ? "–" : value.toFixed(3));
    const facts = [
      round.f ? t(`draft_source_${round.f}`, { count: round.m ?? "?" }) : null, round.l && round.g.length ? t(`draft_limit_${round.l}`) : null,
      round.g.length ? null : t("draft_told_plain", { why: t(`draft_why_${round.l ?? "none"}`) }),
      round.e ? t("draft_round_extra", { token: round.e[1], origin: t(`origin_${round.o}`) }) : t("draft_round_ended"),
      [["draft_bar_draft", 0], ["draft_bar_verify", 1]].map(([key, index]) => `${t(key)} ${milliseconds(round.s[index])}`).join(", "),
    ].filter(Boolean);
    const rows = round.g.map(([, name, state, q, p, accept, u]) => {
      const judged = judgement(p, q, accept);
      return [name, `${GUESS_SIGNS[state]} ${t(`draft_word_${GUESS_STATES[state]}`)}`, judged.p, judged.q, judged.accept, shown(u)];
    });
    this.detail.replaceChildren(el("p", {}, el("b", {}, t("draft_round_name", { round: round.r + 1 })), ` · ${facts.join(" · ")}`),
      ...(rows.length ? [tableOf([[t("draft_guess"), t("draft_verdict_word"), "p", "q", t("draft_accept"), "u"], ...rows])] : []));
  }

  // --- the ledger --------------------------------------------------------------------------

  async load() {
    const { app } = this;
    const key = this.shown;
    const answer = await app.call("speculation", app.viewed, this.lane);
    if (this.shown !== key) return;
    if (answer.error) {
      if (answer.error.code === "lost") this.loading.forget(); // asked again at the next drawing
      return;
    }
    this.tables = answer;
    this.drawTables();
    this.which.want();
    if (!this.test && !app.run.live && this.draws) this.ask(); // it may be on, or have ended, since somebody looked elsewhere
  }

  drawTables() {
    const { app, tables } = this;
    this.verdict.textContent = said(tables.verdict);
    this.verdict.dataset.won = tables.won === null ? "unknown" : tables.won >= 1.03 ? "yes" : tables.won > 0.97 ? "even" : "no";
    const uid = app.run.uids[this.lane];
    const here = app.request.lanes.some((lane) => lane.uid === uid) && app.request.lanes.length < app.declarations.limits.lanes;
    const add = tables.plain === null && here ? el("button.primary", { type: "button", disabled: !app.whole || app.live || !app.ready, onclick: () => this.addPlain(uid) }, t("draft_add_plain")) : null;
    this.offer.replaceChildren(...[add].filter(Boolean));
    this.drawSame();
    const shown = ({ shown: [value, unit] }) => `${value} ${unit.includes(" ") ? "" : TEXTS[`draft_unit_${unit}`] ? t(`draft_unit_${unit}`) : unit}`.trim();
    const body = [];
    const group = (text) => body.push(el("tr.draft-group", {}, el("th", { colspan: "4", scope: "colgroup" }, text)));
    group(t("draft_identity"));
    for (const [label, value] of tables.identity) body.push(el("tr", {}, el("th", { scope: "row" }, said(label)), el("td.draft-identity", { colspan: "3" }, typeof value === "string" ? value : said(value))));
    for (const [name, label] of Object.entries(tables.groups)) {
      group(said(label));
      for (const row of tables.rows.filter((one) => one.group === name)) {
        body.push(el("tr", { "data-row": row.name }, el("th", { scope: "row" }, said(row.label)), el("td.draft-value", {}, shown(row)), el("td.muted", {}, t(`how_${row.how}`)), el("td.draft-formula", {}, said(row.formula))));
      }
    }
    group(t("draft_server"));
    body.push(el("tr", {}, el("td", { colspan: "4" }, said(tables.refusal))));
    this.table.replaceChildren(el("div.table-wrap", { tabindex: "0" }, el("table", {},
      el("thead", {}, el("tr", {}, ["what", "value", "how", "formula"].map((key) => el("th", { scope: "col" }, t(`draft_ledger_${key}`))))), el("tbody", {}, body))));
    this.drawFactors();
  }

  /** The words on the plain lane, and for a lane that draws the test of its distribution. */
  drawSame(test = this.test) {
    const { app, tables } = this;
    this.test = test;
    const begin = el("button.secondary.small.draft-test", { type: "button", disabled: !app.whole || !app.ready || app.live || test?.state === "running", onclick: () => this.ask(true) }, t("draft_test", { draws: test?.draws ?? 200 }));
    const told = test?.state === "running" ? t("draft_testing", test) : test?.verdict ? said(test.verdict) : test?.error ? said(test.error.text) : t("draft_test_help");
    this.same.replaceChildren(el("p", {}, said(tables.same)), ...(this.draws ? [el("div.row", {}, begin, el("span", { class: test?.error ? "error" : test?.verdict ? "draft-test-told" : "muted", "aria-live": "polite" }, told))] : []));
  }

  /** Whether the lane samples: then its distribution can be tested. */
  get draws() {
    return this.app.run.about?.lanes[this.lane].strategy === "speculative_sample";
  }

  /** Begin the test, or look how far it is; it ends when nobody looks any more. */
  async ask(begin = false) {
    const { app, shown } = this;
    const answer = await app.call("same_test", app.run.id, this.lane, begin);
    if (this.shown !== shown) return;
    this.drawSame(answer.state ? answer : { state: "failed", error: answer.error });
    if (answer.state === "running") setTimeout(() => this.shown === shown && this.ask(), 1000);
  }

  /** The plain lane before the speculative one: what it does without guesses. */
  addPlain(uid) {
    const { app, tables } = this;
    const at = app.request.lanes.findIndex((lane) => lane.uid === uid);
    const { uid: _, ...lane } = clone(app.request.lanes[at]);
    app.setStrategy(lane, tables.plain_strategy);
    app.insert({ ...lane, name: t("draft_plain_name") }, at, false);
    app.start(false);
  }

  // --- three factors -----------------------------------------------------------------------

  move(factors) {
    this.moved = factors;
    this.stale = true;
    this.drawFactors();
    this.soon();
  }

  drawFactors() {
    const { tables, curve, moved } = this;
    if (!tables) return;
    const known = tables.factors ?? { alpha: 0.7, draft: 0.05, verify: 0.1 };
    if (this.k === null) this.k = tables.k ?? 4;
    const key = `${language}.${this.shown}`;
    if (this.slidersOf !== key || !this.factors.children.length) {
      this.slidersOf = key;
      this.sliders = Object.fromEntries([...Object.keys(FACTORS), "k"].map((name) => {
        const [low, high, step] = FACTORS[name] ?? [0, 12, 1];
        const slider = el("input.slider", { type: "range", min: String(low), max: String(high), step: String(step), "aria-label": t(`draft_factor_${name}`) });
        slider.addEventListener("input", () => {
          if (name === "k") {
            this.k = Number(slider.value);
            this.drawFactors();
          } else this.move({ ...this.moved, [name]: Number(slider.value) });
        });
        return [name, { slider, value: el("output.draft-factor-value"), how: el("span.draft-factor-how") }];
      }));
      this.factors.replaceChildren(...Object.entries(this.sliders).map(([name, part]) => el("div.draft-factor", { "data-factor": name }, el("span.field-label", {}, t(`draft_factor_${name}`)), part.slider, part.value, part.how)));
    }
    for (const [name, part] of Object.entries(this.sliders)) {
      const [low, high] = FACTORS[name] ?? [0, 12];
      const value = name === "k" ? this.k : moved[name] ?? known[name];
      if (document.activeElement !== part.slider || Number(part.slider.value) !== value) part.slider.value = String(value);
      part.slider.style.setProperty("--at", `${(100 * (Math.min(high, value) - low)) / (high - low)}%`);
      part.value.textContent = name === "k" ? String(value) : name === "alpha" ? value.toFixed(2) : `${value.toFixed(2)} ${t("draft_steps")}`;
      const estimated = name !== "k" && (name in moved || !tables.factors);
      part.how.textContent = name === "k" ? "" : t(estimated ? "draft_estimated" : "draft_measured");
      part.how.classList.toggle("estimated", estimated);
    }
    this.back.hidden = !Object.keys(moved).length;
    const sum = curve?.sums[this.k];
    this.sum.textContent = sum ? [said(sum.text), curve.hit ? t("draft_sum_hit", { hit: sum.hit, rounds: curve.hit[0], asked: curve.hit[1] }) : null].filter(Boolean).join(". ") : "";
    this.drawRun();
  }

  drawRun() {
    const { app, curve } = this;
    const uid = app.run.uids[this.lane];
    this.run.hidden = !curve || !app.request.lanes.some((lane) => lane.uid === uid && speculative(lane.strategy));
    if (this.run.hidden) return;
    this.run.textContent = curve.best ? t("draft_run_k", { k: curve.best }) : t("draft_run_plain");
    this.run.disabled = !curve.best || !app.whole || !app.canStart;
  }

  runBest() {
    const { app, curve } = this;
    const uid = app.run.uids[this.lane];
    app.edit(uid, (lane) => Object.assign(lane.knobs, { k: curve.best, schedule: "fixed" }));
    app.start(false);
  }
}
