// Beam search seen whole: the tree as it grows, the obituary of every candidate, other scores, the cost and the variety of the beams.

Object.assign(TEXTS, {
  tab_beams: { en: "Beams", zh: "束" },
  beam_switched: { en: "Best beam changed · tokens replaced: {count}", zh: "最好的束换了 · 替换词元：{count}" },
  beam_switched_here: { en: "At step {step} another beam became the best one: the {count} tokens that stood from here on were replaced (switches here: {times}).", zh: "第 {step} 步时另一个束成为最好：从此处起的 {count} 个词元被替换（此处共切换 {times} 次）。" },
  sentence_beam: { en: "went on with {token} because the beam it belongs to has the best sum: {raw} in the model, {final} after the stages.", zh: "以 {token} 继续，因为它所在的束总和最高：模型给 {raw}，各阶段之后 {final}。" },
  no_die_beam: { en: "no die: the beam with the best sum is shown", zh: "不掷骰子：显示总和最高的束" },
  beam_tree_label: { en: "Tree of the beam search of {name}. Arrow keys walk: left to the parent, right to the child, up and down within a step.", zh: "{name} 的束搜索树。方向键移动：左到父节点，右到子节点，上下在同一步内。" },
  beam_head: { en: "step {step} · {living} beams alive · {finished} finished", zh: "第 {step} 步 · {living} 个束存活 · {finished} 个已完成" },
  beam_head_over: { en: "{step} steps · over: {ending} · {finished} finished texts", zh: "{step} 步 · 结束：{ending} · {finished} 个完成的文本" },
  beam_head_switches: { en: "the best beam changed {count} times", zh: "最好的束切换了 {count} 次" },
  beam_ending_early_stop: { en: "as many texts as beams had finished", zh: "完成的文本数已达到束数" },
  beam_ending_no_better: { en: "no beam could do better", zh: "没有束能更好" },
  beam_ending_length: { en: "length limit", zh: "达到长度上限" },
  beam_ending_context: { en: "context full", zh: "上下文已满" },
  beam_dropped: { en: "Dropped", zh: "被丢弃的" },
  beam_dropped_none: { en: "hide", zh: "隐藏" },
  beam_dropped_few: { en: "nearest 3", zh: "最接近的 3 个" },
  beam_dropped_all: { en: "all", zh: "全部" },
  beam_collapse: { en: "Collapse what all beams share", zh: "折叠所有束共有的部分" },
  beam_zoom_in: { en: "Zoom in", zh: "放大" },
  beam_zoom_out: { en: "Zoom out", zh: "缩小" },
  beam_fit: { en: "Whole tree", zh: "整棵树" },
  beam_shared: { en: "{count} shared", zh: "共有 {count} 个" },
  beam_legend_best: { en: "best", zh: "最好" },
  beam_legend_living: { en: "alive", zh: "存活" },
  beam_legend_dead: { en: "died out", zh: "已消亡" },
  beam_legend_dropped: { en: "dropped", zh: "被丢弃" },
  beam_legend_ended: { en: "■ finished: rank, score", zh: "■ 已完成：名次、得分" },
  beam_fate_k: { en: "kept", zh: "保留" },
  beam_fate_f: { en: "finished", zh: "完成" },
  beam_fate_d: { en: "dropped", zh: "丢弃" },
  beam_reason_beaten: { en: "beaten", zh: "被击败" },
  beam_reason_ended_too_low: { en: "ended, but too low", zh: "结束但名次太低" },
  beam_reason_worse_than_finished: { en: "worse than all finished", zh: "比已完成的都差" },
  beam_reason_early_stop: { en: "search over", zh: "搜索已结束" },
  beam_node_label: { en: "step {step}, {name}, {fate}, sum {sum}", zh: "第 {step} 步，{name}，{fate}，和 {sum}" },
  beam_log: { en: "log-probability of the token", zh: "该词元的对数概率" },
  beam_sum: { en: "sum so far (s)", zh: "目前的和（s）" },
  beam_ranked: { en: "if it ended here: s / n^{penalty}", zh: "若在此结束：s / n^{penalty}" },
  beam_gap: { en: "short of it by", zh: "差距" },
  beam_length: { en: "length (n)", zh: "长度（n）" },
  beam_group: { en: "group", zh: "组" },
  beam_diversity: { en: "diversity penalty", zh: "多样性惩罚" },
  beam_rank: { en: "rank", zh: "名次" },
  beam_rank_of: { en: "{rank} of {count} recorded", zh: "已记录的 {count} 个中第 {rank}" },
  beam_choose: { en: "Choose a node: the text to it, its scores, and what became of it.", zh: "选择一个节点：查看到它为止的文本、分数与结局。" },
  beam_show: { en: "Show in the lane", zh: "在通道中显示" },
  beam_compute: { en: "Read it again with the model", zh: "用模型重新计算" },
  beam_not_recorded: { en: "Its distribution was not recorded: this beam was never the best one.", zh: "它的分布没有记录：这个束从未是最好的。" },
  beam_needs_model: { en: "The model is not loaded.", zh: "模型未加载。" },
  beam_pipeline: { en: "The distribution that it was taken from", zh: "它所来自的分布" },
  beam_scores: { en: "Which text wins under which score", zh: "不同评分下哪个文本胜出" },
  beam_penalty: { en: "Length penalty p", zh: "长度惩罚 p" },
  beam_penalty_own: { en: "as run: {value}", zh: "运行时：{value}" },
  beam_text: { en: "text", zh: "文本" },
  beam_ended: { en: "ended by", zh: "结束原因" },
  beam_more: { en: "{count} more recorded texts rank below.", zh: "另有 {count} 个已记录的文本排在后面。" },
  beam_no_texts: { en: "No text has finished yet.", zh: "还没有文本完成。" },
  beam_formulas: { en: "s: sum of log-probabilities; n: output tokens, the end token included; prompt: {prompt} tokens; p: length penalty. The number before each score is its rank; derived from recorded sums.", zh: "s：对数概率之和；n：输出词元数（含结束符）；提示词：{prompt} 个词元；p：长度惩罚。每个得分前的数字是名次；由记录的和推导。" },
  beam_cost: { en: "What it costs", zh: "代价" },
  beam_cost_what: { en: "per step", zh: "每步" },
  beam_cost_beams: { en: "this lane", zh: "此通道" },
  beam_cost_greedy: { en: "greedy lane", zh: "贪心通道" },
  beam_cost_ratio: { en: "÷ greedy", zh: "÷ 贪心" },
  beam_no_greedy: { en: "no greedy lane in this race", zh: "本场没有贪心通道" },
  beam_kv: { en: "KV cache by beam", zh: "各束的 KV 缓存" },
  beam_variety: { en: "How alike the beams are", zh: "各束有多相似" },
  beam_repetition: { en: "share of 4-grams that stood there before", zh: "重复出现的 4 元组占比" },
  beam_lane: { en: "lane", zh: "通道" },
  beam_tokens: { en: "tokens", zh: "词元数" },
});

