// Numbers as people read them, and the levels by which tokens are coloured.

function probability(p) {
  if (p === null || p === undefined) return "–";
  if (p >= 0.995 && p < 1 - 1e-6) return "> 0.99"; // nearer to 1 than float32 can tell is 1
  if (p >= 0.001) return p.toFixed(p >= 0.1 ? 2 : 3);
  return p === 0 ? "0" : p.toExponential(0).replace("e-", "e−");
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds >= 90) return `${Math.round(seconds / 60)} min`;
  if (seconds >= 10) return `${Math.round(seconds)} s`;
  if (seconds >= 1) return `${seconds.toFixed(1)} s`;
  return `${Math.round(seconds * 1000)} ms`;
}

/** From how many to how many seconds. */
function durations([low, high]) {
  const [from, to] = [duration(low), duration(high)];
  if (from === to) return from;
  const [number, unit] = from.split(" ");
  return `${unit === to.split(" ")[1] ? number : from}–${to}`;
}

function milliseconds(seconds) {
  const ms = seconds * 1000;
  return `${ms >= 100 ? Math.round(ms) : ms >= 10 ? ms.toFixed(1) : ms.toFixed(2)} ms`;
}

/** A measure's value in its unit: [number, unit]. */
function quantity(value, unit) {
  if (value === null || value === undefined) return ["–", ""];
  if (typeof value !== "number") return [String(value), ""];
  if (unit === "s") return value >= 10 ? [value.toFixed(1), "s"] : value >= 1 ? [value.toFixed(2), "s"] : [milliseconds(value).split(" ")[0], "ms"];
  if (unit === "ms") return [value >= 100 ? value.toFixed(0) : value.toFixed(1), "ms"];
  if (unit === "bytes" || unit === "B") {
    if (value >= 1e9) return [(value / 1e9).toFixed(2), "GB"];
    return value >= 1e6 ? [(value / 1e6).toFixed(value >= 1e8 ? 0 : value >= 1e7 ? 1 : 2), "MB"] : [(value / 1e3).toFixed(0), "kB"];
  }
  if (unit === "1/s" || unit === "tokens/s") return [value >= 100 ? value.toFixed(0) : value.toFixed(1), ""];
  if (unit === "tokens") return [Number.isInteger(value) ? String(value) : value.toFixed(2), ""];
  if (Number.isInteger(value)) return [String(value), unit];
  return [value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2), unit];
}

/** A time of a whole lane in four digits: [number, unit]. */
function wholeTime(seconds) {
  const [value, unit] = seconds >= 0.9995 ? [seconds, "s"] : [1000 * seconds, "ms"];
  return [Number(value).toPrecision(4).includes("e") ? value.toFixed(0) : value.toPrecision(4), unit];
}

function median(values) {
  if (!values.length) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const middle = sorted.length >> 1;
  return sorted.length % 2 ? sorted[middle] : (sorted[middle - 1] + sorted[middle]) / 2;
}

/** Five levels from sure (0) to surprising (4); the legend names their edges. */
const COLOUR_SCALES = {
  probability: {
    edges: ["≥ 0.9", "≥ 0.5", "≥ 0.2", "≥ 0.05", "< 0.05"],
    level(token) {
      if (token.rlp === null) return 0;
      const p = Math.exp(token.rlp);
      return p >= 0.9 ? 0 : p >= 0.5 ? 1 : p >= 0.2 ? 2 : p >= 0.05 ? 3 : 4;
    },
  },
  entropy: {
    edges: ["< 0.5", "< 1.5", "< 2.5", "< 3.5", "≥ 3.5"],
    level(token) {
      const h = token.hr;
      if (h === null) return 0;
      return h < 0.5 ? 0 : h < 1.5 ? 1 : h < 2.5 ? 2 : h < 3.5 ? 3 : 4;
    },
  },
  rank: {
    edges: ["1", "2–3", "4–10", "11–50", "> 50"],
    level(token) {
      const rank = token.rr;
      if (rank === null) return 0;
      return rank < 1 ? 0 : rank < 3 ? 1 : rank < 10 ? 2 : rank < 50 ? 3 : 4;
    },
  },
};
