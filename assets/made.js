// Where the run on the page comes from, if it was made here before, and the link by which others watch it.

Object.assign(TEXTS, {
  made_ago: { en: "Made here {time} ago.", zh: "{time} 前已在此生成。" },
  made_live: { en: "Started here {time} ago by somebody else: you are watching it.", zh: "{time} 前已有人在此启动：您正在观看。" },
  show_made: { en: "Show the answer made here", zh: "显示此前在此生成的结果" },
  show_made_help: { en: "Just this was run here already: show it. To let the model write it anew, choose Run afresh.", zh: "同样的请求已在此运行过：直接显示结果。要让模型重新生成，请选“重新运行”。" },
  about_seconds_help: { en: "The time: from runs like it measured here, if every lane writes as much as it may.", zh: "用时：根据在此测得的同类运行，按每条通道写满上限估计。" },
  afresh: { en: "Run afresh", zh: "重新运行" },
  afresh_help: { en: "Let the model write everything anew, with times measured now.", zh: "让模型重新生成一遍，并重新测量用时。" },
  share: { en: "Share", zh: "分享" },
  share_help: { en: "Copy a link: whoever opens it watches this run.", zh: "复制链接：打开它的人都能观看这个运行。" },
  shared: { en: "Link copied", zh: "链接已复制" },
  shared_lives: { en: "It works as long as this app runs and keeps the run.", zh: "只要本应用在运行并保留该运行，链接就有效。" },
  shared_recorded: { en: "It plays this recording.", zh: "它播放此录制。" },
  shared_old: { en: "It shows the run above, of the prompt “{prompt}”, not what was changed since.", zh: "它显示上方的运行（提示词为“{prompt}”），不含此后的更改。" },
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
    this.copied = null; // what was said of the link that was copied, for a while
    setInterval(() => this.at !== null && this.draw(), 15000);
  }

  forget() {
    this.copied = null;
    this.at = null; // when the run was made, in ms, if it was there before this page asked for it
    this.note = null; // what the server says of how it took the request
  }

  /** What the server answered to a request, or what is remembered of it. */
  take({ at = null, note = null }) {
    this.at = at;
    this.note = note;
  }

  /** Whether Run would only show what was made here already: an answer to just this request, which isn't on the page yet. */
  get offered() {
    const { prepared, preparedFor, run, live } = this.app;
    return Boolean(prepared?.made) && !live && prepared.made !== run?.id && preparedFor === JSON.stringify(this.app.asked());
  }

  draw() {
    const { ref, run, guest, live } = this.app;
    const made = this.at !== null && run !== null && !run.recorded;
    const { offered } = this;
    ref.made.hidden = !made && !offered && !this.note && !this.copied;
    this.ago.hidden = !made;
    this.afresh.hidden = !made && !offered;
    if (made) this.ago.textContent = t(live && guest ? "made_live" : "made_ago", { time: age((Date.now() - this.at) / 1000) });
    this.afresh.textContent = t("afresh");
    this.afresh.title = t("afresh_help");
    this.afresh.disabled = !this.app.canStart;
    this.said.hidden = !this.note && !this.copied;
    this.said.textContent = [this.copied, said(this.note)].filter(Boolean).join(" ");
    ref.share.hidden = !run || Boolean(run.gone);
    const key = `${Boolean(this.copied)}${language}`;
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

  /** What the link shows, and for how long. */
  get shows() {
    const { run, sameAsRun } = this.app;
    const prompt = run.about?.request?.prompt?.text ?? "";
    return [sameAsRun ? null : t("shared_old", { prompt: prompt.length > 60 ? `${prompt.slice(0, 59)}…` : prompt }),
      run.recorded && !this.app.replay?.recording.opened ? t("shared_recorded") : t("shared_lives")].filter(Boolean).join(" ");
  }

  async share() {
    await copyText(this.link);
    this.copied = this.shows;
    this.draw();
    this.app.announce(`${t("shared_said", { link: this.link })} ${this.copied}`);
    clearTimeout(this.forgetting);
    this.forgetting = setTimeout(() => {
      this.copied = null;
      this.draw();
    }, 10000);
  }
}