const SVG = "http://www.w3.org/2000/svg";
const BEAM = { row: 36, small: 19, top: 26, left: 12, gap: 26, letter: 7.9, most: 16, pad: 9 };
const BEAM_DROPPED = { none: 0, few: 3, all: Infinity };

function svg(name, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

/** A score has four significant digits, and a raw sum those from which the scores made of it follow. */
const size = (number) => (number ? Math.floor(Math.log10(Math.abs(number))) : 0);
const rawSum = (number) => signed(number, Math.max(3, 4 - size(number)));
const score = (number) => (Math.abs(number) >= 1e4 ? number.toExponential(3).replaceAll("-", "−").replace("e+", " × 10^") : signed(number, Math.max(0, Math.min(3, 3 - size(number)))));
const signed = (number, digits = 2) => (number === null || number === undefined ? "–" : number.toFixed(digits).replace("-", "−"));

/** Wide characters take two places. */
const places = (text) => [...text].reduce((sum, one) => sum + (one.codePointAt(0) >= 0x1100 && !"␣↵⇥␍⟨⟩◌…".includes(one) ? 2 : 1), 0);

function cutTo(text, most) {
  if (places(text) <= most) return text;
  let kept = "";
  for (const one of text) {
    if (places(kept + one) > most - 1) break;
    kept += one;
  }
  return `${kept}…`;
}

/** A candidate as the packets give it. */
class BeamNode {
  constructor(step, index, row, parent) {
    Object.assign(this, { step, index, parent, children: [], track: null, x: 0, y: 0, width: 0, small: false, element: null, edge: null, state: "" });
    [this.beam, this.token, this.name, this.log, this.sum, this.ranked, this.fate, this.reason, this.by, this.gap, this.ended, this.group, this.penalty] = row.map((value) => value ?? null);
  }

  get key() {
    return `${this.step}.${this.index}`;
  }

  /** From this node to the first token. */
  * line() {
    for (let node = this; node; node = node.parent) yield node;
  }
}

/** The tree as a picture: a column per step, a track per living beam; a column that is drawn never moves again. */
class BeamPicture {
  constructor(app, chosen) {
    this.app = app;
    this.chosen = chosen; // called with the node that somebody chose
    this.scale = 1;
    this.dropped = memory.read(localStorage, "beam_dropped", "few");
    if (!(this.dropped in BEAM_DROPPED)) this.dropped = "few";
    this.collapsed = false;
    this.edges = svg("g", { role: "none" });
    this.nodesLayer = svg("g", { role: "none" });
    this.marks = svg("g", { "aria-hidden": "true" });
    this.world = svg("g", { role: "none" }, this.edges, this.nodesLayer, this.marks);
    this.canvas = svg("svg", { class: "beam-canvas", role: "none" }, this.world);
    this.box = el("div.beam-scroll", { role: "tree", "aria-multiselectable": "false" }, this.canvas);
    this.box.addEventListener("click", (event) => this.clicked(event));
    this.box.addEventListener("keydown", (event) => this.keyed(event));
    this.box.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.hovered(event));
    this.box.addEventListener("pointerleave", () => app.popover.leave());
    this.box.addEventListener("pointerdown", (event) => this.grab(event));
    this.box.addEventListener("wheel", (event) => this.wheeled(event), { passive: false });
    this.box.addEventListener("scroll", () => { this.atEnd = this.box.scrollLeft + this.box.clientWidth >= this.box.scrollWidth - 24; }, { passive: true });
    this.clear(null);
  }

  clear(log) {
    this.log = log;
    this.columns = []; // by step: {x, width, nodes}
    this.known = new Map(); // key → node
    this.ends = []; // the nodes of finished hypotheses
    this.sums = []; // what stands behind the living beams
    this.shared = 0; // how many leading columns are folded into one
    this.right = BEAM.left;
    this.height = BEAM.top;
    this.drawn = 0;
    this.hot = new Map(); // node → state, of those that live or are the best
    this.selected = null;
    this.stop = null;
    this.atEnd = true;
    for (const layer of [this.edges, this.nodesLayer, this.marks]) layer.replaceChildren();
  }

  rebuild() {
    const { log, selected, atEnd } = this;
    const left = this.box.scrollLeft;
    this.clear(log);
    this.grow(log);
    const again = selected && this.known.get(selected.key);
    if (again?.element) this.select(again, false);
    this.atEnd = atEnd;
    if (!atEnd) this.box.scrollLeft = left;
    else this.box.scrollLeft = this.box.scrollWidth;
  }

  /** Draw the steps that have come since the last time. */
  grow(log) {
    if (log !== this.log || log.beams.length < this.drawn) this.clear(log);
    const began = performance.now();
    const fresh = log.beams.length - this.drawn;
    if (fresh > 0) {
      const shared = this.collapsed ? this.sharedPrefix() : 0;
      if (shared !== this.shared) {
        const { selected } = this;
        this.clear(log);
        this.shared = shared;
        for (let step = 0; step < log.beams.length; step++) this.column(log.beams[step]);
        const again = selected && this.known.get(selected.key);
        if (again?.element) this.select(again, false);
      } else for (let step = this.drawn; step < log.beams.length; step++) this.column(log.beams[step]);
      this.drawn = log.beams.length;
      this.size();
    }
    if (fresh > 0 || log.ranked !== this.told) this.restyle();
    this.told = log.ranked;
    if (fresh > 0 && this.atEnd) this.box.scrollLeft = this.box.scrollWidth;
    if (fresh > 0) {
      const stats = (this.app.stats.tree ??= { updates: 0, steps: 0, ms: 0 });
      stats.updates += 1;
      stats.steps += fresh;
      stats.ms += performance.now() - began;
    }
  }

  /** How many leading tokens all living beams have in common; at the end all finished texts. */
  sharedPrefix() {
    const beams = this.log.beams;
    const last = beams.length - 1;
    let keys = beams[last].l.length ? beams[last].l.map((index) => [last, index]) : beams[last].o;
    const from = Math.min(...keys.map(([step]) => step));
    const parent = ([step, index]) => [step - 1, beams[step - 1].l[beams[step].c[index][0]]];
    keys = keys.map((key) => {
      let one = key;
      while (one[0] > from) one = parent(one);
      return one;
    });
    while (keys.length && new Set(keys.map(String)).size > 1 && keys[0][0] > 0) keys = keys.map(parent);
    return new Set(keys.map(String)).size === 1 ? keys[0][0] + 1 : 0;
  }

  /** A step joins at the right: heirs stay on their parent's track, forks take a free one. */
  column(event) {
    const step = event.s;
    const before = this.columns[step - 1];
    const folded = step < this.shared;
    const nodes = event.c.map((row, index) => new BeamNode(step, index, row, step ? before.living[row[0]] : null));
    const living = event.l.map((index) => nodes[index]);
    const width = Math.max(event.l.length, before?.tracks ?? 1);
    const taken = new Set();
    const heir = (node) => {
      const track = node.parent?.track ?? 0;
      if (taken.has(track)) return false;
      taken.add(node.track = track);
      return true;
    };
    const late = [...living].sort((a, b) => b.sum - a.sum).filter((node) => !heir(node));
    for (const node of late) {
      const near = node.parent?.track ?? 0;
      const free = Array.from({ length: width }, (_, track) => track).filter((track) => !taken.has(track));
      node.track = free.reduce((best, track) => (Math.abs(track - near) < Math.abs(best - near) ? track : best), free[0] ?? 0);
      taken.add(node.track);
    }
    const ended = nodes.filter((node) => node.fate === "f");
    const rest = nodes.filter((node) => node.fate === "d");
    const column = { step, x: this.right, width: 0, living, nodes: [], tracks: Math.max(width, before?.tracks ?? 0, event.l.length) };
    this.columns.push(column);
    for (const node of nodes) {
      this.known.set(node.key, node);
      node.parent?.children.push(node);
    }
    if (folded) {
      this.fold(column, living);
      return;
    }
    const label = (node) => places(this.label(node)) + (node.fate === "f" ? 10 : 0);
    column.width = Math.max(34, ...[...living, ...ended].map((node) => label(node) * BEAM.letter + 2 * BEAM.pad));
    const tracks = column.tracks;
    let below = BEAM.top + tracks * BEAM.row;
    for (const node of ended) {
      // An end takes a track that is free at this step, or stands below.
      const near = node.parent?.track ?? 0;
      const free = Array.from({ length: tracks }, (_, track) => track).filter((track) => !taken.has(track));
      const track = free.length ? free.reduce((best, one) => (Math.abs(one - near) < Math.abs(best - near) ? one : best), free[0]) : null;
      if (track !== null) taken.add(node.track = track);
      else {
        node.y = below;
        below += BEAM.row;
      }
    }
    const shown = rest.slice(0, BEAM_DROPPED[this.dropped]);
    for (const node of shown) {
      node.small = true;
      node.y = below;
      below += BEAM.small;
    }
    for (const node of [...living, ...ended, ...shown]) {
      if (node.track !== null) node.y = BEAM.top + node.track * BEAM.row;
      node.x = column.x;
      node.width = column.width;
      this.place(node, column);
    }
    column.nodes.sort((a, b) => a.y - b.y);
    if (rest.length > shown.length && shown.length) {
      this.marks.append(svg("text", { class: "beam-more", x: column.x + BEAM.pad, y: below + 12 }, `+${rest.length - shown.length}`));
      below += BEAM.small;
    }
    if (step === 0 || (step + 1) % 5 === 0) this.marks.append(svg("text", { class: "beam-step", x: column.x + column.width / 2, y: 15 }, String(step + 1)));
    this.right = column.x + column.width + BEAM.gap;
    this.height = Math.max(this.height, below + 8);
  }

  /** Steps that all beams share stand in one wide node: the last of them, with the words to it. */
  fold(column, living) {
    if (column.step < this.shared - 1) return;
    const { beams } = this.log;
    const last = beams.length - 1;
    const ends = beams[last].l.length ? [[last, beams[last].l[0]]] : beams[last].o.slice(0, 1);
    let [step, index] = ends[0];
    while (step > column.step) {
      index = beams[step - 1].l[beams[step].c[index][0]];
      step -= 1;
    }
    const node = this.known.get(`${step}.${index}`) ?? living[0];
    const words = [...node.line()].map((one) => one.name).reverse().join("").replaceAll("␣", " ");
    node.folded = `${t("beam_shared", { count: this.shared })}: ${[...words].length > 34 ? `…${[...words].slice(-33).join("")}` : words}`;
    node.track ??= 0;
    node.x = column.x = BEAM.left;
    node.y = BEAM.top + node.track * BEAM.row;
    column.width = node.width = places(node.folded) * BEAM.letter + 2 * BEAM.pad;
    this.place(node, column);
    this.marks.append(svg("text", { class: "beam-step", x: column.x + 16, y: 15 }, `1–${this.shared}`));
    this.right = column.x + column.width + BEAM.gap;
    this.height = Math.max(this.height, BEAM.top + column.tracks * BEAM.row);
  }

  /** What stands on a node; an end token says nothing that the mark of an end doesn't. */
  label(node) {
    return node.folded ?? (node.fate === "f" && node.ended === "eos" ? "" : cutTo(node.name, BEAM.most));
  }

  /** Put a node and the edge that leads to it into the picture. */
  place(node, column) {
    const high = node.small ? BEAM.small - 3 : BEAM.row - 10;
    const text = node.small ? cutTo(node.name, Math.max(3, Math.floor((node.width - 8) / 7))) : this.label(node);
    const words = svg("text", { x: node.small ? 4 : BEAM.pad, y: node.small ? 12 : 18 });
    const blank = /^␣(?=.)/.exec(text);
    if (blank) words.append(svg("tspan", { class: "beam-blank" }, "␣"), text.slice(1));
    else words.append(text);
    node.words = words;
    node.element = svg("g", { role: "treeitem", tabindex: "-1", "aria-level": node.step + 1, "aria-selected": "false", "data-key": node.key, transform: `translate(${node.x} ${node.y})` },
      svg("rect", { width: node.width, height: high, rx: node.small ? 4 : 8 }), words);
    if (node.fate === "f") {
      node.rank = svg("text", { class: "beam-rank", x: node.width - BEAM.pad, y: 18 });
      node.element.append(node.rank);
      this.ends.push(node);
    }
    const fate = node.reason ? `${t(`beam_fate_${node.fate}`)} (${t(`beam_reason_${node.reason}`)})` : t(`beam_fate_${node.fate}`);
    node.element.setAttribute("aria-label", t("beam_node_label", { step: node.step + 1, name: node.name, fate, sum: signed(node.sum) }));
    this.nodesLayer.append(node.element);
    column.nodes.push(node);
    const { parent } = node;
    if (parent?.element) {
      const x0 = parent.x + parent.width;
      const y0 = parent.y + (BEAM.row - 10) / 2;
      const y1 = node.y + high / 2;
      const middle = x0 + (node.x - x0) / 2;
      node.edge = svg("path", { d: `M${x0} ${y0}C${middle} ${y0} ${middle} ${y1} ${node.x} ${y1}` });
      this.edges.append(node.edge);
    }
    this.dress(node, node.fate === "k" ? "dead" : node.fate === "f" ? "ended" : "dropped");
    if (!this.stop) {
      this.stop = node;
      node.element.setAttribute("tabindex", "0");
    }
  }

  dress(node, state) {
    if (node.state === state || !node.element) return;
    node.state = state;
    node.element.setAttribute("class", `beam-node ${state}${node.small ? " small" : ""}${node.fate === "f" ? " finished" : ""}${node === this.selected ? " selected" : ""}`);
    node.edge?.setAttribute("class", `beam-edge ${state}`);
  }

  /** Who lives and who is best has changed: only what differs is touched. */
  restyle() {
    const { beams, ranked } = this.log;
    const event = beams[beams.length - 1];
    if (!event) return;
    const pool = ranked ? ranked.h.map(([step, index]) => [step, index]) : event.o;
    const hot = new Map();
    const mark = (node, state) => {
      if (!node) return;
      for (const one of node.line()) if (hot.get(one) !== "best") hot.set(one, state);
    };
    const over = !event.l.length;
    if (over) for (const [step, index] of pool) mark(this.known.get(`${step}.${index}`), "living");
    for (const index of event.l) mark(this.known.get(`${event.s}.${index}`), "living");
    const best = event.b !== null && event.l.length ? this.known.get(`${event.s}.${event.l[event.b]}`) : pool.length ? this.known.get(`${pool[0][0]}.${pool[0][1]}`) : null;
    mark(best, "best");
    for (const [node] of this.hot) if (!hot.has(node)) this.dress(node, node.fate === "k" ? "dead" : node.fate === "f" ? "ended" : "dropped");
    for (const [node, state] of hot) this.dress(node, state);
    this.hot = hot;
    // Ranks of the finished; sums of the living, behind the last column.
    const ranks = new Map(pool.map(([step, index], rank) => [`${step}.${index}`, rank + 1]));
    for (const node of this.ends) {
      const rank = ranks.get(node.key);
      const text = `■ ${rank ? `${rank}. ` : ""}${signed(node.ranked)}`;
      if (node.rank.textContent !== text) node.rank.textContent = text;
    }
    for (const text of this.sums) text.remove();
    this.sums = event.l.map((index) => this.known.get(`${event.s}.${index}`)).filter((node) => node.element).map((node, slot) => svg("text", { class: "beam-sum", x: node.x + node.width + 8, y: node.y + 18 }, `${slot + 1}. ${signed(node.sum)}`));
    this.marks.append(...this.sums);
  }

  size() {
    const width = this.right + 64;
    const height = this.height + 6;
    this.canvas.setAttribute("width", Math.ceil(width * this.scale));
    this.canvas.setAttribute("height", Math.ceil(height * this.scale));
    if (this.scaled === this.scale) return; // every text is laid out anew when this changes: only when somebody zooms
    this.scaled = this.scale;
    this.world.setAttribute("transform", `scale(${this.scale})`);
    this.canvas.dataset.detail = this.scale < 0.45 ? "far" : this.scale < 0.72 ? "middle" : "near";
  }

  zoom(scale, at = null) {
    const { box } = this;
    const wanted = Math.min(2, Math.max(0.1, scale));
    const middle = at ?? box.clientWidth / 2;
    const place = (box.scrollLeft + middle) / this.scale;
    this.scale = wanted;
    this.size();
    box.scrollLeft = place * wanted - middle;
  }

  fit() {
    this.zoom(Math.min(1, (this.box.clientWidth - 4) / (this.right + 64)));
    this.box.scrollLeft = 0;
  }

  wheeled(event) {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    this.zoom(this.scale * (event.deltaY < 0 ? 1.15 : 1 / 1.15), event.clientX - this.box.getBoundingClientRect().left);
  }

  /** Drag the ground to pan. */
  grab(event) {
    if (event.pointerType !== "mouse" || event.button !== 0 || event.target.closest(".beam-node")) return;
    const { box } = this;
    const from = { x: event.clientX + box.scrollLeft, y: event.clientY + box.scrollTop };
    const move = (moved) => {
      box.scrollLeft = from.x - moved.clientX;
      box.scrollTop = from.y - moved.clientY;
    };
    const drop = () => {
      box.classList.remove("grabbed");
      removeEventListener("pointermove", move);
      removeEventListener("pointerup", drop);
    };
    box.classList.add("grabbed");
    addEventListener("pointermove", move);
    addEventListener("pointerup", drop);
  }

  nodeAt(target) {
    const element = target.closest?.(".beam-node");
    return element ? this.known.get(element.dataset.key) : null;
  }

  clicked(event) {
    const node = this.nodeAt(event.target);
    if (node) this.select(node, true);
  }

  hovered(event) {
    const node = this.nodeAt(event.target);
    if (node) this.app.popover.show(node.element, () => this.scores(node));
    else this.app.popover.leave();
  }

  select(node, focus) {
    if (this.selected?.element) {
      this.selected.element.classList.remove("selected");
      this.selected.element.setAttribute("aria-selected", "false");
    }
    this.stop?.element?.setAttribute("tabindex", "-1");
    this.selected = this.stop = node;
    node.element.setAttribute("tabindex", "0");
    node.element.setAttribute("aria-selected", "true");
    node.element.classList.add("selected");
    if (focus) {
      node.element.focus({ preventScroll: true });
      this.reveal(node);
      this.chosen(node);
    }
  }

  reveal(node) {
    const { box, scale } = this;
    const [left, right, top, bottom] = [node.x, node.x + node.width, node.y, node.y + BEAM.row].map((value) => value * scale);
    if (left < box.scrollLeft + 20) box.scrollLeft = left - 60;
    else if (right > box.scrollLeft + box.clientWidth - 20) box.scrollLeft = right - box.clientWidth + 60;
    if (top < box.scrollTop) box.scrollTop = top - 8;
    else if (bottom > box.scrollTop + box.clientHeight) box.scrollTop = bottom - box.clientHeight + 8;
  }

  keyed(event) {
    const node = this.nodeAt(event.target);
    if (!node || event.altKey || event.ctrlKey || event.metaKey) return;
    const column = this.columns[node.step].nodes;
    const at = column.indexOf(node);
    const heirs = node.children.filter((child) => child.element).sort((a, b) => (a.state === "best" ? -1 : b.state === "best" ? 1 : Math.abs(a.y - node.y) - Math.abs(b.y - node.y)));
    const ends = this.columns.filter((one) => one.nodes.length);
    const main = (one) => one.nodes.find((other) => other.state === "best") ?? one.nodes[0];
    const to = {
      ArrowLeft: () => (node.parent?.element ? node.parent : null), ArrowRight: () => heirs[0], ArrowUp: () => column[at - 1], ArrowDown: () => column[at + 1],
      Home: () => main(ends[0]), End: () => main(ends.at(-1)), Enter: () => node, " ": () => node,
    }[event.key];
    if (event.key === "+" || event.key === "-") this.zoom(this.scale * (event.key === "+" ? 1.25 : 0.8));
    else if (!to) return;
    const target = to?.();
    if (target) this.select(target, true);
    event.preventDefault();
  }

  /** The window on hover: every score of a candidate. */
  scores(node) {
    const fate = node.reason ? `${t(`beam_fate_${node.fate}`)}: ${t(`beam_reason_${node.reason}`)}` : t(`beam_fate_${node.fate}`);
    const facts = [
      [t("beam_log"), signed(node.log, 3)], [t("beam_sum"), signed(node.sum, 3)], [t("beam_ranked", { penalty: "p" }), signed(node.ranked, 3)],
      node.gap !== null ? [t("beam_gap"), signed(node.gap, 3)] : null, node.group ? [t("beam_group"), String(node.group + 1)] : null, node.penalty ? [t("beam_diversity"), signed(node.penalty)] : null,
    ].filter(Boolean);
    return [
      el("header.popover-head", {}, el("code.token-name", {}, node.name), el("span.muted", {}, `${t("step")} ${node.step + 1} · #${node.token}`)),
      el("p.popover-p", {}, fate),
      el("dl.beam-facts", {}, facts.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value)))),
    ];
  }
}

