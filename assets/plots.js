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

/** How long what is drawn stays at least, in ms: five pictures a second, two for those who asked for less motion. */
const leastPause = () => (calm() ? 500 : 200);

/** What the server is asked anew whenever that has changed on which its answer depends: one question at a time, and no more often than a picture is drawn. */
class Asking {
  constructor(ask) {
    this.ask = ask;
    this.wanted = this.asked = null;
    this.busy = false;
    this.timer = null;
    this.at = 0;
  }

  /** Ask soon, if the answer to this wasn't asked for yet. */
  want(key) {
    this.wanted = key;
    if (this.busy || this.timer || key === this.asked) return;
    this.timer = setTimeout(() => this.go(), Math.max(0, leastPause() - (performance.now() - this.at)));
  }

  async go() {
    this.timer = null;
    this.busy = true;
    this.asked = this.wanted;
    try {
      await this.ask();
    } finally {
      this.busy = false;
      this.at = performance.now();
      this.want(this.wanted);
    }
  }

  /** The next answer is another one, even to the same question. */
  forget() {
    this.asked = null;
  }
}

/** How long nothing has to be drawn, in ms, before a picture out of sight is brought up to date. */
const SETTLED = 800;

class Plot {
  constructor(app, name) {
    this.app = app;
    this.name = name;
    this.area = el("div.plot-area"); // an image as soon as there is a text that says what it shows
    this.caption = el("figcaption.plot-text");
    this.table = el("details.plot-table", { hidden: true }, el("summary"));
    this.root = el("figure.plot", {}, this.area, this.caption, this.table);
    this.inView = false;
    this.drawnKey = this.drawnFor = null; // what is drawn, and of which run
    this.cleared = false; // whether a picture was taken away whose space is kept
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
    if (!run.lanes.some((one) => one.tokens.length || one.finished)) return null;
    const figure = app.declarations.figures.find((one) => one.name === this.name);
    const step = figure?.scope === "step";
    if (step && position === null) return null;
    // A step stays as it was, unless another beam's takes its place; everything else grows.
    const depends = step ? { position, switches: run.lanes[lane].switches } : this.moment();
    return { run: run.id, lane: figure?.scope === "race" ? null : lane, ...depends, theme: app.theme(), language, narrow: this.root.clientWidth < 560 };
  }

  /** What of the run a picture tells of that grows with it. */
  moment() {
    const { run, viewed } = this.app;
    return { view: viewed, count: run.recorded ? null : run.lanes.reduce((sum, one) => sum + one.tokens.length + (one.finished ? 1 : 0), 0) };
  }

  /** What the server is asked for, and how long to wait before that, in ms. */
  ask(key) {
    return this.app.call("figure", key.view ?? this.app.playhead, this.name, key.lane, key.position ?? null, { theme: key.theme, language: key.language, narrow: key.narrow });
  }

  pause() {
    // A slow server or browser is asked less often: while a run is live, drawing must not slow it down.
    return Math.max(leastPause(), Math.min(1500, (this.app.live ? 4 : 1) * this.cost));
  }

  /** The id of the run that it tells of. */
  get run() {
    return this.app.run?.id;
  }

  /** Whether anybody looks. */
  get wanted() {
    return this.inView;
  }

  /** Called when a picture was drawn, or could not be: what is said of it belongs to the same step. */
  told() {}

  /** Draw soon, if what is drawn isn't what is wanted: one request at a time, five a second at most. Out of sight it is drawn anew when nothing moves. */
  want() {
    if (!this.root.isConnected) return;
    const key = this.key();
    const old = this.age(key);
    if (this.busy || this.timer || !(this.wanted || (old && !this.app.moving))) return;
    this.root.hidden = key === null && !this.cleared;
    if (key === null || JSON.stringify(key) === this.drawnKey) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      this.draw();
    }, Math.max(0, (this.failed ? LOOK.gone : this.wanted ? this.pause() : SETTLED) - (performance.now() - this.drawnAt)));
  }

  /** Whether what is drawn tells of another moment than the page; nobody reads or prints it then. What tells of another run is taken away at once. */
  age(key) {
    if (this.drawnFor !== null && this.drawnFor !== this.run) this.clear();
    const old = this.drawnKey !== null && JSON.stringify(key) !== this.drawnKey;
    this.root.classList.toggle("stale", old);
    this.root.setAttribute("aria-busy", String(old));
    return old;
  }

  /** Take the picture away with all that is said of it; its space stays until the next one is there. */
  clear() {
    this.area.style.minHeight = `${this.area.offsetHeight}px`;
    window.Plotly?.purge(this.area);
    this.area.replaceChildren();
    this.area.removeAttribute("role");
    this.area.removeAttribute("aria-label");
    this.caption.textContent = "";
    this.table.hidden = true;
    this.table.querySelector(".table-wrap")?.remove();
    this.data = this.drawnKey = this.drawnFor = null;
    this.cleared = true;
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
      if (key.run !== this.run) return; // another run came in between
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
      this.drawnFor = key.run;
      this.cleared = false;
      this.area.style.minHeight = "";
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
      if (JSON.stringify(this.key()) !== JSON.stringify(key)) this.want();
      else this.age(key);
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
