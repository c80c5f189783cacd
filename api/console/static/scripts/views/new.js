// A batch of a table, from the file to the run. A file of requests runs as it is.
import { get, post } from "../parts/api.js";
import { failure, h, labelled, replace } from "../parts/dom.js";
import { plural } from "../parts/format.js";
import { dropZone, tableOf } from "./new/file.js";
import { previewPanel } from "./new/preview.js";
import { schemaEditor } from "./new/schema.js";
import { templateEditor } from "./new/template.js";

const CHAT = "/v1/chat/completions";

export function newView(main, signal) {
  const rest = h("div", { class: "stack" });
  const zone = dropZone(signal, (file, preview, example) => {
    const runnable = preview.columns.includes("custom_id") && preview.columns.includes("body");
    replace(rest, fileCard(file, preview, restart), runnable ? requestsForm(file, preview, signal) : tableForm(file, preview, signal, example));
    zone.hidden = true;
    rest.querySelector("textarea, button.primary")?.focus();
  });
  const restart = () => {
    replace(rest);
    zone.hidden = false;
    zone.querySelector("button").focus();
  };
  main.append(
    h("div", {}, h("h1", {}, "New batch"), h("p", { class: "muted" }, "One prompt for each row of a table. The answers come back as columns of the same table.")),
    zone, rest);
}

// Without a number where counting takes too long.
function rows(preview, noun) {
  return preview.row_count === null ? `many ${noun}s` : plural(preview.row_count, noun);
}

function fileCard(file, preview, restart) {
  const lines = h("p", { class: "muted small" }, `${rows(preview, "row")}, ${plural(preview.columns.length, "column")}. ${preview.description}.`);
  return h("section", { class: "card stack" },
    h("div", { class: "row between" }, h("div", {}, h("h2", {}, file.filename), lines), h("button", { type: "button", onclick: restart }, "Another file")),
    tableOf(preview, "The first rows"));
}

function requestsForm(file, preview, signal) {
  const at = preview.columns.indexOf("url");
  const note = h("div", {});
  const run = h("button", { type: "button", class: "primary" }, `Run ${rows(preview, "request")}`);
  run.addEventListener("click", () => start({ input_file_id: file.id, endpoint: preview.rows[0][at] }, run, note, signal));
  return h("section", { class: "card stack" },
    h("h2", {}, "Requests"), h("p", {}, "This file has requests in the format of batches: they run as they are."), note, h("p", {}, run));
}

function tableForm(file, preview, signal, example) {
  const changed = () => panel.refresh();
  const template = templateEditor(preview.columns, changed, example?.template);
  const schema = schemaEditor(changed, example?.fields);
  const model = h("select", { onchange: changed });
  const tokens = h("input", { type: "number", min: "1", max: "100000", value: "128", onchange: changed });
  const temperature = h("input", { type: "number", min: "0", max: "2", step: "0.1", value: "0", onchange: changed });
  const note = h("div", {});
  const fields = () => {
    const body = { max_tokens: Number(tokens.value), temperature: Number(temperature.value) };
    if (model.value) body.model = model.value;
    const made = { input_file_id: file.id, template: template.value(), body };
    if (template.system()) made.system = template.system();
    if (schema.value()) made.schema = schema.value();
    return made;
  };
  const panel = previewPanel(fields, signal);
  const run = h("button", { class: "primary" }, `Run ${rows(preview, "row")}`);
  const form = h("form", { class: "halves" },
    h("div", { class: "stack" },
      h("section", { class: "card stack" }, h("h2", {}, "Prompt"), template.element),
      h("section", { class: "card stack" }, h("h2", {}, "Answers"), schema.element,
        h("div", { class: "options" }, labelled("Model", model), labelled("Most tokens", tokens), labelled("Temperature", temperature)))),
    h("section", { class: "card stack" }, panel.element, note, h("p", { class: "row" }, panel.tryButton, run)));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    start({ ...fields(), endpoint: CHAT, completion_window: "24h" }, run, note, signal);
  });
  offerModels(model, signal).catch((error) => replace(note, failure(error)));
  panel.refresh();
  return form;
}

async function offerModels(select, signal) {
  const served = await get("/v1/models", signal);
  const names = served.data.map((one) => one.id);
  replace(select, (names.length > 1 ? names : ["", ...names].slice(-1)).map((name) => h("option", { value: name }, name || "the one that is served")));
}

async function start(body, button, note, signal) {
  button.disabled = true;
  try {
    const batch = await post("/v1/batches", body, signal);
    location.hash = `#/batch/${batch.id}`;
  } catch (error) {
    replace(note, failure(error));
    button.disabled = false;
  }
}
