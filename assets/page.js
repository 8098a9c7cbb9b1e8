// The page: what is asked, the run, the selection, and how the parts hear of each other.

/** The model of the classic experiment, offered in one click where the Hub can be reached. */
const CLASSIC_MODEL = "gpt2";

/** How the id of a recording begins where a run has its id. */
const RECORDED = "recording:";

class Page {
  constructor(root, server) {
    this.root = root;
    this.ref = Object.fromEntries([...root.querySelectorAll("[data-ref]")].map((node) => [node.dataset.ref, node]));
    this.visitor = memory.read(localStorage, "visitor");
    if (typeof this.visitor !== "string") {
      this.visitor = crypto.getRandomValues(new Uint32Array(4)).join("-");
      memory.write(localStorage, "visitor", this.visitor);
    }
    this.stats = { packets: 0, gaps: 0, draws: 0, tokens: {} };
    this.colour = memory.read(localStorage, "colour", "probability");
    this.picked = false; // whether the visitor chose it since the page was opened
    if (!(this.colour in COLOUR_SCALES)) this.colour = "probability";
    this.declarations = null;
    this.whole = false; // whether the declarations are all there, or only those that a recording needs
    this.recordings = [];
    this.replay = null; // the recording that plays, if one does
    this.wholeRun = false; // whether figures and tables tell of all of it, wherever it stands
    this.models = null;
    this.request = null;
    this.run = null;
    this.selection = { uid: null, position: null }; // position null: the newest
    this.prepared = null;
    this.effective = new Map(); // uid → {stages, notes, model}
    this.lastGood = new Map(); // uid → the lane as it was last accepted
    this.refused = new Map(); // uid → the error about its newest change
    this.ranAs = new Map(); // uid → fingerprint of the lane at the start of the run
    this.starting = false;
    this.foreign = false; // the run is somebody else's, and its request isn't known yet
    this.guest = false; // the run is somebody else's: it can be watched, not controlled
    this.missing = null; // the error about the run that was asked for, where the app doesn't have it
    this.fetched = new Map(); // name → the recording, once it is here
    this.connection = new Connection(server, () => this.left(), (another) => this.back(another));
    this.stamp = 0; // counts what was asked: an answer to an older question is dropped
    const later = debounced(() => this.prepare(), 250);
    this.tellPrepare = () => {
      this.stamp += 1;
      later();
    };
  }

  /** Call a function of the app: what comes back is its answer, or has an `error`. */
  call(name, ...values) {
    return this.connection.call(name, ...values);
  }

  /** The app is gone: what is here stays, and the page says so. */
  left() {
    this.drawGone();
    this.draw();
  }

  /** An app is there again: take up what broke off. Another process knows neither the run nor the models of the one before. */
  async back(another) {
    this.problem = null;
    if (another) this.models = null;
    this.drawGone();
    this.draw();
    if (!this.bus) return; // still opening: that goes on by itself
    if (this.run && !this.run.recorded && (another || this.run.live)) this.bus.follow(this.run.id, this.bus.seq);
    this.watchModels();
    this.servers.load();
    if (this.whole) this.prepare();
    if (this.recordings.length) return;
    this.recordings = (await this.call("recordings")).entries ?? [];
    this.drawRecorded();
  }

  drawGone() {
    this.ref.gone.hidden = this.connection.there;
    this.ref.gone.textContent = this.connection.there ? "" : t("gone", { lost: t("lost") });
  }

  async open() {
    this.applyTheme();
    this.popover = new Popover(this.ref.layer);
    this.opener = new Opener(this);
    this.made = new Made(this);
    this.wire();
    this.servers = new ServerBook(this);
    this.serversPage = new ServersPage(this, this.ref.servers);
    this.parameters = new Parameters(this, this.ref.parameters, this.ref.pages);
    this.speak();
    this.root.hidden = false;
    this.say(t("status_opening"));
    const everything = this.declare();
    const recording = await this.openingRecording();
    if (!recording || recording.opened) await everything; // what was opened may use any strategy and stage
    this.root.classList.remove("opening");
    // This tab's own request, ids of lanes included, so that a run finds its lanes again after a reload.
    this.setRequest(this.ownRequest() ?? this.declarations.classic);
    this.keep();
    this.editor = new Editor(this, this.ref.layer);
    this.lanes = new Lanes(this, this.ref.lanes);
    this.parting = new Parting(this);
    this.whatIf = new WhatIf(this);
    this.focus = new Focus(this, this.ref.focus);
    translate(this.ref.focus);
    this.bus = new Bus((packet) => this.heard(packet), () => this.drawStatus(), () => this.connection.look());
    if (recording) this.show(recording);
    else this.resume();
    this.draw();
    await everything;
    this.servers.load();
    this.draw();
    this.prepare();
    this.watchModels();
  }

  /** Everything that the controls are built from; the server has it when its modules are imported. */
  async declare() {
    while (!this.whole) {
      const answer = await this.call("declarations");
      if (answer.error) {
        this.say(said(answer.error.text));
        await new Promise((resolve) => setTimeout(resolve, 1500));
      } else {
        this.declarations = answer;
        this.whole = true;
      }
    }
  }

  /** What this visitor asked before; null for a new one. */
  ownRequest() {
    return memory.read(sessionStorage, "request") ?? memory.read(localStorage, "request");
  }

