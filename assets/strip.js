// The tokens of one lane as they grow: coloured, walked by arrow keys, each with its candidates on hover.

/** Ends that aren't what most of their kind are, by their name; a server's own word for one follows `SERVER_SAID`. */
const ENDS = { stop_string: "reason_stop", server_stop: "reason_server_stop", server_length: "reason_server_length", context: "reason_context" };
const SERVER_SAID = "server:";

/** Why a lane ended, in few words. */
function endText(finished) {
  if (finished.detail.startsWith(SERVER_SAID)) return finished.detail.slice(SERVER_SAID.length);
  return t(ENDS[finished.detail] ?? (finished.reason === "stop" ? "reason_eos" : `reason_${finished.reason}`));
}

class Strip {
  constructor(app, uid) {
    this.app = app;
    this.uid = uid;
    this.drawn = 0;
    this.nodes = [];
    this.shown = []; // the tokens that the nodes show
    this.selected = null;
    this.stop = 0; // the token that Tab reaches
    this.mark = null; // why the lane ended
    this.box = el("div.strip", { role: "listbox", tabindex: "-1", "aria-orientation": "horizontal" });
    this.box.addEventListener("click", (event) => this.clicked(event));
    this.box.addEventListener("keydown", (event) => this.keyed(event));
    this.box.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.hovered(event));
    this.box.addEventListener("pointerleave", () => this.app.popover.leave());
    this.box.addEventListener("focusin", (event) => {
      const node = event.target.closest(".token");
      if (node?.matches(":focus-visible")) this.peek(node);
    });
    this.box.addEventListener("focusout", () => this.app.popover.leave());
  }

  get log() {
    return this.app.run?.lane(this.uid) ?? null;
  }

  clear() {
    this.drawn = 0;
    this.nodes = [];
    this.shown = [];
    this.selected = null;
    this.stop = 0;
    this.mark = null;
    this.box.replaceChildren();
  }

  /** Draw what has come since the last time; returns how many tokens are drawn. */
  grow() {
    const log = this.log;
    if (!log) return 0;
    const focused = this.retract(log);
    if (this.drawn < log.tokens.length) {
      const atEnd = this.atEnd();
      const fresh = document.createDocumentFragment();
      for (const token of log.tokens.slice(this.drawn)) {
        const node = this.draw(token);
        const before = this.shown[this.shown.length - 1];
        if (token.chunk && before?.chunk === token.chunk) {
          this.nodes[this.nodes.length - 1].classList.add("chunk-on");
          node.classList.add("chunk-in");
        }
        this.nodes.push(node);
        this.shown.push(token);
        fresh.append(node);
      }
      this.drawn = log.tokens.length;
      this.box.append(fresh);
      if (atEnd) this.box.scrollTop = this.box.scrollHeight;
      if (this.nodes.length && this.stop === 0) this.nodes[0].tabIndex = 0;
      if (focused !== null) this.nodes[Math.min(focused, this.nodes.length - 1)].focus({ preventScroll: true });
    }
    this.hold(log);
    this.end(log.finished);
    return this.drawn;
  }

  /** Take away what another beam has replaced; returns the position that had the keyboard's focus, if it went too. */
  retract(log) {
    let last = this.drawn;
    while (last > 0 && this.shown[last - 1] !== log.tokens[last - 1]) last -= 1;
    if (last === this.drawn) return null;
    const gone = this.nodes.splice(last);
    const focused = gone.indexOf(document.activeElement);
    for (const node of gone) node.remove();
    this.shown.length = this.drawn = last;
    if (this.selected !== null && this.selected >= last) this.selected = null; // the page selects it anew
    if (this.stop >= last) this.stop = Math.max(0, last - 1);
    if (this.nodes[this.stop]) this.nodes[this.stop].tabIndex = 0;
    this.app.popover.hide();
    this.tellSwitch(log.tokens[last]?.switched ?? { count: gone.length });
    return focused < 0 ? null : last + focused;
  }

  /** For a moment: how much of the text another beam has replaced. */
  tellSwitch({ count }) {
    this.told ??= el("p.switch-note", { "aria-hidden": "true" });
    this.told.textContent = t("beam_switched", { count });
    this.box.after(this.told);
    clearTimeout(this.untell);
    this.untell = setTimeout(() => this.told.remove(), 2200);
  }

  /** Why the lane ended, after its last token. */
  end(finished) {
    if (!finished) return;
    const text = endText(finished);
    if (this.mark?.textContent === text) return;
    const atEnd = this.atEnd();
    this.mark?.remove();
    this.mark = el("span.end-mark", { "data-reason": finished.reason }, text);
    this.box.append(this.mark);
    if (atEnd) this.box.scrollTop = this.box.scrollHeight;
  }

  atEnd() {
    return this.box.scrollHeight - this.box.scrollTop - this.box.clientHeight < 40;
  }

  draw(token) {
    const node = el("span.token", { role: "option", tabindex: "-1", "aria-selected": "false" });
    node.dataset.position = token.p;
    node.setAttribute("aria-label", t("token_label", { position: token.p + 1, text: token.n, p: probability(token.rlp === null ? null : Math.exp(token.rlp)) }));
    this.write(node, token, token.x);
    if (token.o) node.dataset.origin = token.o;
    this.colour(node, token);
    if (token.o === "forced") {
      node.classList.add("forced");
      if (token.p === branchOf(this.app, this.uid)?.position) node.classList.add("fork");
      node.setAttribute("aria-label", `${node.getAttribute("aria-label")}, ${t("forced_label")}`);
    }
    if (token.switched) {
      node.classList.add("switched");
      node.setAttribute("aria-label", `${node.getAttribute("aria-label")}. ${t("beam_switched_here", token.switched)}`);
    }
    return node;
  }

  /** The text that this token completes, with faint glyphs where whitespace would not be seen. */
  write(node, token, text) {
    node.replaceChildren();
    if (text === "") {
      // A special token, or a part of a character that a later token completes.
      const special = /^<.*>$/.test(token.n) && !/^<0x/i.test(token.n);
      node.classList.add(special ? "special" : "partial");
      node.textContent = special ? token.n : "·";
      return;
    }
    const blank = text.trim() === "";
    for (const piece of text.split(/([\n\t]| {2,})/)) {
      if (piece === "") continue;
      if (piece === "\n") node.append(el("span.glyph", { "aria-hidden": "true" }, "↵"), "\n");
      else if (piece === "\t") node.append(el("span.glyph", { "aria-hidden": "true" }, "⇥"), "\t");
      else if (blank || /^ {2,}$/.test(piece)) node.append(el("span.glyph", { "aria-hidden": "true" }, "·".repeat(piece.length)));
      else node.append(piece);
    }
  }

  colour(node, token) {
    const { shade } = this.app;
    if (this.box.dataset.shade !== shade) this.box.dataset.shade = shade;
    node.dataset.level = COLOUR_SCALES[shade].level(token);
  }

  recolour() {
    this.nodes.forEach((node, index) => this.colour(node, this.shown[index]));
  }

  /** Hide what may be the start of a stop string; strike away what came after one. */
  hold(log) {
    const { shown } = log;
    const cut = log.finished?.cut ?? null;
    for (let index = this.nodes.length - 1; index >= 0; index--) {
      const token = log.tokens[index];
      const node = this.nodes[index];
      const held = token.b[1] > shown;
      const wasHeld = node.classList.contains("held");
      if (held !== wasHeld) node.classList.toggle("held", held);
      if (cut !== null && token.b[1] > cut) this.strike(node, token, cut);
      // Before the first token that is neither held nor cut nothing changes any more.
      else if (!held && !wasHeld && index < this.nodes.length - 1) break;
    }
  }

  strike(node, token, cut) {
    if (node.classList.contains("cut") || node.querySelector("s")) return;
    if (token.b[0] >= cut || token.x === "") {
      if (token.b[0] >= cut) node.classList.add("cut");
      return;
    }
    const bytes = new TextEncoder().encode(token.x);
    const keep = new TextDecoder().decode(bytes.slice(0, Math.max(0, bytes.length - (token.b[1] - cut))));
    this.write(node, token, keep || " ");
    node.append(el("s", {}, token.x.slice(keep.length)));
  }

  select(position, focus = false) {
    if (this.selected !== null) {
      this.nodes[this.selected]?.classList.remove("selected");
      this.nodes[this.selected]?.setAttribute("aria-selected", "false");
    }
    const node = position === null ? null : this.nodes[position];
    this.selected = node ? position : null;
    if (!node) return;
    node.classList.add("selected");
    node.setAttribute("aria-selected", "true");
    if (this.nodes[this.stop]) this.nodes[this.stop].tabIndex = -1;
    this.stop = position;
    node.tabIndex = 0;
    if (focus) {
      node.focus({ preventScroll: true });
      this.reveal(node);
    }
  }

  /** Frame the tokens of one round of speculation, from one position up to another. */
  frame(from, to) {
    for (const node of this.marked ?? []) node.classList.remove("of-round");
    this.marked = this.nodes.slice(from, to);
    for (const node of this.marked) node.classList.add("of-round");
  }

  /** Scroll the strip, never the page. */
  reveal(node) {
    const top = node.offsetTop - this.box.offsetTop;
    if (top < this.box.scrollTop) this.box.scrollTop = top - 8;
    else if (top + node.offsetHeight > this.box.scrollTop + this.box.clientHeight) this.box.scrollTop = top + node.offsetHeight - this.box.clientHeight + 8;
  }

  clicked(event) {
    const node = event.target.closest(".token");
    if (!node) return;
    this.app.select(this.uid, Number(node.dataset.position));
    this.peek(node, 0, true);
  }

  hovered(event) {
    const node = event.target.closest(".token");
    if (node) this.peek(node);
    else this.app.popover.leave();
  }

  peek(node, wait, hold, focus) {
    const token = this.log?.tokens[Number(node.dataset.position)];
    if (token) this.app.popover.show(node, () => candidates(this.app, token, this.uid), wait, hold, focus);
  }

  keyed(event) {
    const node = event.target.closest(".token");
    if (!node || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = Number(node.dataset.position);
    const last = this.nodes.length - 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[event.key];
    if (to !== undefined) this.app.select(this.uid, Math.max(0, Math.min(last, to)), true);
    else if (event.key === "ArrowUp" || event.key === "ArrowDown") this.app.selectBeside(this.uid, at, event.key === "ArrowDown" ? 1 : -1);
    else if (event.key === "Enter" || event.key === " ") {
      this.app.select(this.uid, at, true);
      this.peek(node, 0, true, true);
    } else return;
    event.preventDefault();
  }
}

