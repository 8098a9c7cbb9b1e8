// A recording plays in the lanes: the packets of the run that was recorded, at the pace at which they came.

/** Recorded seconds per second, as the button walks through them. */
const SPEEDS = [1, 2, 4];

class Replay {
  constructor(recording, heard) {
    this.recording = recording;
    this.heard = heard; // called after every change, with the packets that came
    this.next = 0;
    this.time = 0;
    this.speed = 1;
    this.playing = false;
    this.parts = firstParting(recording.packets, recording.about);
    // It stops once, where the lanes part: what happened there is what the page is about.
    this.stopAt = this.parts?.packet ?? null;
    this.told = false; // whether the page has pointed at it
    this.all = null; // the whole run, once somebody wants it
    this.timer = null;
    this.began = 0;
  }

  /** Whether it has come to where the lanes part. */
  get parted() {
    return this.parts !== null && this.next > this.parts.packet;
  }

  get ended() {
    return this.next >= this.recording.packets.length;
  }

  get seconds() {
    return this.recording.packets.at(-1)?.at ?? 0;
  }

  play() {
    if (this.ended || this.playing) return;
    this.playing = true;
    this.began = performance.now();
    this.timer = setInterval(() => this.tick(), 50);
    this.heard([]);
  }

  pause() {
    this.playing = false;
    clearInterval(this.timer);
    this.heard([]);
  }

  /** Nobody looks at it any more. */
  leave() {
    this.playing = false;
    clearInterval(this.timer);
  }

  faster() {
    this.speed = SPEEDS[(SPEEDS.indexOf(this.speed) + 1) % SPEEDS.length];
    this.heard([]);
  }

  tick() {
    const now = performance.now();
    // A tab that slept doesn't jump: it goes on where it was.
    this.time += (Math.min(now - this.began, 500) / 1000) * this.speed;
    this.began = now;
    const came = [];
    while (this.playing && !this.ended && this.recording.packets[this.next].at <= this.time) came.push(this.take());
    if (came.length) this.heard(came);
  }

  take() {
    const packet = this.recording.packets[this.next];
    const stop = this.next === this.stopAt;
    this.next += 1;
    this.time = Math.max(this.time, packet.at);
    if (stop) this.stopAt = null;
    if (stop || this.ended) {
      this.playing = false;
      clearInterval(this.timer);
    }
    return packet;
  }

  /** One step of every lane that still has one. */
  step() {
    this.leave();
    const lanes = new Set(this.recording.packets.slice(this.next).flatMap((packet) => steppers(packet)));
    const came = [];
    while (lanes.size && !this.ended) {
      const packet = this.take();
      for (const lane of steppers(packet)) lanes.delete(lane);
      came.push(packet);
    }
    // Behind the last step only ends are left: they come with it.
    if (!this.recording.packets.slice(this.next).some((packet) => steppers(packet).length)) while (!this.ended) came.push(this.take());
    this.heard(came);
  }

  /** The whole run, as the page would know it at the end. */
  whole(uids) {
    if (this.all) return this.all;
    this.all = recordedRun(this.recording, uids);
    for (const packet of this.recording.packets) this.all.apply({ ...packet, state: { ...this.all.state, phase: "done" } });
    return this.all;
  }

  /** Everything up to the parting, or to the end, at once. */
  skip() {
    const until = this.stopAt ?? this.recording.packets.length - 1;
    this.leave();
    const came = [];
    while (this.next <= until && !this.ended) came.push(this.take());
    this.heard(came);
  }

  again() {
    this.leave();
    this.next = 0;
    this.time = 0;
    this.stopAt = null;
  }
}

/** A recording as the page shows a run, before anything of it has played. */
function recordedRun(recording, uids) {
  return Object.assign(new Run(recording.run, uids), { about: recording.about, recorded: true });
}

const steppers = (packet) => packet.events.filter(([, kind]) => kind === "step").map(([lane]) => lane);

/** Where the first two lanes part: the lanes, the position, and the packet by which both have their token there; null if none do. */
function firstParting(packets, about) {
  const tokens = about.lanes.map(() => []); // by lane: its tokens, each with the index of its packet
  const searching = about.lanes.map(() => false); // what a beam search says at a position is settled only at its end
  packets.forEach((packet, index) => {
    for (const [lane, kind, payload] of packet.events) {
      if (kind === "beams") searching[lane] = true;
      else if (kind === "token") tokens[lane].splice(payload.p, Infinity, { ...payload, packet: index });
    }
  });
  let first = null;
  for (let a = 0; a < tokens.length; a++) {
    for (let b = a + 1; b < tokens.length; b++) {
      if (searching[a] || searching[b]) continue;
      const position = firstDifference(tokens[a], tokens[b], sameToken(about, a, b));
      if (position !== null && (first === null || position < first.position)) {
        first = { lanes: [a, b], position, packet: Math.max(tokens[a][position].packet, tokens[b][position].packet) };
      }
    }
  }
  if (first === null) return null;
  // Where a third lane is at the same position, the picture is whole only when it has its token too.
  const others = tokens.filter((lane, index) => !searching[index] && lane.length > first.position).map((lane) => lane[first.position].packet);
  return { ...first, packet: Math.max(...others) };
}