  /** The recording that the page opens with: the one that is named, or the classic one where the visitor has no run and no request of their own. */
  async openingRecording() {
    const linked = new URLSearchParams(location.search).get("run");
    const named = String(linked ?? memory.read(sessionStorage, "run")?.id ?? `${RECORDED}classic`);
    const wanted = named.startsWith(RECORDED);
    const [list, recording] = await Promise.all([this.call("recordings"), wanted ? this.fetchRecording(named.slice(RECORDED.length)) : null]);
    this.recordings = list.entries ?? [];
    if (!wanted) return null;
    const own = this.ownRequest();
    if (list.error || recording.error || (!linked && own && !sameRequest(own, recording.about.request))) {
      memory.write(sessionStorage, "run", null);
      return null;
    }
    this.declarations ??= list.declarations;
    return recording;
  }

  // --- recordings --------------------------------------------------------------------------

  /** Play a recording in the lanes; what was asked in it is what the page asks now. */
  show(recording) {
    this.replay?.leave();
    this.bus.leave();
    this.foreign = this.guest = false;
    this.made.forget();
    this.problem = this.promptError = this.prepared = this.missing = null;
    this.setRequest(recording.about.request);
    const uids = this.request.lanes.map((lane) => lane.uid);
    this.effective = new Map(uids.map((uid, index) => [uid, { model: recording.about.lanes[index].model, stages: recording.about.lanes[index].stages, notes: [] }]));
    this.ranAs = new Map(uids.map((uid) => [uid, this.fingerprint(uid)]));
    this.keep();
    memory.write(sessionStorage, "run", { id: recording.run, uids, ranAs: [...this.ranAs] });
    this.replay = new Replay(recording, (packets) => this.replayed(packets));
    this.wholeRun = false;
    this.enter(recordedRun(recording, uids));
    this.draw();
    this.editor.draw();
    const guesses = recording.about.lanes.findIndex((lane) => speculative(lane.strategy));
    if (guesses >= 0) {
      this.selectLane(uids[guesses]);
      this.focus.show("speculation");
    }
    if (calm()) this.replay.skip();
    else this.replay.play();
  }

  /** A recording never changes: once here, it needs no app. */
  async fetchRecording(name) {
    const recording = this.fetched.get(name) ?? (await this.call("recording", name));
    if (!recording.error) this.fetched.set(name, recording);
    return recording;
  }

  async chooseRecording(name) {
    const recording = await this.fetchRecording(name);
    if (recording.error) return this.complain(recording.error);
    if (this.live || this.starting) return undefined;
    this.editor.close();
    this.show(recording);
    return this.prepare();
  }

  replayed(packets) {
    const { replay, run } = this;
    const phase = replay.playing ? "running" : replay.ended ? "done" : "paused";
    run.state = { ...run.state, phase };
    for (const packet of packets) run.apply({ ...packet, state: run.state });
    run.lanes.forEach((lane, index) => { this.stats.tokens[index] = lane.tokens.length; });
    if (replay.parted && !replay.told) {
      replay.told = true;
      const { lanes, position } = replay.parts;
      const drawn = [...lanes].reverse().find((lane) => run.lanes[lane].tokens[position].u !== null) ?? lanes[1];
      this.selection = { uid: run.uids[drawn], position };
      // Where only one lane is in front, the other one of the two stays beside it.
      this.lanes.shown = run.uids[drawn];
      this.lanes.pinned ??= run.uids[lanes.find((lane) => lane !== drawn)];
      this.lanes.drawTabs();
      this.announce(this.parting.sentence().map((node) => node.textContent).join(""));
    }
    this.redraw();
  }

  /** Play, go on, or begin anew. */
  playOrPause() {
    const { replay } = this;
    if (!replay) return;
    if (replay.playing) return replay.pause();
    if (replay.ended) {
      replay.again();
      this.enter(recordedRun(replay.recording, this.run.uids));
    }
    return replay.play();
  }

  drawRecorded() {
    const { ref, replay } = this;
    ref.recorded.hidden = !replay;
    ref.recordings.hidden = !this.recordings.length;
    ref.recordings.disabled = this.live || this.starting;
    this.parting.draw();
    if (!replay) return;
    const { title, about } = replay.recording;
    ref.recordedTitle.textContent = said(title);
    ref.recordedFrom.textContent = t("recorded_from", recordedFrom(about));
    const key = replay.playing ? "pause" : replay.ended ? "play_again" : replay.next ? "play_on" : "play";
    if (ref.replayPlay.dataset.key !== key + language) {
      ref.replayPlay.dataset.key = key + language;
      ref.replayPlay.replaceChildren(icon(replay.playing ? "pause" : "play"), t(key));
    }
    ref.replayStep.disabled = replay.ended;
    ref.replaySpeed.textContent = `${replay.speed}×`;
    ref.replaySpeed.setAttribute("aria-label", t("speed", { speed: replay.speed }));
    ref.replayProgress.style.transform = `scaleX(${Math.min(1, replay.time / (replay.seconds || 1))})`;
  }

  recordingsMenu() {
    const item = (one) => {
      const away = !this.connection.there && !this.fetched.has(one.name);
      return el("button.menu-item.recording", { type: "button", role: "menuitem", disabled: away, onclick: () => {
        this.popover.hide();
        this.chooseRecording(one.name);
      } }, icon("play"), el("span", {}, el("b", {}, said(one.title)), el("span.muted", {}, away ? t("recording_away") : said(one.line))));
    };
    const build = () => [el("p.menu-help", {}, t("recordings_help")), el("div.menu", { role: "menu" }, this.recordings.map(item), this.opener.item())];
    this.popover.show(this.ref.recordings, build, 0);
    setTimeout(() => this.popover.box.querySelector(".menu-item:not(:disabled)")?.focus(), 30);
  }

  // --- what is asked -----------------------------------------------------------------------

