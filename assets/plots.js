// Plotly figures: asked of the server when somebody looks at them, drawn with Plotly.react, which keeps the zoom.

let plotly = null; // a promise, once the first figure is wanted

function loadPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const root = (window.gradio_config?.root ?? "").replace(/\/$/, "");
    const script = el("script", { src: root + PLOTLY_ADDRESS });
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      plotly = null;
      reject(new Error("Plotly could not be loaded"));
    };
    document.head.append(script);
  });
  return plotly;
}

class Plot {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.area = el("div.plot-area"); // an image as soon as there is a text that says what it shows
    this.caption = el("figcaption.plot-text");
    this.table = el("details.plot-table", { hidden: true }, el("summary"));
    this.root = el("figure.plot", {}, this.area, this.caption, this.table);
    this.inView = false;
    this.drawnKey = null;
    this.drawnAt = 0;
    this.cost = 0;
    this.busy = false;
    this.failed = false; // whether the last answer was none: asked again, but not at the pace of a picture that moves
    this.timer = null;
    this.data = null;
    new IntersectionObserver(([entry]) => {
      this.inView = entry.isIntersecting;
      if (this.inView) this.want();
    }).observe(this.root);
    this.table.addEventListener("toggle", () => this.table.open && this.fillTable());
  }

  /** What the picture depends on; null where there is nothing to draw. */
  key() {
    const { app } = this;
    const { run } = app;
    if (!run?.about) return null;
    const { lane, position } = app.focused();
    const count = run.lanes.reduce((sum, one) => sum + one.tokens.length + (one.finished ? 1 : 0), 0);
    if (!count) return null;
    const figure = app.declarations.figures.find((one) => one.name === this.name);
    const step = figure?.scope === "step";
    if (step && position === null) return null;
    return { run: run.id, lane: figure?.scope === "race" ? null : lane, position: step ? position : null, count: step ? 0 : count, theme: app.theme(), language, narrow: this.root.clientWidth < 560 };
  }

  /** What the server is asked for, and how long to wait before that, in ms. */
  ask(key) {
    return this.app.call("figure", key.run, this.name, key.lane, key.position, { theme: key.theme, language: key.language, narrow: key.narrow });
  }

  pause() {
    // A slow server or browser is asked less often: while a run is live, drawing must not slow it down.
    return Math.max(calm() ? 500 : 200, Math.min(1500, (this.app.live ? 4 : 1) * this.cost));
  }

  /** Whether anybody looks. */
  get wanted() {
    return this.inView;
  }

  /** Called when a picture was drawn, or could not be: what is said of it belongs to the same step. */
  told() {}

  /** Draw soon, if what is drawn isn't what is wanted: one request at a time, five a second at most. */
  want() {
    if (!this.wanted || !this.root.isConnected || this.busy || this.timer) return;
    const key = this.key();
    this.root.hidden = key === null;
    if (key === null || JSON.stringify(key) === this.drawnKey) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.draw();
    }, Math.max(0, (this.failed ? LOOK.gone : this.pause()) - (performance.now() - this.drawnAt)));
  }

  async draw() {
    const key = this.key();
    if (key === null || this.busy) return;
    this.busy = true;
    let began = performance.now();
    try {
      const library = await loadPlotly();
      began = performance.now();
      const answer = await this.ask(key);
      this.failed = Boolean(answer.error);
      if (answer.error) {
        this.caption.textContent = said(answer.error.text);
        return;
      }
      const figure = typeof answer.figure === "string" ? JSON.parse(answer.figure) : answer.figure;
      const layout = { ...figure.layout, autosize: true, uirevision: figure.layout?.uirevision ?? `${key.run}.${this.name}` };
      delete layout.width;
      await library.react(this.area, figure.data, layout, { displayModeBar: false, responsive: true, scrollZoom: false, locale: "en" });
      this.data = answer.table;
      this.caption.textContent = said(answer.text);
      this.area.setAttribute("role", "img");
      this.area.setAttribute("aria-label", said(answer.text));
      this.table.hidden = false;
      this.table.querySelector("summary").textContent = t("as_table");
      if (this.table.open) this.fillTable();
      this.drawnKey = JSON.stringify(key);
      this.app.stats.draws += 1;
    } catch (error) {
      this.failed = true;
      this.caption.textContent = t("lost");
      console.error(error);
    } finally {
      this.cost = performance.now() - began;
      this.drawnAt = performance.now();
      this.busy = false;
      this.told(key);
      if (this.drawnKey !== null) this.want();
    }
  }

  fillTable() {
    this.table.querySelector(".table-wrap")?.remove();
    if (this.data?.length) this.table.append(tableOf(this.data));
  }
}

/** A table in the DOM from rows of plain values, the first one holding the column names. */
function tableOf(rows) {
  const [head, ...body] = rows;
  return el("div.table-wrap", { tabindex: "0" }, el("table", {},
    el("thead", {}, el("tr", {}, head.map((cell) => el("th", { scope: "col" }, String(cell))))),
    el("tbody", {}, body.map((row) => el("tr", {}, row.map((cell) => el("td", {}, String(cell))))))));
}
