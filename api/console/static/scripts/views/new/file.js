// Takes a file by drop or by choice, uploads it, and shows its first rows.
import { post, upload } from "../../parts/api.js";
import { failure, h, replace } from "../../parts/dom.js";
import { bytes, percent } from "../../parts/format.js";
import { EXAMPLE, exampleFile } from "./example.js";

const KINDS = ".csv,.tsv,.xlsx,.parquet,.jsonl,.ndjson,.json,.txt,.gz,.zst";
const SHOWN = 5;

// done(file, preview, example) is called when the file can be read. example: what to ask of each row, if it is ours.
export function dropZone(signal, done) {
  const input = h("input", { type: "file", accept: KINDS, class: "unseen", tabindex: "-1", "aria-hidden": "true" });
  const choose = h("button", { type: "button", class: "primary", onclick: () => input.click() }, "Choose a file");
  const sample = h("button", { type: "button", onclick: () => take(exampleFile(), EXAMPLE) }, "Begin with an example");
  const note = h("div", { role: "status" });
  const zone = h("section", { class: "drop", "aria-label": "File" },
    h("h2", {}, "Drop a table here"), h("p", { class: "row" }, choose, sample), input,
    h("p", { class: "muted small" }, "CSV, Excel (XLSX), Parquet or JSON lines, with the names of the columns first."), note);
  const take = async (file, example) => {
    choose.disabled = sample.disabled = true;
    try {
      const say = (text) => (note.textContent = text);
      const stored = await upload(file, (share) => say(`Sending ${file.name} (${bytes(file.size)}): ${percent(share)}`), signal);
      say("Reading the rows…");
      const preview = await post("/v1/batches/preview", { input_file_id: stored.id, rows: SHOWN, count: true }, signal);
      replace(note);
      done(stored, preview, example);
    } catch (error) {
      if (error.name !== "AbortError") replace(note, failure(error));
    } finally {
      choose.disabled = sample.disabled = false;
      input.value = "";
    }
  };
  input.addEventListener("change", () => input.files[0] && take(input.files[0]));
  const over = (event, on) => {
    event.preventDefault();
    zone.classList.toggle("over", on);
  };
  zone.addEventListener("dragover", (event) => over(event, true));
  zone.addEventListener("dragleave", (event) => over(event, false));
  zone.addEventListener("drop", (event) => {
    over(event, false);
    const [file] = event.dataTransfer.files;
    if (file) take(file);
  });
  return zone;
}

export function tableOf({ columns, rows }, caption) {
  return h("div", { class: "scroll", role: "region", "aria-label": caption, tabindex: "0" }, h("table", {},
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map(cell))))));
}

export function cell(value) {
  if (typeof value === "number") return h("td", { class: "number" }, String(value));
  const text = value === null ? "" : String(value);
  return h("td", { class: text.length > 40 ? "long" : "" }, h("span", { class: "clip" }, text));
}
