// What several views show of a batch.
import { h } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";
import { TimeLeft } from "./time_left.js";

const ENDED = ["completed", "failed", "expired", "cancelled"];
const TONES = { completed: "good", succeeded: "good", failed: "bad", expired: "bad" };
const STILL = ["cancelled", "queued"];
const SPEED_S = 10; // over which speeds are averaged: fresh, and steady to the eye
const LEAST_S = 0.5;

export const ended = (batch) => ENDED.includes(batch.status);
export const done = (batch) => batch.request_counts.completed + batch.request_counts.failed;

export function pill(status) {
  const tone = TONES[status] ?? (STILL.includes(status) ? "" : "live");
  return h("span", { class: `pill ${tone}` }, status.replace("_", " "));
}

// An earlier release noted no name of the file.
export const nameOf = (batch) => batch.input_filename ?? batch.id;

export function bar(batch) {
  const { total, completed, failed } = batch.request_counts;
  const part = (name, number) => {
    const element = h("div", { class: name });
    element.style.width = total ? `${(100 * number) / total}%` : "0";
    return element;
  };
  const now = total ? Math.round((100 * (completed + failed)) / total) : 0;
  return h(
    "div",
    {
      class: "bar-track", role: "progressbar", "aria-label": "Lines done",
      "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(now),
    },
    part("bar-done", completed), part("bar-failed", failed),
  );
}

// As in "31 of 48 lines, 2 failed, 16 running, 1,240 tokens, 38.2/s, about 40 s left", and "31 of 48 lines, 17
// cancelled". speed: of Speeds.
export function summary(batch, speed) {
  const { total } = batch.request_counts;
  if (batch.status === "validating") return "The file is being read.";
  const parts = [`${count(done(batch))} of ${plural(total, "line")}`];
  for (const how of ["failed", "cancelled", "expired"]) {
    if (batch.request_counts[how]) parts.push(`${count(batch.request_counts[how])} ${how}`);
  }
  if (ended(batch)) return parts.join(", ");
  if (batch.running.lines) parts.push(`${count(batch.running.lines)} running`);
  if (speed.tokens) parts.push(plural(speed.tokens, "token"));
  if (speed.tokens && speed.tokensPerS !== null) parts.push(`${rate(speed.tokensPerS)}/s`);
  if (speed.leftS !== null) parts.push(`about ${duration(speed.leftS)} left`);
  return parts.join(", ");
}

// How fast batches go: tokens (in all), tokensPerS and linesPerS of the last seconds, leftS; null where that is not known yet.
export class Speeds {
  #seen = new Map();

  look(batch) {
    const now = performance.now() / 1000;
    const { running, usage } = batch;
    const progress = { done: done(batch), tokens: usage.output_tokens, running: running.lines, runningTokens: running.output_tokens };
    if (!this.#seen.has(batch.id)) this.#seen.set(batch.id, { looks: [], left: new TimeLeft(now, progress), tokens: 0 });
    const seen = this.#seen.get(batch.id);
    seen.tokens = Math.max(seen.tokens, progress.tokens + progress.runningTokens); // of what is lost and begins anew none is taken back
    seen.looks.push([now, progress.done, seen.tokens]);
    while (now - seen.looks[0][0] > SPEED_S) seen.looks.shift();
    seen.left.note(now, progress, batch.request_counts.total);
    const [at, lines, tokens] = seen.looks[0];
    const per = (before, after) => (now - at > LEAST_S ? (after - before) / (now - at) : null);
    return {
      tokens: seen.tokens, tokensPerS: per(tokens, seen.tokens), linesPerS: per(lines, progress.done), leftS: seen.left.seconds(now),
    };
  }
}
