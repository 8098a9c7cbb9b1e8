// A run as the page has heard it so far. Packets carry deltas only; this is where they add up.

const PARTS = ["draft", "forward", "processors", "warpers", "select", "cache", "other"];

class LaneLog {
  constructor() {
    this.tokens = [];
    this.steps = [];
    this.beams = []; // by step: what became of every candidate of a beam search
    this.switches = 0; // how often another beam became the best one
    this.ranked = null; // and how its hypotheses rank in the end
    this.chunks = []; // of a server's stream
    this.counted = false; // whether its server told anything of its guesses
    this.drafts = []; // by round: what became of every guess of speculative decoding
    this.prompt = null;
    this.finished = null;
    this.numbers = {};
  }

  /** How many bytes of the output may be shown: the rest may be the start of a stop string. */
  get shown() {
    if (this.finished || !this.tokens.length) return Infinity;
    return this.tokens[this.tokens.length - 1].sh ?? Infinity;
  }

  /** A token joins the text. Where one stands already it takes its place, and what stood behind is gone: another beam is the best one now. */
  put(token) {
    if (token.p > this.tokens.length) return;
    token.searched = this.beams.length > 0;
    token.chunk = this.chunks[this.chunks.length - 1] ?? null;
    const gone = this.tokens.splice(token.p);
    const switches = gone.length ? (gone[0].switched?.times ?? 0) + 1 : 0;
    if (switches) this.switches += 1;
    if (switches) token.switched = { times: switches, count: gone.length, text: gone.map((one) => one.x).join(""), step: this.beams.length };
    this.tokens.push(token);
  }

  /** A piece of a server's stream: the tokens that follow came in it. */
  hear({ t, s }) {
    const last = this.chunks[this.chunks.length - 1];
    if (last && s <= last.s) return; // heard before
    this.chunks.push({ number: this.chunks.length + 1, t, s, gap: last ? s - last.s : null });
  }

  /** Over the lane so far: median seconds of a part of a step and its share of all steps' time, as the Latency tab has them, and the rest's. */
  loopTimes(shown) {
    const { steps } = this;
    const whole = steps.reduce((sum, step) => sum + step.s, 0) || 1;
    const of = (step, names) => names.reduce((sum, name) => sum + step.parts[PARTS.indexOf(name)], 0);
    const time = (names) => ({ median: median(steps.map((step) => of(step, names))) ?? 0, share: steps.reduce((sum, step) => sum + of(step, names), 0) / whole });
    const parts = Object.fromEntries(shown.map((name) => [name, time([name])]));
    return { parts, other: time(PARTS.filter((name) => !shown.includes(name))), step: median(steps.map((step) => step.s)), recording: median(steps.map((step) => step.rec)) };
  }
}

/** Numbers come as bare values; label, unit and formula come along only when they are new. */
function merge(known, numbers) {
  for (const [name, given] of Object.entries(numbers)) {
    if (given !== null && typeof given === "object") known[name] = given;
    else known[name] = { ...known[name], value: given };
  }
}

class Run {
  constructor(id, uids) {
    this.id = id;
    this.uids = uids; // which lane of the page each lane of the run is
    this.state = { phase: "queued", place: null, seconds: null, text: null, progress: null, error: null, viewers: 1 };
    this.about = null;
    this.race = {};
    this.sharedPrompt = null;
    this.sampled = false; // whether a GPU was
    this.recorded = false; // whether it is a recording that plays
    this.gone = false; // whether the app has forgotten it
    this.lanes = uids.map(() => new LaneLog());
  }

  get live() {
    return !this.recorded && !["done", "failed"].includes(this.state.phase);
  }

  lane(uid) {
    return this.lanes[this.uids.indexOf(uid)] ?? null;
  }

  /** Take a packet in; returns for every lane that changed the number of tokens it had before. */
  apply(packet) {
    const before = new Map();
    this.state = packet.state;
    if (packet.about) this.about = packet.about;
    for (const [index, kind, payload] of packet.events) {
      if (index === null) {
        if (kind === "prompt") this.sharedPrompt = payload;
        else if (kind === "device") this.sampled = true;
        continue;
      }
      const lane = this.lanes[index];
      if (!lane) continue;
      if (!before.has(index)) before.set(index, lane.tokens.length);
      // Step numbers make a repeated event harmless.
      if (kind === "token") lane.put({ ...payload });
      else if (kind === "beams" && payload.s === lane.beams.length) lane.beams.push(payload);
      else if (kind === "ranked") lane.ranked = payload;
      else if (kind === "draft" && payload.r === lane.drafts.length) lane.drafts.push(payload);
      else if (kind === "step" && !(lane.steps.length && payload.n <= lane.steps[lane.steps.length - 1].n)) lane.steps.push(payload);
      else if (kind === "chunk") lane.hear(payload);
      else if (kind === "counted") lane.counted = true;
      else if (kind === "prompt") lane.prompt = payload;
      else if (kind === "finished") lane.finished = payload;
    }
    for (const [key, numbers] of Object.entries(packet.numbers ?? {})) {
      if (key === "race") merge(this.race, numbers);
      else if (this.lanes[key]) {
        merge(this.lanes[key].numbers, numbers);
        if (!before.has(Number(key))) before.set(Number(key), this.lanes[key].tokens.length);
      }
    }
    return before;
  }
}