  /** Take over a request from anywhere; lanes get what they lack, and an id of the page's own. */
  setRequest(raw) {
    const whole = (lane) => ({ name: "", strategy: "greedy", knobs: {}, order: "transformers", defaults: "off", model: null, max_new_tokens: 80, stop: [], branch: null, ...clone(lane), uid: lane.uid ?? newUid() });
    this.request = {
      prompt: { text: "", chat: null, system: null, ...raw.prompt },
      lanes: (raw.lanes ?? []).slice(0, this.declarations.limits.lanes).map(whole),
      seed: raw.seed ?? 0, model: raw.model ?? null, share_prompt: raw.share_prompt ?? true, align: raw.align ?? false,
    };
    const strategies = this.declarations.strategies.map((one) => one.name);
    for (const lane of this.request.lanes) if (!strategies.includes(lane.strategy)) lane.strategy = strategies[0];
    this.lastGood = new Map();
    this.selection = { uid: this.request.lanes[0]?.uid ?? null, position: null };
    this.ref.prompt.value = this.request.prompt.text;
    this.fitPrompt();
  }

  /** The request as the server reads it. */
  asked() {
    return { ...this.request, lanes: this.request.lanes.map(({ uid, ...lane }) => lane) };
  }

  keep() {
    memory.write(localStorage, "request", this.request);
    memory.write(sessionStorage, "request", this.request);
  }

  reset() {
    this.editor.close();
    this.setRequest(this.declarations.classic);
    this.changed();
  }

  /** A plain and a speculative lane on a prompt of ours, and run them. */
  askPair(name) {
    if (this.live || this.starting) return;
    this.editor.close();
    this.setRequest(this.declarations.pairs[name]);
    this.changed();
    this.start();
  }

  changed() {
    this.keep();
    this.draw();
    this.editor.draw();
    this.tellPrepare();
  }

  edit(uid, change) {
    const lane = this.request.lanes.find((one) => one.uid === uid);
    if (!lane) return;
    change(lane);
    this.refused.delete(uid);
    this.changed();
  }

  editRequest(change) {
    change(this.request);
    this.changed();
  }

  chooseModel(id) {
    this.editRequest((request) => { request.model = id === this.models?.default ? null : id; });
  }

  async setDevice(device, dtype) {
    const answer = await this.call("set_device", device, dtype);
    if (answer.error) this.complain(answer.error);
    else this.models = answer;
    this.editor.draw();
    this.watchModels();
  }

  /** A strategy keeps the knobs that are stages' and loses those of the strategy before. */
  setStrategy(lane, name) {
    const known = new Set(this.declarations.stages.flatMap((stage) => Object.keys(stage.knobs)));
    lane.strategy = name;
    lane.knobs = Object.fromEntries(Object.entries(lane.knobs).filter(([knob]) => known.has(knob)));
  }

  /** Off, whoever switched it on: what was asked for is dropped, what was inherited is told to be off. */
  switchOff(lane, stage) {
    for (const [name, knob] of Object.entries(this.stage(stage.stage)?.knobs ?? {})) {
      if (stage.origin === "asked") delete lane.knobs[name];
      if ((stage.origin !== "asked" || lane.defaults === "inherit") && knob.off !== null) lane.knobs[name] = knob.off;
    }
  }

  /** The stages that a lane asks for, in order, the switched-off ones left out. */
  askedStages(lane) {
    const warps = this.declarations.strategies.find((one) => one.name === lane.strategy).warps;
    const off = (knob, value) => knob.off !== null && JSON.stringify(value) === JSON.stringify(knob.off);
    return this.orderOf(lane).map((name) => this.stage(name)).filter((stage) => {
      const asked = Object.entries(stage?.knobs ?? {}).filter(([name]) => name in lane.knobs);
      return asked.some(([name, knob]) => knob.off !== null && !off(knob, lane.knobs[name]));
    }).map((stage) => ({
      stage: stage.name, kind: stage.kind, origin: "asked", idle: stage.kind === "warper" && !warps,
      knobs: Object.fromEntries(Object.entries(stage.knobs).map(([name, knob]) => [name, lane.knobs[name] ?? knob.default])),
    }));
  }

  stage(name) {
    return this.declarations.stages.find((one) => one.name === name) ?? null;
  }

  knobNamed(name) {
    return [...this.declarations.stages, ...this.declarations.strategies].some((one) => name in one.knobs);
  }

  orderOf(lane) {
    return typeof lane.order === "string" ? [...this.declarations.orders[lane.order]] : [...lane.order];
  }

  add() {
    this.insert({ strategy: "sample", name: t("lane", { number: this.request.lanes.length + 1 }), knobs: { temperature: 1 } }, this.request.lanes.length);
  }

  duplicate(uid) {
    const at = this.request.lanes.findIndex((lane) => lane.uid === uid);
    const { uid: _, ...lane } = this.request.lanes[at];
    this.insert(clone(lane), at + 1);
  }

  /** Add a lane; returns its id. */
  insert(lane, at, focus = true) {
    const whole = { name: "", strategy: "greedy", knobs: {}, order: "transformers", defaults: "off", model: null, max_new_tokens: this.request.lanes[0]?.max_new_tokens ?? 80, stop: [], branch: null, ...lane, uid: newUid() };
    this.request.lanes.splice(at, 0, whole);
    this.lanes.shown = whole.uid;
    this.changed();
    if (focus) this.lanes.card(whole.uid)?.name.focus();
    return whole.uid;
  }

  remove(uid) {
    this.request.lanes = this.request.lanes.filter((lane) => lane.uid !== uid);
    if (this.selection.uid === uid) this.selection = { uid: this.request.lanes[0].uid, position: null };
    this.changed();
  }

