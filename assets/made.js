// Where the run on the page comes from, if it was made here before, and the link by which others watch it.

Object.assign(TEXTS, {
  made_ago: { en: "Made here {time} ago.", zh: "{time} 前已在此生成。" },
  made_live: { en: "Started here {time} ago by somebody else: you are watching it.", zh: "{time} 前已有人在此启动：您正在观看。" },
  afresh: { en: "Run afresh", zh: "重新运行" },
  afresh_help: { en: "Let the model write everything anew, with times measured now.", zh: "让模型重新生成一遍，并重新测量用时。" },
  share: { en: "Share", zh: "分享" },
  share_help: { en: "Copy a link: whoever opens it watches this run.", zh: "复制链接：打开它的人都能观看这个运行。" },
  shared: { en: "Link copied", zh: "链接已复制" },
  shared_said: { en: "Link copied: {link}", zh: "链接已复制：{link}" },
});

/** How long ago, in whole seconds, minutes or hours. */
function age(seconds) {
  if (seconds < 60) return `${Math.max(1, Math.round(seconds))} s`;
  return seconds < 3600 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 3600)} h`;
}

class Made {
  constructor(app) {
    this.app = app;
    this.forget();
    this.ago = el("span");
    this.afresh = el("button.link", { type: "button", onclick: () => app.start(false) });
    this.said = el("p.made-note");
    app.ref.made.append(this.ago, this.afresh, this.said);
    app.ref.share.addEventListener("click", () => this.share());
    this.copied = false;
    setInterval(() => this.at !== null && this.draw(), 15000);
  }

  forget() {
    this.at = null; // when the run was made, in ms, if it was there before this page asked for it
    this.note = null; // what the server says of how it took the request
  }

  /** What the server answered to a request, or what is remembered of it. */
  take({ at = null, note = null }) {
    this.at = at;
    this.note = note;
  }

  draw() {
    const { ref, run, guest, live } = this.app;
    const made = this.at !== null && run !== null && !run.recorded;
    ref.made.hidden = !made && !this.note;
    this.ago.hidden = this.afresh.hidden = !made;
    if (made) this.ago.textContent = t(live && guest ? "made_live" : "made_ago", { time: age((Date.now() - this.at) / 1000) });
    this.afresh.textContent = t("afresh");
    this.afresh.title = t("afresh_help");
    this.afresh.disabled = !this.app.canStart;
    this.said.hidden = !this.note;
    this.said.textContent = said(this.note);
    ref.share.hidden = !run || Boolean(run.gone);
    const key = `${this.copied}${language}`;
    if (ref.share.dataset.key === key) return;
    ref.share.dataset.key = key;
    ref.share.replaceChildren(icon(this.copied ? "check" : "share"), el("span", {}, t(this.copied ? "shared" : "share")));
    ref.share.setAttribute("aria-label", t("share"));
    ref.share.title = t("share_help");
  }

  get link() {
    const link = new URL(location.pathname, location.origin);
    link.searchParams.set("run", this.app.run.id);
    return link.href;
  }

  async share() {
    await copyText(this.link);
    this.copied = true;
    this.draw();
    this.app.announce(t("shared_said", { link: this.link }));
    setTimeout(() => {
      this.copied = false;
      this.draw();
    }, 2500);
  }
}
