// One job: its prompt, and its answer as it comes.
import { get, post, request } from "../parts/api.js";
import { pill } from "../parts/batches.js";
import { failure, h, replace } from "../parts/dom.js";
import { append, legend } from "../parts/drafts.js";
import { when } from "../parts/format.js";
import { events } from "../parts/streams.js";
import { promptOf } from "./jobs.js";
import { facts } from "./try.js";

export async function jobView(main, signal, id) {
  const head = h("div", { class: "row between" });
  const output = h("div", { class: "output" });
  const end = h("div", { class: "stack small" });
  const prompt = h("pre", {});
  const about = h("dl", { class: "facts" });
  main.append(
    h("p", { class: "small" }, h("a", { href: "#/jobs" }, "Jobs")), head,
    h("div", { class: "halves" },
      h("section", { class: "card stack" }, h("h2", {}, "Prompt"), prompt, about),
      h("section", { class: "card stack" }, h("h2", {}, "Answer"), output, end)));

  const show = (job) => {
    const open = ["queued", "running"].includes(job.status);
    const cancel = h("button", { type: "button", class: "danger" }, "Cancel");
    cancel.addEventListener("click", () => post(`/v1/jobs/${id}/cancel`, undefined, signal).catch((error) => replace(end, failure(error))));
    replace(head, h("div", { class: "row" }, h("h1", {}, "Job"), pill(job.status)), open && cancel);
    prompt.textContent = promptOf(job);
    const facts = [["Id", h("code", {}, job.id)], ["Model", job.model ?? "any"], ["Created", when(job.created_at)], ["Worker", job.worker ?? "none yet"], ["Attempts", String(job.attempts)]];
    replace(about, facts.map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]));
  };
  try {
    const job = await get(`/v1/jobs/${id}`, signal);
    show(job);
    const response = await request(`/v1/jobs/${id}/events`, { signal });
    for await (const [event, data] of events(response)) {
      const found = JSON.parse(data);
      if (event === "text") append(output, found.text, found.drafts);
      if (event === "status" && found.status !== job.status) show(await get(`/v1/jobs/${id}`, signal));
      if (event === "done") finish(found, end, show);
    }
  } catch (error) {
    if (error.name !== "AbortError") replace(end, failure(error));
  }
}

function finish(job, end, show) {
  show(job);
  replace(end,
    job.error && h("p", { class: "notice" }, `${job.error.code}: ${job.error.message}`),
    job.result && [legend(job.result.speculation), h("p", { class: "muted" }, facts(job))]);
}