  move(uid, by) {
    const lanes = this.request.lanes;
    const at = lanes.findIndex((lane) => lane.uid === uid);
    [lanes[at], lanes[at + by]] = [lanes[at + by], lanes[at]];
    this.changed();
  }

  applyPreset(uid, preset) {
    this.edit(uid, (lane) => Object.assign(lane, { name: "", knobs: {}, order: "transformers", defaults: "off", stop: [] }, clone(preset.lane), { uid }));
  }

  /** What of the request decides a lane's output, the lane's own settings and all lanes' alike: if it differs from what ran, the card says so. */
  fingerprint(uid) {
    const lane = this.request.lanes.find((one) => one.uid === uid);
    if (!lane) return null;
    const { uid: _, name, ...rest } = lane;
    const { lanes, ...shared } = this.request;
    return JSON.stringify([rest, shared]);
  }

  /** Whether what is asked now is what the run on the page was asked; names don't count. */
  get sameAsRun() {
    const uids = this.request.lanes.map((lane) => lane.uid);
    return Boolean(this.run) && uids.length === this.run.uids.length && uids.every((uid, index) => uid === this.run.uids[index] && this.ranAs.get(uid) === this.fingerprint(uid));
  }

  /** Ask what the request would run as; a lane whose newest value is refused goes back to its last good state. */
  async prepare() {
    const request = this.asked();
    const uids = this.request.lanes.map((lane) => lane.uid);
    const stamp = (this.stamp += 1);
    const answer = await this.call("prepare", request);
    if (stamp !== this.stamp) return;
    if (!this.connection.there) return; // asked again once the app is back
    this.promptError = null;
    let reverted = false;
    const refuse = (uid, error) => {
      const good = this.lastGood.get(uid);
      const at = this.request.lanes.findIndex((lane) => lane.uid === uid);
      // What was good until the model was changed can't go back to anything.
      if (good && at >= 0 && JSON.stringify(good) !== JSON.stringify(this.request.lanes[at])) {
        this.request.lanes[at] = clone(good);
        reverted = true;
        this.refused.set(uid, { ...error, reverted: true });
        if (this.editor.what?.lane !== uid) this.complainOf(error); // no field is there to say it beside
      } else this.refused.set(uid, error);
    };
    if (answer.error) {
      const uid = uids[answer.error.values?.lane];
      if (uid) refuse(uid, answer.error);
      else this.promptError = answer.error;
    } else {
      this.prepared = answer;
      this.preparedFor = JSON.stringify(request);
      answer.lanes.forEach((lane, index) => {
        const uid = uids[index];
        if (lane.error) return refuse(uid, lane.error);
        // Without the model only the recording knows what a lane inherits.
        const ran = this.run?.recorded && !lane.stages.length && this.ranAs.get(uid) === this.fingerprint(uid);
        this.effective.set(uid, ran ? { ...lane, stages: this.run.about.lanes[this.run.uids.indexOf(uid)].stages } : lane);
        if (!this.refused.get(uid)?.reverted) this.refused.delete(uid);
        const now = this.request.lanes.find((one) => one.uid === uid);
        if (now) this.lastGood.set(uid, clone(now));
      });
    }
    if (reverted) {
      this.keep();
      this.tellPrepare();
    }
    this.draw();
    this.editor.draw();
  }

  // --- the model ---------------------------------------------------------------------------

  async watchModels() {
    if (this.watching) return;
    this.watching = true;
    let ready = null;
    do {
      const answer = await this.call("models");
      if (!answer.error || answer.state) {
        ready = answer.state === "ready";
        const before = this.models?.state;
        this.models = answer;
        if (ready && before !== "ready") this.prepare();
        this.drawStatus();
        this.drawModel();
      } else this.drawStatus();
      if (!ready) await new Promise((resolve) => setTimeout(resolve, this.models?.state === "failed" ? 3000 : 700));
    } while (!ready);
    this.watching = false;
  }

  get ready() {
    return this.models?.state === "ready";
  }

  // --- the run -----------------------------------------------------------------------------

  /** Whether a run goes on; of one in an app that is gone nobody can say so. */
  get live() {
    return Boolean(this.run?.live) && this.connection.there;
  }

  /** Whether what the lanes show is changing by itself. */
  get moving() {
    return this.live || Boolean(this.replay?.playing);
  }

  /** By what name the server is asked for what the lanes show: a recording as far as it has played. */
  get playhead() {
    const { run, replay } = this;
    return replay && !replay.ended ? `${run.id}@${replay.next}` : run.id;
  }

  /** By what name it is asked for figures and tables. */
  get viewed() {
    return this.wholeRun ? this.run.id : this.playhead;
  }

  /** The run of which figures and tables tell. */
  get seen() {
    return this.replay && this.wholeRun ? this.replay.whole(this.run.uids) : this.run;
  }

  /** Whether any lane runs on this machine. */
  get needsModel() {
    return this.request.lanes.some((lane) => !lane.server);
  }

  /** Whether a run can be asked for now; watching somebody else's keeps nobody from it. */
  get canStart() {
    return !(this.live && !this.guest) && !this.starting && this.connection.there && (this.ready || !this.needsModel) && !this.promptError;
  }

