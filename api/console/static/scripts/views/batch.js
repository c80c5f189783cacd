// One batch: progress, failures, first results, downloads.
import { get, post } from "../parts/api.js";
import { Speeds, bar, ended, nameOf, pill, summary } from "../parts/batches.js";
import { announce, failure, h, replace } from "../parts/dom.js";
import { count, when } from "../parts/format.js";
import { poll } from "../parts/poll.js";
import { downloads } from "./batch/downloads.js";
import { Failures } from "./batch/failures.js";
import { Results } from "./batch/results.js";

const EVERY_S = 1;

export function batchView(main, signal, id) {
  const head = h("div", { class: "row between" });
  const progress = h("div", { class: "stack" });
  const note = h("div", {});
  const failures = new Failures(id, signal);
  const results = new Results(id, signal);
  const saving = h("div", { class: "row" });
  const about = h("dl", { class: "facts" });
  main.append(
    h("p", { class: "small" }, h("a", { href: "#/now" }, "Now")), head, note, h("section", { class: "card stack" }, progress, saving), failures.element, results.element,
    h("section", { class: "card stack" }, h("h2", {}, "About this batch"), about));
  const speeds = new Speeds();
  let status = "";
  poll(async () => {
    const batch = await get(`/v1/batches/${id}`, signal);
    const name = nameOf(batch);
    if (batch.status !== status) {
      status = batch.status;
      document.title = `${name} - medusaq`;
      replace(head, h("div", { class: "row" }, h("h1", {}, name), pill(status)), actions(batch, note, signal));
      replace(saving, downloads(batch, name, note, signal));
      replace(about, facts(batch));
      announce(`The batch is ${status.replace("_", " ")}.`);
    }
    replace(progress, bar(batch), h("p", {}, summary(batch, speeds.look(batch))), problems(batch));
    await Promise.all([failures.look(batch), results.look(batch)]);
    return !ended(batch);
  }, signal, EVERY_S, (error) => replace(note, failure(error)));
}

function problems(batch) {
  const messages = (batch.status === "failed" && batch.errors?.data) || [];
  return messages.slice(0, 3).map((error) => h("p", { class: "notice" }, error.message));
}

function actions(batch, note, signal) {
  const act = (path, then) => async () => {
    try {
      then(await post(`/v1/batches/${batch.id}/${path}`, undefined, signal));
    } catch (error) {
      replace(note, failure(error));
    }
  };
  if (["validating", "in_progress"].includes(batch.status)) {
    return h("button", { type: "button", class: "danger", onclick: act("cancel", () => {}) }, "Cancel");
  }
  if (ended(batch) && batch.error_file_id) {
    return h("button", { type: "button", onclick: act("retry", (made) => (location.hash = `#/batch/${made.id}`)) },
      batch.request_counts.failed ? "Retry failures" : "Run the rest");
  }
  return null;
}

function facts(batch) {
  const { table, usage } = batch;
  const shown = [
    ["Id", h("code", {}, batch.id)], ["Created", when(batch.created_at)],
    table && ["Template", h("pre", {}, table.template)],
    table?.system && ["System message", h("pre", {}, table.system)],
    table?.schema && ["Fields", Object.keys(table.schema.properties ?? {}).join(", ")],
    batch.model && ["Model", batch.model],
    batch.retry_of && ["Retry of", h("a", { href: `#/batch/${batch.retry_of}` }, batch.retry_of)],
    ended(batch) && ["Tokens", `${count(usage.input_tokens)} of prompts, ${count(usage.output_tokens)} of answers`],
    batch.cut_by_max_tokens > 0 && ["Cut off", `${count(batch.cut_by_max_tokens)} answers, by the most tokens`],
  ];
  return shown.filter(Boolean).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]);
}
