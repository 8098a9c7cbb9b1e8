// Whether the app is there. Every call goes through here, so that what is no answer becomes a state, and never a drawing.

Object.assign(TEXTS, {
  lost: { en: "The app doesn't answer: it was stopped, or the connection to it is broken.", zh: "应用没有响应：它已停止运行，或连接已断开。" },
  gone: { en: "{lost} What is on this page stays, and a recording plays on. It goes on by itself as soon as the app is back.", zh: "{lost}页面上的内容会保留，录制可继续播放。应用恢复后，页面会自动继续。" },
  call_failed: { en: "Something broke in the app while it answered; it is in the app's log.", zh: "应用在应答时出错；详情在应用的日志中。" },
  recording_away: { en: "not loaded on this page yet, and the app doesn't answer", zh: "此页面尚未加载它，而应用没有响应" },
});

/** Milliseconds between two looks at an app that is there, and at one that is gone; and how long one look may take. */
const LOOK = { there: 10000, gone: 1500, longest: 8000 };

const failed = (code) => ({ error: { code, text: TEXTS[code], values: {} } });

class Connection {
  /** `left` is called when the app is found gone, `back` when one is there again: with whether it is another process. */
  constructor(server, left, back) {
    this.server = server;
    this.left = left;
    this.back = back;
    this.there = true;
    this.app = null; // the id of the process that answers, once known
    this.looking = null; // the look that is under way
    this.timer = null;
    for (const event of ["online", "visibilitychange"]) (event === "online" ? window : document).addEventListener(event, () => !document.hidden && this.look());
    this.look();
  }

  /** Call a function of the app; the answer is the function's own, or {error: {code: "lost" | "call_failed", …}}. */
  async call(name, ...values) {
    if (!this.there) return failed("lost");
    let answer = null;
    try {
      answer = await this.server[name](values);
    } catch (error) {
      console.error(error);
    }
    if (answer !== null && typeof answer === "object") return answer;
    // Gradio answers undefined for an app that is gone and for one in which the function broke: the app itself tells which.
    return failed((await this.look()) ? "call_failed" : "lost");
  }

  /** Ask for the app's id, which every process has its own of; resolves to whether there is an app. */
  look() {
    this.looking ??= this.identify().then((app) => {
      this.looking = null;
      this.found(app);
      clearTimeout(this.timer);
      this.timer = setTimeout(() => (document.hidden && this.there ? null : this.look()), this.there ? LOOK.there : LOOK.gone);
      return this.there;
    });
    return this.looking;
  }

  async identify() {
    const { root = "", api_prefix: prefix = "/gradio_api" } = window.gradio_config ?? {};
    try {
      const answer = await fetch(`${root.replace(/\/$/, "")}${prefix}/app_id`, { cache: "no-store", signal: AbortSignal.timeout(LOOK.longest) });
      return answer.ok ? String((await answer.json()).app_id) : null;
    } catch {
      return null;
    }
  }

  found(app) {
    const was = { there: this.there, app: this.app };
    this.there = app !== null;
    if (app === null) {
      if (was.there) this.left();
      return;
    }
    this.app = app;
    const another = was.app !== null && was.app !== app;
    if (!was.there || another) this.back(another);
  }
}
