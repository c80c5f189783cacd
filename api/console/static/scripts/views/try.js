// One prompt, whose answer is streamed with the tokens from drafts tinted.
import { get, request } from "../parts/api.js";
import { announce, failure, h, labelled, replace } from "../parts/dom.js";
import { append, legend } from "../parts/drafts.js";
import { duration, plural, rate } from "../parts/format.js";
import { events } from "../parts/streams.js";

const WAYS = [["auto", "where it saves time"], ["medusa", "at every step, by heads"], ["normal", "never"]];

export async function tryView(main, signal) {
  const prompt = h("textarea", { rows: "5", required: true, name: "prompt" }, "Write the months of the year, and then write them again.");
  const model = h("select", { name: "model" });
  const tokens = h("input", { type: "number", min: "1", max: "4096", value: "160", name: "max_tokens" });
  const temperature = h("input", { type: "number", min: "0", max: "2", step: "0.1", value: "0", name: "temperature" });
  const decoding = h("select", { name: "decoding" }, WAYS.map(([value, text]) => h("option", { value }, text)));
  const send = h("button", { class: "primary" }, "Send");
  const stop = h("button", { type: "button", hidden: true }, "Stop");
  const output = h("div", { class: "output", "aria-label": "Answer", role: "region", tabindex: "0" }, h("span", { class: "muted" }, "The answer comes here."));
  const summary = h("div", { class: "stack small" });
  const form = h("form", { class: "card stack" },
    labelled("Prompt", prompt),
    h("div", { class: "options" },
      labelled("Model", model), labelled("Most tokens", tokens), labelled("Temperature", temperature), labelled("Draft tokens", decoding)),
    h("p", { class: "row" }, send, stop));
  main.append(h("div", {}, h("h1", {}, "Try"), h("p", { class: "muted" }, "One prompt. Tokens that were accepted from drafts are tinted by their source.")),
    h("div", { class: "halves" }, form, h("section", { class: "card stack" }, h("h2", {}, "Answer"), output, summary)));

  let run = null;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    run = new AbortController();
    signal.addEventListener("abort", () => run.abort());
    send.disabled = true;
    stop.hidden = false;
    try {
      await answer(body(), output, summary, run.signal);
      announce("The answer is complete.");
    } catch (error) {
      if (error.name !== "AbortError") replace(summary, failure(error));
      else replace(summary, h("p", { class: "muted" }, "Stopped."));
    } finally {
      send.disabled = false;
      stop.hidden = true;
    }
  });
  stop.addEventListener("click", () => run.abort());
  const body = () => ({
    model: model.value || undefined, messages: [{ role: "user", content: prompt.value }],
    max_tokens: Number(tokens.value), temperature: Number(temperature.value), decoding: decoding.value,
    stream: true, stream_options: { include_drafts: true },
  });
  const served = await get("/v1/models", signal);
  replace(model, served.data.map((one) => h("option", { value: one.id }, one.id)));
  const heads = served.data.some((one) => one.workers_detail.some((worker) => (worker.draft_sources ?? []).includes("medusa")));
  decoding.querySelector("[value=medusa]").disabled = !heads;
}

async function answer(body, output, summary, signal) {
  replace(output);
  replace(summary);
  const response = await request("/v1/chat/completions", { method: "POST", body, signal });
  let id = "";
  for await (const [, data] of events(response)) {
    if (data === "[DONE]") break;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    id = chunk.id.replace("chatcmpl-", "job_");
    const [choice] = chunk.choices;
    if (choice?.delta?.content) append(output, choice.delta.content, choice.drafts);
  }
  const job = await get(`/v1/jobs/${id}`, signal);
  replace(summary, legend(job.result?.speculation), h("p", { class: "muted" }, facts(job)));
}

export function facts(job) {
  const { usage, timing, speculation, finish_reason } = job.result;
  const parts = [plural(usage.completion_tokens, "token"), `${rate(timing.tokens_per_s)} tokens/s`, duration(timing.total_s)];
  if (speculation) parts.push(`${speculation.tokens_per_step.toFixed(2)} tokens a step`);
  return `${parts.join(", ")}. Ended by: ${finish_reason}.`;
}