/** The pipeline of the node that is chosen: from the record, or read again by the model. */
class BeamPlot extends Plot {
  constructor(app, panel) {
    super(app, "pipeline");
    this.panel = panel;
  }

  key() {
    const { app, panel } = this;
    const { node, answer } = panel;
    if (!app.run?.about || !node || !answer || !(answer.recorded || panel.computed === node.key)) return null;
    return { run: app.run.id, lane: panel.lane, step: node.step, candidate: node.index, theme: app.theme(), language, narrow: this.root.clientWidth < 560 };
  }

  ask(key) {
    return this.app.call("beam_pipeline", this.app.viewed, key.lane, key.step, key.candidate, { theme: key.theme, language: key.language, narrow: key.narrow });
  }
}

/** Everything about the beams of the lane in focus. */
class BeamsPanel {
  constructor(app) {
    this.app = app;
    this.node = null; // the one that is chosen
    this.answer = null; // and what the server knows of it
    this.penalty = null; // what the table ranks by; null: as the lane ran
    this.tables = null;
    this.head = el("p.where");
    this.picture = new BeamPicture(app, (node) => this.choose(node));
    this.tools = el("div.beam-tools");
    this.legend = el("p.beam-legend", { "aria-hidden": "true" });
    this.detail = el("div.beam-detail", { "aria-live": "polite" });
    this.plot = new BeamPlot(app, this);
    this.plotBox = el("div.beam-plot", { hidden: true }, el("h3.plot-title", { "data-t": "beam_pipeline" }), this.plot.root);
    this.slider = el("input.slider", { type: "range", min: "-2", max: "3", step: "0.05" });
    this.slider.addEventListener("input", () => this.rank(Number(this.slider.value)));
    this.number = el("output.beam-penalty");
    this.own = el("button.secondary.small", { type: "button", onclick: () => this.rank(null) });
    this.table = el("div");
    this.plots = ["beam_scores", "beam_kv", "beam_variety"].map((name) => new Plot(app, name));
    this.cost = el("div");
    this.variety = el("div");
    this.root = el("section.panel.beams", {}, el("div.panel-head", {}, this.head), this.tools, this.picture.box, this.legend, this.detail, this.plotBox,
      el("h3.plot-title", { "data-t": "beam_scores" }),
      el("div.beam-rank-by", {}, el("span.field-label", { "data-t": "beam_penalty" }), this.slider, this.number, this.own), this.table, this.plots[0].root,
      el("h3.plot-title", { "data-t": "beam_cost" }), this.cost, el("h3.plot-title", { "data-t": "beam_kv" }), this.plots[1].root,
      el("h3.plot-title", { "data-t": "beam_variety" }), this.variety, this.plots[2].root);
    this.loading = new Asking(() => this.load());
    this.telling = new Asking(() => this.tell());
  }

