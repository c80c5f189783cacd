// What runs now: figures, batches, models.
import { get, request } from "../parts/api.js";
import { Speeds, bar, done, ended, nameOf, pill, summary } from "../parts/batches.js";
import { failure, h, replace } from "../parts/dom.js";
import { count, plural, rate, when } from "../parts/format.js";
import { total } from "../parts/metrics.js";
import { poll } from "../parts/poll.js";

const EVERY_S = 2;
const SHOWN = 8; // batches

export function nowView(main, signal) {
  const state = h("p", { class: "muted" }, "Loading…");
  const figures = h("dl", { class: "figures" });
  const list = h("ul", { class: "batches" });
  const models = h("div", { class: "scroll" });
  const trouble = h("div", {});
  main.append(
    h("div", { class: "row between" }, h("div", {}, h("h1", {}, "Now"), state), h("a", { class: "button primary", href: "#/new" }, "New batch")),
    trouble, figures,
    h("section", { class: "stack" }, h("h2", {}, "Batches"), list),
    h("section", { class: "stack" }, h("h2", {}, "Models"), models),
  );
  const speeds = new Speeds();
  poll(async () => {
    const [served, batches, metrics] = await Promise.all([
      get("/v1/models", signal), get(`/v1/batches?limit=${SHOWN}`, signal),
      request("/metrics", { signal }).then((answer) => answer.text()),
    ]);
    const rows = [];
    let lines = 0;
    for (const batch of batches.data) {
      const speed = speeds.look(batch);
      if (!ended(batch)) lines += speed.linesPerS ?? 0;
      rows.push(batchRow(batch, nameOf(batch), speed));
    }
    replace(trouble);
    state.textContent = sentence(served.data, metrics);
    showFigures(figures, served.data, metrics, lines);
    replace(list, rows.length ? rows : h("li", { class: "empty" }, "There is no batch yet. ", h("a", { href: "#/new" }, "Make one of a table.")));
    replace(models, modelTable(served.data));
  }, signal, EVERY_S, (error) => replace(trouble, failure(error)));
}

function sentence(models, metrics) {
  const workers = models.reduce((sum, model) => sum + model.workers, 0);
  if (!total(metrics, "redis_up")) return "The gateway cannot reach Redis.";
  if (!workers) return "No model worker is alive: what is sent waits.";
  if (!total(metrics, "batches_led")) return "No io worker is alive: batches wait.";
  return `All is well: ${plural(models.length, "model")}, ${plural(workers, "worker")}.`;
}

function showFigures(element, models, metrics, lines) {
  const of = (name) => models.flatMap((model) => model.workers_detail).reduce((sum, worker) => sum + (worker.metrics[name] ?? 0), 0);
  const waiting = total(metrics, "queue_jobs") + total(metrics, "batch_lines_waiting");
  const shown = [
    ["Lines a second", rate(lines)], ["Tokens a second", rate(of("tokens_per_s"))],
    ["Running", count(of("running"))], ["Waiting", count(waiting)],
  ];
  replace(element, shown.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function batchRow(batch, name, speed) {
  return h("li", {}, h(
    "a", { class: "batch-row", href: `#/batch/${batch.id}` },
    h("span", { class: "row between" },
      h("span", { class: "row" }, h("span", { class: "name" }, name), pill(batch.status)),
      h("span", { class: "muted small" }, when(batch.created_at))),
    done(batch) || !ended(batch) ? bar(batch) : null,
    h("span", { class: "muted small" }, summary(batch, speed)),
  ));
}

function modelTable(models) {
  const number = (text) => h("td", { class: "number" }, text);
  const head = ["Running", "Tokens/s", "Tokens/step"].map((name) => h("th", { class: "number", scope: "col" }, name));
  const rows = models.map((model) => {
    const details = model.workers_detail;
    const sum = (name) => details.reduce((all, worker) => all + (worker.metrics[name] ?? 0), 0);
    const sources = [...new Set(details.flatMap((worker) => worker.draft_sources ?? []))];
    return h("tr", {},
      h("td", {}, model.id), number(count(model.workers)), number(`${count(sum("running"))} of ${count(model.slots)}`),
      number(rate(sum("tokens_per_s"))), number(details.length ? (sum("tokens_per_step") / details.length).toFixed(2) : "–"),
      h("td", { class: "wide-only" }, sources.join(", ").replace("medusa", "heads") || "none"));
  });
  return h("table", {},
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Model"), h("th", { class: "number", scope: "col" }, "Workers"), head, h("th", { class: "wide-only", scope: "col" }, "Drafts"))),
    h("tbody", {}, rows.length ? rows : h("tr", {}, h("td", { colspan: "6" }, "No model is served."))));
}