  /** Ask for a run, or with `reuse` for what was made here where the button says so, and else to join one of the same that goes on. */
  async start(reuse = true) {
    if (!this.canStart) return;
    const how = reuse && (this.made.offered || "going");
    this.starting = true;
    this.drawStatus();
    const uids = this.request.lanes.map((lane) => lane.uid);
    const ranAs = uids.map((uid) => [uid, this.fingerprint(uid)]);
    const answer = await this.call("start", this.asked(), this.visitor, how);
    this.starting = false;
    if (answer.error) {
      this.complain(answer.error);
      this.drawRecorded();
      return;
    }
    this.guest = !answer.yours;
    this.problem = null;
    const made = { at: answer.made === null ? null : Date.now() - 1000 * answer.made, note: answer.note };
    this.ranAs = new Map(ranAs);
    this.begin(answer.run, uids);
    this.run.state.seconds = answer.seconds;
    this.run.state.place = answer.place;
    this.made.take(made);
    memory.write(sessionStorage, "run", { id: answer.run, uids, ranAs, guest: this.guest, made });
    this.draw();
  }

  /** Follow a run from its beginning. */
  begin(id, uids) {
    this.replay?.leave();
    this.replay = this.missing = null;
    this.enter(new Run(id, uids));
    this.made.forget();
    this.bus.follow(id, 0);
  }

  /** From here on the page shows this run: no view keeps anything of the one before it when it is drawn next. */
  enter(run) {
    this.run = run;
    this.stats.tokens = {};
    this.selection.position = null;
    for (const card of this.lanes.cards.values()) card.strip.clear();
    this.focus.forget();
    this.lanes.draw();
  }

  /** Let figures and tables tell of the whole recording, or of it as far as it has played. */
  showWhole(whole) {
    this.wholeRun = whole;
    this.focus.draw();
  }

  /** After a reload: the run that this tab was looking at, or the one that the address names. */
  resume() {
    const named = new URLSearchParams(location.search).get("run");
    const kept = memory.read(sessionStorage, "run");
    if (kept && Array.isArray(kept.uids) && (!named || named === kept.id)) {
      this.ranAs = new Map(kept.ranAs ?? []);
      this.begin(kept.id, kept.uids);
      this.guest = Boolean(kept.guest);
      this.made.take(kept.made ?? {});
    } else if (named) {
      this.foreign = this.guest = true;
      this.begin(named, this.request.lanes.map((lane) => lane.uid));
    }
  }

  /** Somebody else's run brings its own request. */
  adopt(about) {
    this.foreign = false;
    if (!about.request) return;
    this.setRequest(about.request);
    this.run.uids = this.request.lanes.map((lane) => lane.uid);
    while (this.run.lanes.length < this.run.uids.length) this.run.lanes.push(new LaneLog());
    this.run.lanes.length = this.run.uids.length;
    this.ranAs = new Map(this.run.uids.map((uid) => [uid, this.fingerprint(uid)]));
    this.lanes.draw();
    this.tellPrepare();
  }

  /** The app doesn't have the run: say so, and keep what was heard of it. */
  miss(state) {
    memory.write(sessionStorage, "run", null);
    this.foreign = this.guest = false;
    this.made.forget();
    this.missing = state.error;
    const { run } = this;
    if (run.lanes.some((lane) => lane.tokens.length)) Object.assign(run, { gone: true, state: { ...run.state, phase: "failed", error: state.error } });
    else this.run = null;
    this.announce(said(state.error.text));
    this.tellPrepare();
    this.draw();
  }

  heard(packet) {
    const { run } = this;
    if (!run || packet.run !== run.id) return;
    const before = run.state.phase;
    if (packet.state.error?.code === "run_unknown") return this.miss(packet.state);
    if (packet.about && this.foreign) this.adopt(packet.about);
    run.apply(packet);
    Object.assign(this.stats, { packets: this.bus.stats.packets, gaps: this.bus.stats.gaps });
    run.lanes.forEach((lane, index) => { this.stats.tokens[index] = lane.tokens.length; });
    const { phase } = run.state;
    if (phase !== before) {
      if (phase === "running" && before !== "paused") this.announce(t("said_started"));
      if (phase === "done") this.announce(t("said_finished"));
      if (phase === "failed") this.announce(`${t("status_failed")} ${said(run.state.error?.text)}`);
      if (!run.live) {
        this.tellPrepare(); // the expected seconds are known better now
        this.watchModels();
      }
    }
    this.redraw();
  }

  /** At most one drawing per frame; twice a second for those who asked for less motion. */
  redraw() {
    if (this.pending) return;
    this.pending = true;
    const work = () => {
      this.pending = false;
      for (const card of this.lanes.cards.values()) card.drawRun();
      this.drawSelection();
      this.drawStatus();
      this.drawRecorded();
      this.focus.draw();
    };
    if (calm() && this.live) setTimeout(work, 500);
    else if (document.hidden) setTimeout(work, 250);
    else requestAnimationFrame(work);
  }

  async control(action) {
    if (!this.run) return;
    const answer = await this.call("control", this.run.id, action, this.visitor);
    if (answer.error) this.complain(answer.error);
  }

  // --- the selection -----------------------------------------------------------------------

  /** The step in focus: lane and position in the run. */
  focused() {
    const { run } = this;
    let lane = run.uids.indexOf(this.selection.uid);
    if (lane < 0) lane = 0;
    const count = run.lanes[lane].tokens.length;
    const asked = this.selection.position;
    return { lane, uid: run.uids[lane], position: count ? (asked === null ? count - 1 : Math.min(asked, count - 1)) : null };
  }

  selectLane(uid) {
    if (this.selection.uid === uid) return;
    this.select(uid, null);
  }

  /** A token, by lane and position; null follows the newest. */
  select(uid, position, focus = false) {
    this.selection = { uid, position };
    if (this.lanes.shown !== uid && isNarrow()) {
      this.lanes.shown = uid;
      this.lanes.drawTabs();
    }
    this.drawSelection(focus);
    if (this.run) this.focus.draw();
  }

