// The jobs: search, open, cancel.
import { get, post } from "../parts/api.js";
import { pill } from "../parts/batches.js";
import { failure, h, labelled, replace } from "../parts/dom.js";
import { duration, when } from "../parts/format.js";

const STATUSES = ["queued", "running", "succeeded", "failed", "cancelled", "expired"];
const PAGE = 50;

export function promptOf(job) {
  if (job.request.prompt) return job.request.prompt;
  const content = job.request.messages?.at(-1)?.content ?? "";
  return typeof content === "string" ? content : content.map((part) => part.text ?? "").join(" ");
}

export function jobsView(main, signal) {
  const words = h("input", { type: "search", placeholder: "an id, words of a prompt, or name=value of its metadata" });
  const status = h("select", {}, h("option", { value: "" }, "any"), STATUSES.map((one) => h("option", { value: one }, one)));
  const rows = h("tbody", {});
  const more = h("button", { type: "button", hidden: true }, "Show more");
  const note = h("div", {});
  const form = h("form", { class: "search", role: "search" }, labelled("Search", words), labelled("Status", status), h("button", { class: "primary" }, "Search"));
  main.append(
    h("div", {}, h("h1", {}, "Jobs"), h("p", { class: "muted" }, "Single prompts, newest first. The lines of batches are in their batches.")),
    form, note,
    h("div", { class: "scroll job-list" }, h("table", {}, h("thead", {}, h("tr", {},
      ["Prompt", "Status"].map((name) => h("th", { scope: "col" }, name)),
      ["Model", "Created", "Took"].map((name) => h("th", { scope: "col", class: "wide-only" }, name)),
      h("th", { scope: "col" }, h("span", { class: "unseen" }, "Actions")))), rows)),
    h("p", {}, more));

  let after = null;
  let search = 0; // an answer to an earlier one comes too late
  const load = async () => {
    const mine = search;
    try {
      const found = await find(words.value.trim(), status.value, after, signal);
      if (mine !== search) return;
      after = found.last_id;
      more.hidden = !found.has_more;
      rows.append(...found.data.map((job) => row(job, signal, note)));
      replace(note, rows.children.length || found.has_more ? null : h("p", { class: "empty" }, "No job fits."));
    } catch (error) {
      if (error.name !== "AbortError") replace(note, failure(error));
    }
  };
  const restart = () => {
    after = null;
    search += 1;
    replace(rows);
    return load();
  };
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    restart();
  });
  status.addEventListener("change", restart);
  more.addEventListener("click", load);
  load();
}

async function find(words, status, after, signal) {
  if (/^job_/.test(words)) {
    const job = await get(`/v1/jobs/${encodeURIComponent(words)}`, signal);
    return { data: [job], has_more: false, last_id: null };
  }
  const query = new URLSearchParams({ limit: String(PAGE) });
  if (status) query.set("status", status);
  if (after) query.set("after", after);
  const filter = /^([^\s=]+)=(.*)$/.exec(words);
  if (filter) query.set(`metadata[${filter[1]}]`, filter[2]);
  const found = await get(`/v1/jobs?${query}`, signal);
  if (!words || filter) return found;
  const fits = (job) => promptOf(job).toLowerCase().includes(words.toLowerCase());
  return { ...found, data: found.data.filter(fits) };
}

function row(job, signal, note) {
  const state = h("td", {}, pill(job.status));
  const took = job.finished_at ? duration(job.finished_at - job.created_at) : "–";
  const cancel = h("button", { type: "button", class: "link danger", "aria-label": `Cancel ${job.id}` }, "Cancel");
  cancel.addEventListener("click", async () => {
    try {
      const ended = await post(`/v1/jobs/${job.id}/cancel`, undefined, signal);
      replace(state, pill(ended.status));
      cancel.remove();
    } catch (error) {
      replace(note, failure(error));
    }
  });
  return h("tr", {},
    h("td", {}, h("a", { class: "clip", href: `#/job/${job.id}` }, promptOf(job).slice(0, 200) || job.id)), state,
    h("td", { class: "wide-only" }, job.model ?? "any"), h("td", { class: "wide-only number" }, when(job.created_at)),
    h("td", { class: "wide-only number" }, took),
    h("td", {}, ["queued", "running"].includes(job.status) ? cancel : null));
}
