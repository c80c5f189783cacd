// How long a batch goes on, and tokens a second: as cli/views/time_left.py, which says why; a test compares the two.
const LEAST_ENDS = 5;
const LEAST_S = 8;
const LEAST_WINDOW_S = 20;
const MOST_WINDOW_S = 300;
const POINTS_EVERY_S = 1;
const STEADY_S = 20;
const LEAST_STEADY_S = 5;
const LAST_ROW = 0.5;
const THIN_END = 0.6;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2;
}

// progress: done, tokens of what is done, running, and runningTokens that these have got so far.
export class TimeLeft {
  #before;
  #now;
  #began = null;
  #most = 0;
  #speeds;
  #groups = 0;
  #squares = 0;
  #ends = [];
  #first = 0;

  constructor(now, before) {
    this.#before = this.#now = before;
    this.#speeds = [[now, 0, 0]];
  }

  note(now, progress, total) {
    const ended = progress.done - this.#now.done;
    if (ended > 0) {
      this.#groups += 1;
      this.#squares += (progress.tokens - this.#now.tokens) ** 2 / ended;
    }
    this.#now = progress;
    this.#most = Math.max(this.#most, progress.tokens + progress.runningTokens - this.#before.tokens);
    if (this.#began === null) {
      if (!progress.running && !this.#most) return;
      this.#began = now;
    }
    if (now - this.#speeds.at(-1)[0] >= POINTS_EVERY_S) this.#speeds.push([now, this.#most, progress.running]);
    const window = Math.min(MOST_WINDOW_S, Math.max(LEAST_WINDOW_S, (now - this.#began) / 2));
    while (this.#speeds.length > 1 && this.#speeds[1][0] <= now - window) this.#speeds.shift();
    while (this.#ends.length && this.#ends[0][0] < now - STEADY_S) this.#ends.shift();
    const left = this.#foretold(now, total - progress.done);
    if (left === null) return;
    if (!this.#ends.length) this.#first = now;
    this.#ends.push([now, now + left]);
  }

  // null as long as too little is known.
  seconds(now) {
    if (!this.#ends.length || this.#ends.at(-1)[0] - this.#first < LEAST_STEADY_S) return null;
    return Math.max(0, median(this.#ends.map(([, end]) => end)) - now);
  }

  #foretold(now, remaining) {
    const ended = this.#now.done - this.#before.done;
    const { running, runningTokens: got } = this.#now;
    const [at, before] = this.#speeds[0];
    const perS = now > at ? (this.#most - before) / (now - at) : 0;
    const early = this.#began === null || now - this.#began < LEAST_S;
    if (early || !perS || ended < Math.max(LEAST_ENDS, running)) return null;
    const [mean, spread] = this.#length(ended, running, got);
    const beside = Math.max(1, this.#speeds.reduce((sum, [, , one]) => sum + one, 0) / this.#speeds.length);
    const rowS = beside / perS;
    const rest = running ? Math.max(mean - got / running, spread * mean) : 0;
    const longest = 1 + spread * Math.log(Math.max(1, running));
    const waiting = Math.max(0, remaining - running);
    if (!waiting) return THIN_END * rest * longest * rowS;
    return (waiting * mean + running * rest) / perS + LAST_ROW * (mean * longest - rest) * rowS;
  }

  #length(ended, running, got) {
    const tokens = this.#now.tokens - this.#before.tokens;
    const mean = tokens / ended;
    const variance = (this.#squares - mean * tokens) / Math.max(1, this.#groups - 1);
    const spread = mean ? Math.min(1, Math.sqrt(Math.max(0, variance)) / mean) : 0;
    return [Math.max(mean + (spread * got) / ended, (tokens + got) / (ended + running)), spread];
  }
}