  selectBeside(uid, position, by) {
    const uids = this.request.lanes.map((lane) => lane.uid);
    const next = uids[(uids.indexOf(uid) + by + uids.length) % uids.length];
    const count = this.run?.lane(next)?.tokens.length ?? 0;
    if (count) this.select(next, Math.min(position, count - 1), true);
  }

  walk(by) {
    const { uid, lane, position } = this.focused();
    if (position === null) return;
    this.select(uid, Math.max(0, Math.min(this.run.lanes[lane].tokens.length - 1, position + by)));
    this.lanes.card(uid)?.strip.reveal(this.lanes.card(uid).strip.nodes[this.selection.position]);
  }

  drawSelection(focus = false) {
    const now = this.run ? this.focused() : null;
    for (const [uid, card] of this.lanes.cards) {
      const mine = now ? uid === now.uid : uid === this.selection.uid;
      card.root.classList.toggle("current", mine);
      const position = mine && this.selection.position !== null && now ? now.position : null;
      if (card.strip.selected !== position || focus) card.strip.select(position, focus && mine);
    }
  }

  // --- drawing -----------------------------------------------------------------------------

  theme() {
    const kept = memory.read(localStorage, "theme");
    if (kept === "light" || kept === "dark") return kept;
    return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  }

  applyTheme() {
    const theme = this.theme();
    document.documentElement.dataset.theme = theme;
    document.body.classList.toggle("dark", theme === "dark");
    this.ref.theme.replaceChildren(icon(theme === "dark" ? "sun" : "moon"));
    const label = t(theme === "dark" ? "theme_light" : "theme_dark");
    this.ref.theme.setAttribute("aria-label", label);
    this.ref.theme.title = label;
    this.serversPage?.load.drawFigures();
  }

  palette() {
    return this.declarations.palette[this.theme()];
  }

  colourOf(uid) {
    const index = this.request.lanes.findIndex((lane) => lane.uid === uid);
    return this.palette()[Math.max(0, index)];
  }

  laneName(uid, about = null) {
    const index = this.request.lanes.findIndex((lane) => lane.uid === uid);
    return this.request.lanes[index]?.name || about?.name || t("lane", { number: index + 1 });
  }

  /** All texts in the language now. */
  speak() {
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
    document.title = t("title");
    translate(this.root);
    for (const button of this.root.querySelectorAll("[data-language]")) button.setAttribute("aria-pressed", String(button.dataset.language === language));
    this.applyTheme();
    this.ref.settings.replaceChildren(icon("gear"), t("settings"));
    this.ref.add.replaceChildren(icon("plus"), t("add_lane"));
    this.ref.recordings.replaceChildren(icon("play"), t("recordings"));
    this.ref.replayStep.replaceChildren(icon("step"), t("step"));
    this.ref.replayStep.title = t("replay_step");
    this.ref.run.replaceChildren(icon("play"), t("run"));
    this.ref.run.disabled = true;
    for (const name of ["pause", "step", "stop"]) this.ref[name].replaceChildren(icon(name), t(name));
    this.drawGone();
    this.parameters.speak();
    this.serversPage.speak();
  }

  draw() {
    if (!this.lanes) return;
    this.drawPrompt();
    this.drawColouring();
    this.lanes.draw();
    this.ref.add.disabled = !this.whole || this.request.lanes.length >= this.declarations.limits.lanes;
    this.ref.settings.disabled = !this.whole;
    this.ref.prompt.readOnly = !this.whole;
    this.drawSelection();
    this.drawStatus();
    this.drawRecorded();
    this.drawModel();
    this.focus.draw();
  }

  drawPrompt() {
    const { request, prepared } = this;
    const chat = request.prompt.chat ?? prepared?.chat ?? true;
    this.ref.chat.setAttribute("aria-label", t("chat_help"));
    this.ref.chat.title = t("chat_help");
    this.ref.chat.replaceChildren(...[[true, "chat"], [false, "raw"]].map(([value, key]) =>
      el("button", { type: "button", disabled: !this.whole, "aria-pressed": String(chat === value), onclick: () => this.editRequest((one) => { one.prompt.chat = value; }) }, t(key))));
    const tokens = prepared?.tokens ?? [];
    const count = prepared?.prompt_tokens ?? tokens.length;
    this.ref.rendered.hidden = !tokens.length;
    this.ref.count.textContent = t("prompt_tokens", { count });
    this.ref.tokens.replaceChildren(...tokens.map(([id, text, special]) => el("span", { class: special ? "token special" : "token", title: `#${id}` }, text)));
    const note = this.promptError ?? prepared?.notes?.[0] ?? null;
    this.ref.note.hidden = !note;
    this.ref.note.classList.toggle("wrong", Boolean(this.promptError));
    if (note) {
      const offer = note.offer && (this.models?.entries ?? []).find((entry) => entry.id === note.offer);
      this.ref.note.replaceChildren(said(note.text ?? note), offer ? el("button.link", { type: "button", onclick: () => this.chooseModel(offer.id) }, t("model_offer", { name: offer.name })) : "");
    }
  }

  /** By what tokens are coloured: where lanes guess ahead by origin, until the visitor chooses otherwise. */
  get shade() {
    const drafts = this.request?.lanes.some((lane) => speculative(lane.strategy));
    return drafts && !this.picked ? "origin" : !drafts && this.colour === "origin" ? "probability" : this.colour;
  }