/** The hover window of one token: its most likely candidates before → after, the die, the ranks. */
function candidates(app, token, uid) {
  if (serverOf(app, uid)) return serverCandidates(app, token, uid);
  const raw = token.rlp === null ? null : Math.exp(token.rlp);
  const final = token.lp === null ? null : Math.exp(token.lp);
  const removed = token.o === "forced" && final === null;
  const rows = token.top.map((candidate) => {
    const [text, before, after, chosen] = candidate;
    const cells = [
      el("span.candidate-text", {}, text),
      el("span.bars", { "aria-hidden": "true" },
        el("span.bar.before", { style: `--p:${before}` }),
        el("span.bar.after", { style: `--p:${after ?? 0}` })),
      el("span.candidate-p", {}, probability(before)),
      el("span.candidate-p.after", {}, after === null ? t("removed") : probability(after)),
    ];
    return el("li", { class: `candidate${chosen ? " chosen" : ""}${after === null ? " gone" : ""}` }, chosen ? cells : branchButton(app, uid, token, candidate, "candidate-go", cells));
  });
  const facts = [
    token.rr === null ? null : `${t("rank_word")} ${token.rr + 1}`,
    token.a === null ? null : `${token.a.toLocaleString()} ${t("alive_word")}`,
    token.hr === null ? null : `${t("entropy_word")} ${token.hr.toFixed(2)} → ${(token.h ?? token.hr).toFixed(2)}`,
  ];
  const die = token.u === null ? forcedWords(app, uid, token) ?? t(token.searched ? "no_die_beam" : "no_die")
    : t("die_hit", { u: token.u.toFixed(3), low: token.iv ? token.iv[0].toFixed(3) : "–", high: token.iv ? token.iv[1].toFixed(3) : "–" });
  return [
    el("header.popover-head", {}, el("code.token-name", {}, token.n), el("span.muted", {}, `${t("token_number", { number: token.p + 1 })} · #${token.t}`)),
    el("p.popover-p", {}, el("b", {}, probability(raw)), ` ${t("raw_probability")} → `, el("b", {}, removed ? t("removed") : probability(final)), ` ${t("final_probability")}`),
    el("ol.candidates", { style: `--lane:${app.colourOf(uid)}` }, rows),
    draftFacts(app, token, uid),
    el("p.muted", {}, die),
    el("p.muted", {}, facts.filter(Boolean).join(" · ")),
    rows.length ? el("p.branch-hint.when-looking", {}, t("branch_hint")) : null,
    rows.length ? el("p.branch-hint.when-held", {}, cantBranch(app) || t("branch_choose")) : null,
    token.switched ? el("p.hint.switch-hint", {}, t("beam_switched_here", token.switched), el("q", {}, token.switched.text)) : null,
  ].filter(Boolean);
}
