// A visitor's own trace, saved with "Download the trace": chosen or dropped on the page, it plays like a recording.

Object.assign(TEXTS, {
  open_trace: { en: "Open a trace from a file…", zh: "从文件打开记录…" },
  open_trace_help: { en: "A JSON file saved under Record, or by the command line. You can also drop it on the page.", zh: "在“记录”中或用命令行保存的 JSON 文件；也可直接拖到页面上。" },
  open_drop: { en: "Drop the trace here to play it", zh: "将记录拖放到此处播放" },
  open_large: { en: "This file is larger than {most} MB: it is no trace of this app.", zh: "此文件超过 {most} MB：不是本应用的记录。" },
  open_wait: { en: "Stop the run first, then open a trace.", zh: "请先停止运行，再打开记录。" },
});

const LARGEST_TRACE = 12e6; // bytes; the server holds a file against the same limit

class Opener {
  constructor(app) {
    this.app = app;
    this.input = el("input", { type: "file", accept: ".json,application/json", hidden: true, onchange: () => this.open(this.input.files[0]) });
    this.sign = el("p.drop-sign", { hidden: true, "aria-hidden": "true" });
    app.ref.layer.append(this.input, this.sign);
    const carriesFile = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
    window.addEventListener("dragover", (event) => {
      if (!carriesFile(event)) return;
      event.preventDefault();
      this.sign.textContent = t("open_drop");
      this.sign.hidden = false;
    });
    window.addEventListener("dragleave", (event) => { if (!event.relatedTarget) this.sign.hidden = true; });
    window.addEventListener("drop", (event) => {
      if (!carriesFile(event)) return;
      event.preventDefault();
      this.sign.hidden = true;
      this.open(event.dataTransfer.files[0]);
    });
  }

  /** What stands below the recordings in their menu. */
  item() {
    return el("button.menu-item.recording", { type: "button", role: "menuitem", disabled: !this.app.whole, onclick: () => {
      this.app.popover.hide();
      this.input.value = "";
      this.input.click();
    } }, icon("download"), el("span", {}, el("b", {}, t("open_trace")), el("span.muted", {}, t("open_trace_help"))));
  }

  async open(file) {
    const { app } = this;
    const refuse = (key, values) => app.complain({ code: key, text: { en: fill(TEXTS[key].en, values), zh: fill(TEXTS[key].zh, values) }, values: {} });
    if (!file || !app.whole) return undefined;
    if (file.size > LARGEST_TRACE) return refuse("open_large", { most: LARGEST_TRACE / 1e6 });
    if (app.live || app.starting) return refuse("open_wait", {});
    const opened = await app.call("open_trace", await file.text());
    if (opened.error) return app.complain(opened.error);
    if (app.live || app.starting) return undefined;
    app.editor.close();
    app.show(opened);
    return app.prepare();
  }
}