  drawColouring() {
    const { shade } = this;
    const scale = COLOUR_SCALES[shade];
    const drafts = this.request.lanes.some((lane) => speculative(lane.strategy));
    if (this.shaded !== shade) {
      this.shaded = shade;
      for (const card of this.lanes.cards.values()) card.strip.recolour();
    }
    const choices = Object.keys(COLOUR_SCALES).filter((name) => drafts || name !== "origin").map((name) => el("button", { type: "button", "aria-pressed": String(name === shade), title: t(`colour_help_${name}`), onclick: () => {
      this.colour = name;
      this.picked = true;
      memory.write(localStorage, "colour", name);
      this.drawColouring();
      for (const card of this.lanes.cards.values()) card.strip.recolour();
    } }, t(`colour_${name}`)));
    this.ref.colouring.replaceChildren(
      el("span.colouring-label", {}, t("colour_by")), el("div.segmented", { role: "group", "aria-label": t("colour_by") }, choices),
      scale.legend?.() ?? el("ul.legend", { title: t(`colour_help_${shade}`) }, scale.edges.map((edge, level) => el("li", {}, el("span.token", { "data-level": level }, edge)))));
  }

  drawModel() {
    const { models, ref } = this;
    if (!models) return;
    const id = this.request.model ?? models.default;
    const entry = models.entries.find((one) => one.id === id);
    // Of a model that isn't loaded only the arithmetic is known.
    const numbers = entry?.format ? said(entry.format) : models.dtype && t("computed_in", { dtype: models.dtype });
    const parts = [languagesOf(entry), models.device?.toUpperCase(), numbers].filter(Boolean);
    ref.model.replaceChildren(el("b", {}, entry?.name ?? id), el("span.muted", {}, ` · ${parts.join(" · ")}`));
    const classic = models.entries.find((one) => one.id === CLASSIC_MODEL);
    ref.classicModel.hidden = !classic?.reachable || id === CLASSIC_MODEL;
    ref.classicModel.textContent = t("model_classic");
    ref.model.setAttribute("aria-label", `${t("model")}: ${entry?.name ?? id}, ${parts.join(", ")}`);
  }

  drawStatus() {
    const { ref, run, models } = this;
    const { live } = this;
    const phase = run?.recorded ? undefined : run?.state.phase;
    const can = Boolean(this.declarations?.pause) && !this.guest;
    ref.run.hidden = live;
    ref.run.disabled = !this.canStart && !live;
    const seconds = this.promptError || [...this.refused.values()].some((one) => !one.reverted) ? null : this.prepared?.seconds; // what is refused won't run
    const showing = this.made.offered;
    const name = showing ? "show_made" : run?.recorded ? "run_here" : run && this.sameAsRun ? "run_again" : "run";
    ref.run.replaceChildren(icon(showing ? "check" : "play"), el("span", {}, t(name)), ...(seconds && !showing ? [el("span.run-time", {}, t("about_seconds", { time: durations(seconds) }))] : []));
    ref.run.classList.toggle("showing", showing);
    ref.run.title = showing ? t("show_made_help") : seconds ? `${t("run_key")} ${t("about_seconds_help")}` : t("run_key");
    ref.stop.hidden = !live || this.guest;
    ref.pause.hidden = !live || !can || !["running", "paused"].includes(phase);
    const pauseKey = phase === "paused" ? "resume" : "pause";
    if (ref.pause.dataset.key !== pauseKey + language) {
      ref.pause.dataset.key = pauseKey + language;
      ref.pause.replaceChildren(icon(phase === "paused" ? "play" : "pause"), t(pauseKey));
    }
    ref.step.hidden = !live || !can || phase !== "paused";
    ref.bar.dataset.phase = phase ?? "idle";

    this.made.draw();
    let text = "";
    let progress = null; // 0..1, or -1 for "don't know how far"
    let wrong = false;
    if (!this.connection.there) [text, wrong] = [t("lost"), true];
    else if (this.problem) [text, wrong] = [said(this.problem.text), true];
    else if (this.starting) text = t("status_starting");
    else if (live && this.bus.broken) text = t("status_reconnecting");
    else if (live) [text, progress] = this.runStatus();
    else if (this.missing) [text, wrong] = [said(this.missing.text), true];
    else if (phase === "failed") [text, wrong] = [said(run.state.error?.text) || t("status_failed"), true];
    else if (models && models.state !== "ready" && this.needsModel) {
      text = models.error ? said(models.error.text) : said(models.text) || t(`state_${models.state}`);
      wrong = models.state === "failed";
      progress = wrong ? null : models.progress ?? -1;
    } else if (phase === "done") {
      const stopped = run.lanes.some((lane) => lane.finished?.reason === "cancelled");
      text = said(run.state.text) || t(stopped ? "status_stopped" : "status_done");
      const ttft = run.race?.ttft;
      if (ttft?.value !== null && ttft?.value !== undefined) text += ` ${said(ttft.label)} ${quantity(ttft.value, ttft.unit).join(" ")}.`;
      if (run.about && !run.about.warm) text += ` ${t("status_cold")}`;
    }
    ref.statusText.textContent = text;
    ref.status.classList.toggle("wrong", wrong);
    ref.progress.hidden = progress === null;
    ref.progress.classList.toggle("unknown", progress === -1);
    if (progress !== null && progress >= 0) ref.progress.firstElementChild.style.transform = `scaleX(${progress})`;
  }

