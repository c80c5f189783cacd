// What several views show of a batch.
import { h } from "./dom.js";
import { count, duration, plural, rate } from "./format.js";

const ENDED = ["completed", "failed", "expired", "cancelled"];
const TONES = { completed: "good", succeeded: "good", failed: "bad", expired: "bad" };
const STILL = ["cancelled", "queued"];

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

// As in "31 of 48 lines, 2 failed, 5.2 lines/s, 3 s left", and "31 of 48 lines, 17 cancelled".
export function summary(batch, speed) {
  const { total } = batch.request_counts;
  if (batch.status === "validating") return "The file is being read.";
  const parts = [`${count(done(batch))} of ${plural(total, "line")}`];
  for (const how of ["failed", "cancelled", "expired"]) {
    if (batch.request_counts[how]) parts.push(`${count(batch.request_counts[how])} ${how}`);
  }
  if (!ended(batch) && speed > 0) {
    parts.push(`${rate(speed)} lines/s`, `${duration((total - done(batch)) / speed)} left`);
  }
  return parts.join(", ");
}

// Lines a second of batches, from what was done at earlier looks, at most half a minute ago.
export class Speeds {
  #seen = new Map();

  look(batch) {
    const now = performance.now() / 1000;
    const seen = (this.#seen.get(batch.id) ?? []).filter(([at]) => now - at < 30);
    seen.push([now, done(batch)]);
    this.#seen.set(batch.id, seen);
    const [at, before] = seen[0];
    return now - at > 0.5 ? (done(batch) - before) / (now - at) : 0;
  }
}
