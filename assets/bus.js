// The stream of a run: asks for it, notices when it breaks, and picks it up where it broke.
// The server counts events (seq) over the run, and packets (n) within one stream; every asking is a stream with a number of its own.

class Bus {
  constructor(hear, lost, there) {
    this.hear = hear; // called with every packet that is in order
    this.lost = lost; // called when the stream is asked for again
    this.there = there; // asks whether there is an app to hear from
    this.broken = false;
    this.stats = { packets: 0, gaps: 0, follows: 0 };
    this.run = null;
    this.seq = 0;
    this.expected = 1;
    this.heard = 0;
    this.patience = 4000;
    this.port = null;
    // The bus component and the page mount in any order, so the bus leaves its two functions in a list.
    const take = (port) => {
      this.port = port;
      port.listen((value) => this.receive(value));
      if (this.run) this.ask();
    };
    const waiting = (window.__playgroundBus ??= []);
    for (const port of waiting.splice(0)) take(port);
    waiting.push = take;
    setInterval(() => this.watch(), 1000);
    for (const event of ["online", "visibilitychange"]) {
      (event === "online" ? window : document).addEventListener(event, () => this.watch());
    }
  }

  /** Follow a run from event `seq` on; 0 is the beginning. */
  follow(run, seq = 0) {
    this.run = run;
    this.seq = seq;
    this.patience = 4000;
    this.ask();
  }

  leave() {
    this.run = null;
  }

  ask() {
    this.expected = 1;
    this.heard = Date.now();
    this.stats.follows += 1;
    this.port?.follow({ run: this.run, seq: this.seq, stream: this.stats.follows });
  }

  receive(value) {
    if (typeof value !== "string" || !value) return;
    const packet = JSON.parse(value);
    // A stream that was given up may still say its last word.
    if (packet.run !== this.run || packet.stream !== this.stats.follows) return;
    if (packet.n !== this.expected) {
      if (packet.n > this.expected && this.expected > 1) this.resume();
      return;
    }
    this.expected += 1;
    this.seq = packet.seq;
    this.heard = Date.now();
    this.patience = 4000;
    this.stats.packets += 1;
    this.broken = false;
    const phase = packet.state.phase;
    if (phase === "done" || phase === "failed") this.run = null;
    this.hear(packet);
  }

  resume() {
    this.stats.gaps += 1;
    this.broken = true;
    this.ask();
    this.lost();
  }

  /** Nothing heard for a while: the stream is gone, or the server has nothing to tell. Asking again costs little, where there is an app. */
  async watch() {
    const { run, seq } = this;
    const silent = () => this.run && !document.hidden && Date.now() - this.heard >= this.patience;
    if (!silent() || this.asking) return;
    this.asking = true;
    const there = await this.there();
    this.asking = false;
    if (!there || !silent() || run !== this.run || seq !== this.seq) return;
    this.patience = Math.min(this.patience * 2, 8000);
    this.resume();
  }
}