  /** What a live run is doing, in words, and how far it is. */
  runStatus() {
    const { run } = this;
    const { phase, place, seconds, text, progress } = run.state;
    const said_ = said(text);
    if (phase === "queued") {
      if (place) return [seconds ? t("status_queued_seconds", { place, time: durations(seconds) }) : t("status_queued", { place }), -1];
      return [t("status_next"), -1];
    }
    if (phase === "loading") return [said_ || t("status_loading"), progress ?? -1];
    if (phase === "paused") return [said_ || t("status_paused"), null];
    const prompt = run.sharedPrompt ?? run.lanes.find((lane) => lane.prompt)?.prompt;
    const total = this.request.lanes.reduce((sum, lane) => sum + lane.max_new_tokens, 0);
    const done = run.lanes.reduce((sum, lane, index) => sum + (lane.finished ? this.request.lanes[index]?.max_new_tokens ?? lane.tokens.length : lane.tokens.length), 0);
    if (!done && prompt && prompt.tokens < prompt.total) return [t("status_prompt", { tokens: prompt.tokens, total: prompt.total }), prompt.tokens / prompt.total];
    const viewers = run.state.viewers > 1 ? ` ${t("viewers", { count: run.state.viewers })}.` : "";
    return [t("status_running", { machine: run.about?.machine ?? "…" }) + (run.about && !run.about.warm ? ` ${t("status_cold")}` : "") + (this.declarations.pause ? "" : ` ${t("no_pause")}`) + viewers, total ? Math.min(1, done / total) : -1];
  }

  /** Tell of a visitor's mistake, at the lane if it is a lane's. */
  complain(error) {
    const uid = this.request.lanes[error.values?.lane]?.uid;
    if (uid) {
      this.refused.set(uid, error);
      this.draw();
    } else this.complainOf(error);
    if (uid) this.announce(said(error.text));
  }

  /** Tell of a mistake in the line of the status, for a while. */
  complainOf(error) {
    this.problem = error;
    this.drawStatus();
    this.announce(said(error.text));
    clearTimeout(this.forget);
    this.forget = setTimeout(() => {
      this.problem = null;
      this.drawStatus();
    }, 8000);
  }

  say(text) {
    this.ref.statusText.textContent = text;
  }

  announce(text) {
    this.ref.announce.textContent = text;
  }

  // --- what the visitor does ---------------------------------------------------------------

  wire() {
    const { ref } = this;
    ref.prompt.addEventListener("input", () => {
      this.request.prompt.text = ref.prompt.value;
      this.keep();
      if (this.run) for (const card of this.lanes?.cards.values() ?? []) card.drawRun(); // whether it is still what was asked
      this.fitPrompt();
      this.tellPrepare();
    });
    ref.run.addEventListener("click", () => this.start());
    ref.stop.addEventListener("click", () => this.control("stop"));
    ref.pause.addEventListener("click", () => this.control(this.run?.state.phase === "paused" ? "resume" : "pause"));
    ref.step.addEventListener("click", () => this.control("step"));
    ref.add.addEventListener("click", () => this.add());
    ref.recordings.addEventListener("click", () => this.recordingsMenu());
    ref.replayPlay.addEventListener("click", () => this.playOrPause());
    ref.replayStep.addEventListener("click", () => this.replay?.step());
    ref.replaySpeed.addEventListener("click", () => this.replay?.faster());
    ref.settings.addEventListener("click", () => this.editor.openSettings(ref.settings));
    ref.model.addEventListener("click", () => this.whole && this.editor?.openSettings(ref.model));
    ref.classicModel.addEventListener("click", () => this.chooseModel(CLASSIC_MODEL));
    document.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
        event.preventDefault();
        this.start();
      }
    });
    ref.theme.addEventListener("click", () => {
      memory.write(localStorage, "theme", this.theme() === "dark" ? "light" : "dark");
      this.applyTheme();
      this.draw();
      this.editor?.draw();
    });
    window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      this.applyTheme();
      this.draw();
    });
    for (const button of this.root.querySelectorAll("[data-language]")) {
      button.addEventListener("click", () => {
        language = button.dataset.language;
        memory.write(localStorage, "language", language);
        this.popover.hide();
        this.speak();
        this.draw();
        this.editor?.draw();
      });
    }
    window.addEventListener("resize", debounced(() => {
      this.fitPrompt();
      if (this.run) this.focus.draw();
      this.serversPage?.load.drawFigures();
    }, 150));
  }

  /** The prompt's box is as high as its text, up to a third of the screen. */
  fitPrompt() {
    const box = this.ref.prompt;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight + 2, innerHeight / 4)}px`;
  }
}

/** Whether two requests ask the same, whoever wrote them. */
function sameRequest(one, other) {
  const plain = (request) => JSON.stringify([
    request.prompt?.text, request.prompt?.chat ?? null, request.prompt?.system ?? null, Number(request.seed ?? 0), request.model ?? null, request.share_prompt ?? true, request.align ?? false,
    (request.lanes ?? []).map((lane) => [lane.name, lane.strategy, Object.entries(lane.knobs ?? {}).sort(), lane.order, lane.defaults, lane.model ?? null, lane.max_new_tokens, lane.stop, lane.branch ?? null, lane.server ?? null]),
  ]);
  return plain(one) === plain(other);
}

/** Where a recording comes from, in the words that stand beside its times. */
function recordedFrom(about) {
  return { model: about.models.map((model) => model.name).join(", "), machine: about.machine, date: about.created.slice(0, 10) };
}

const newUid = () => Math.random().toString(36).slice(2, 10);

const page = new Page(element.querySelector("#playground"), server);
window.__playground = {
  stats: page.stats,
  get run() {
    if (!page.run || page.run.recorded) return null;
    return { id: page.run.id, phase: page.run.state.phase, tokens: page.run.lanes.map((lane) => lane.tokens.map((token) => token.t)) };
  },
  get replay() {
    return page.replay && { name: page.replay.recording.name, playing: page.replay.playing, ended: page.replay.ended, tokens: page.run.lanes.map((lane) => lane.tokens.map((token) => token.t)) };
  },
  get bus() {
    return page.bus?.stats;
  },
};
page.open();