  /** Whether the lane in focus has beams. */
  get relevant() {
    const { app } = this;
    return Boolean(app.run && app.seen.lanes[app.focused().lane]?.beams.length);
  }

  draw() {
    const { app, picture } = this;
    const { lane, uid } = app.focused();
    const log = app.seen.lanes[lane];
    this.root.style.setProperty("--lane", app.colourOf(uid));
    const key = `${app.run.id}.${lane}`;
    if (this.shown !== key) {
      this.shown = key;
      this.lane = lane;
      this.penalty = this.tables = null;
      this.loading.forget();
      this.forgetNode();
    }
    if (this.spoken !== language) this.speak();
    picture.box.setAttribute("aria-label", t("beam_tree_label", { name: app.laneName(uid, app.run.about?.lanes[lane]) }));
    const other = picture.log !== log;
    picture.grow(log);
    const again = other && this.node ? picture.known.get(this.node.key) : null;
    if (again?.element) picture.select(again, false);
    if (this.node && !picture.known.has(this.node.key)) this.forgetNode();
    this.drawHead(uid, log);
    for (const plot of [...this.plots, this.plot]) plot.want();
    this.moment = `${key}.${app.viewed}.${log.ranked ? "over" : Math.floor(log.beams.length / 8)}`;
    this.ask();
  }

  speak() {
    const first = this.spoken === undefined;
    this.spoken = language;
    this.drawTools();
    if (!first) this.picture.rebuild();
    if (this.answer) this.drawDetail();
    else this.forgetNode();
    if (this.tables) this.drawTables();
  }

  drawHead(uid, log) {
    const { app } = this;
    const event = log.beams.at(-1);
    const values = { step: event.s + 1, living: event.l.length, finished: log.ranked ? log.ranked.h.length : event.o.length, ending: log.ranked ? t(`beam_ending_${log.ranked.e}`) : "" };
    const facts = [t(log.ranked ? "beam_head_over" : "beam_head", values), log.switches ? t("beam_head_switches", { count: log.switches }) : null];
    this.head.replaceChildren(el("span.swatch", { "aria-hidden": "true" }), el("b", {}, app.laneName(uid, app.run.about?.lanes[this.lane])), el("span.muted", {}, ` · ${facts.filter(Boolean).join(" · ")}`));
  }

  drawTools() {
    const { picture } = this;
    const choices = Object.keys(BEAM_DROPPED).map((name) => el("button", { type: "button", "aria-pressed": String(name === picture.dropped), onclick: () => {
      picture.dropped = name;
      memory.write(localStorage, "beam_dropped", name);
      picture.rebuild();
      this.drawTools();
    } }, t(`beam_dropped_${name}`)));
    const fold = el("input.switch", { type: "checkbox", checked: picture.collapsed, onchange: () => {
      picture.collapsed = fold.checked;
      picture.rebuild();
    } });
    const button = (key, label, work) => el("button.secondary.small", { type: "button", "aria-label": t(key), title: t(key), onclick: work }, label);
    this.tools.replaceChildren(
      el("span.colouring-label", {}, t("beam_dropped")), el("div.segmented", { role: "group", "aria-label": t("beam_dropped") }, choices),
      el("label.beam-fold", {}, fold, t("beam_collapse")),
      el("div.beam-zoom", {}, button("beam_zoom_out", "−", () => picture.zoom(picture.scale / 1.3)), button("beam_zoom_in", "+", () => picture.zoom(picture.scale * 1.3)), button("beam_fit", t("beam_fit"), () => picture.fit())));
    this.legend.replaceChildren(...["best", "living", "dead", "dropped", "ended"].map((state) => el("span", { class: `beam-key ${state}` }, t(`beam_legend_${state}`))));
    this.slider.setAttribute("aria-label", t("beam_penalty"));
  }

  /** What the server tells of this moment: the tables, and the node that is chosen. */
  ask() {
    this.loading.want(`${this.moment}.${this.penalty}`);
    if (this.node) this.telling.want(`${this.moment}.${this.node.key}`);
  }

  // --- one node ----------------------------------------------------------------------------

  forgetNode() {
    this.node = this.answer = this.computed = this.told = null;
    this.telling.forget();
    this.plotBox.hidden = true;
    this.detail.replaceChildren(el("p.muted", {}, t("beam_choose")));
  }

  choose(node) {
    if (this.node?.key !== node.key) this.computed = null;
    this.node = node;
    this.ask();
  }

  async tell() {
    const { app, node } = this;
    if (!node) return;
    const answer = await app.call("beam", app.viewed, this.lane, node.step, node.index);
    if (this.node !== node) return;
    if (answer.error) {
      this.detail.replaceChildren(el("p.error", {}, said(answer.error.text)));
      return;
    }
    const told = JSON.stringify([node.key, answer]);
    if (this.told === told) return; // nothing became of it since
    this.told = told;
    this.answer = answer;
    this.drawDetail();
  }

  drawDetail() {
    const { app, answer, node } = this;
    const facts = [
      [t("beam_log"), signed(answer.log_probability, 4)], [t("beam_sum"), signed(answer.sum, 4)], [t("beam_length"), String(answer.length)],
      [t("beam_ranked", { penalty: answer.penalty }), signed(answer.ranked, 4)],
      answer.rank !== null ? [t("beam_rank"), t("beam_rank_of", { rank: answer.rank + 1, count: answer.hypotheses })] : null,
      answer.ended ? [t("beam_ended"), said(answer.ended)] : null,
      answer.diversity ? [t("beam_diversity"), signed(answer.diversity)] : null,
    ].filter(Boolean);
    const uid = app.run.uids[this.lane];
    const show = answer.shown ? el("button.secondary.small", { type: "button", onclick: () => app.select(uid, answer.position) }, t("beam_show")) : null;
    const compute = answer.recorded ? null : el("button.secondary.small", { type: "button", disabled: !app.ready, onclick: () => {
      this.computed = node.key;
      this.plotBox.hidden = false;
      this.plot.want();
    } }, t("beam_compute"));
    const why = answer.recorded ? null : el("span.muted", {}, app.ready ? t("beam_not_recorded") : `${t("beam_not_recorded")} ${t("beam_needs_model")}`);
    this.detail.replaceChildren(
      el("div", {},
        el("p.beam-text", {}, answer.before, el("mark", {}, answer.own || answer.name)),
        el("p.beam-obituary", {}, said(answer.obituary)), el("p.muted", {}, said(answer.interval)),
        el("div.row.beam-more-of", {}, show, compute, why)),
      el("dl.beam-facts", {}, facts.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, value)))));
    this.plotBox.hidden = !answer.recorded && this.computed !== node.key;
    this.plot.want();
  }

  // --- the tables --------------------------------------------------------------------------

  rank(penalty) {
    this.penalty = penalty;
    this.drawPenalty();
    this.ask();
  }

  drawPenalty() {
    const value = this.penalty ?? this.tables?.own ?? 1;
    this.slider.value = String(value);
    this.slider.style.setProperty("--at", `${(100 * (Math.max(-2, Math.min(3, value)) + 2)) / 5}%`);
    this.number.textContent = signed(value);
    this.own.textContent = t("beam_penalty_own", { value: signed(this.tables?.own ?? 1) });
    this.own.disabled = this.penalty === null || this.penalty === this.tables?.own;
  }

  async load() {
    const { app } = this;
    const key = this.shown;
    const answer = await app.call("beams", app.viewed, this.lane, this.penalty);
    if (this.shown !== key) return;
    if (answer.error) {
      if (answer.error.code === "lost") this.loading.forget(); // asked again at the next drawing
      return;
    }
    this.tables = answer;
    this.drawTables();
  }

  drawTables() {
    const { tables } = this;
    this.drawPenalty();
    const { columns, hypotheses } = tables;
    const row = (one) => el("tr", {},
      columns.map((column, index) => el("td", { class: `beam-value${one.ranks[index] === 0 ? " first" : ""}` }, el("b", {}, `${one.ranks[index] + 1}. `), (index ? score : rawSum)(one.values[index]))),
      el("td", {}, String(one.length)), el("td", {}, said(one.ended)),
      el("td.beam-hypothesis", {}, el("button.beam-to-node", { type: "button", onclick: () => this.go(one.key) }, one.text)));
    this.table.replaceChildren(...(hypotheses.length ? [
      el("div.table-wrap", { tabindex: "0" }, el("table.beam-table", {},
        el("thead", {}, el("tr", {}, columns.map((column) => el("th", { scope: "col" }, said(column.label), el("code", {}, column.formula))), [t("beam_length"), t("beam_ended"), t("beam_text")].map((text) => el("th", { scope: "col" }, text)))),
        el("tbody", {}, hypotheses.map(row)))),
      tables.more ? el("p.muted", {}, t("beam_more", { count: tables.more })) : null,
      el("p.muted.beam-note", {}, t("beam_formulas", { prompt: tables.prompt })),
      el("p.beam-difference", {}, said(tables.difference)),
      el("dl.beam-switches", {}, tables.switches.map((one) => el("div", {}, el("dt", {}, said(one.label)), el("dd", {}, said(one.text))))),
    ] : [el("p.muted", {}, t("beam_no_texts"))]).filter(Boolean));
    const shown = (measure) => (measure ? quantity(measure.value, measure.unit === "rows" || measure.unit === "×" ? "" : measure.unit).join(" ").trim() : t("beam_no_greedy"));
    this.cost.replaceChildren(
      tableOf([[t("beam_cost_what"), t("beam_cost_beams"), t("beam_cost_greedy"), t("beam_cost_ratio")],
        ...tables.cost.map((one) => [`${said(one.beams.label)} (${said(one.beams.formula)})`, one.divided?.[0] ?? shown(one.beams), one.divided?.[1] ?? shown(one.greedy), one.ratio ? `×${one.ratio.value.toFixed(2)}` : "–"])]),
      el("p.beam-note", {}, said(tables.why)));
    this.variety.replaceChildren(
      el("p.beam-note", {}, said(tables.variety)),
      tableOf([[t("beam_lane"), t("beam_tokens"), t("beam_repetition")], ...tables.repetition.map((one) => [one.name, String(one.tokens), one.share === null ? "–" : `${(100 * one.share).toFixed(0)} %`])]));
  }

  /** From the table to the node in the tree. */
  go([step, index]) {
    const node = this.picture.known.get(`${step}.${index}`);
    if (!node) return;
    if (node.element) this.picture.select(node, true);
    else this.choose(node);
  }
}
