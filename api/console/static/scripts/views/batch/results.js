// The first results as they come, beside the columns of their rows.
import { post, request } from "../../parts/api.js";
import { ended } from "../../parts/batches.js";
import { h, replace } from "../../parts/dom.js";
import { objects } from "../../parts/streams.js";
import { cell } from "../new/file.js";

const SHOWN = 12;
const ROWS = 100; // of the table, in which the rows of results are looked up
const PAUSE_MS = 3000; // between two looks while results are still few

export class Results {
  #id;
  #signal;
  #seen = -1;
  #at = 0;
  #table = null;

  constructor(id, signal) {
    this.#id = id;
    this.#signal = signal;
    this.element = h("section", { class: "stack", hidden: true });
  }

  async look(batch) {
    const completed = batch.request_counts.completed;
    const full = this.element.querySelectorAll("tbody tr").length >= SHOWN;
    const early = performance.now() - this.#at < PAUSE_MS && !ended(batch);
    if (!completed || completed === this.#seen || early || (full && !ended(batch))) return;
    this.#at = performance.now();
    this.#seen = completed;
    this.#table ??= await this.#input(batch);
    const results = await this.#first();
    if (!results.length) return;
    const { columns, rows } = this.#table;
    const fields = Object.keys(batch.table?.schema?.properties ?? {});
    const answers = fields.length ? fields : ["answer"];
    this.element.hidden = false;
    replace(this.element, h("h2", {}, "First results"),
      h("div", { class: "scroll", role: "region", "aria-label": "First results", tabindex: "0" }, h("table", {},
        h("thead", {}, h("tr", {}, [batch.table && columns.length ? columns : ["custom_id"], answers].flat().map((name) => h("th", { scope: "col" }, name)))),
        h("tbody", {}, results.map((result) => {
          const row = columns.length ? (rows[numberOf(result) - 1] ?? columns.map(() => "…")) : [result.custom_id];
          return h("tr", {}, row.map(cell), values(result, fields).map(answerCell));
        })))));
  }

  async #input(batch) {
    if (!batch.table) return { columns: [], rows: [] };
    const asked = { input_file_id: batch.input_file_id, rows: ROWS };
    return post("/v1/batches/preview", asked, this.#signal).catch((error) => {
      if (error.name === "AbortError") throw error;
      return { columns: [], rows: [] }; // the file may be gone
    });
  }

  async #first() {
    const response = await request(`/v1/batches/${this.#id}/output`, { signal: this.#signal });
    const found = [];
    for await (const result of objects(response)) {
      found.push(result);
      if (found.length >= SHOWN) break;
    }
    return found;
  }
}

// Ids of results end in the number of their line.
const numberOf = (result) => Number(result.id.split("-").at(-1));

function values(result, fields) {
  const [choice] = result.response.body.choices ?? [];
  const text = choice?.message?.content ?? choice?.text ?? result.response.body.result?.text ?? "";
  if (!fields.length) return [text];
  try {
    const parsed = JSON.parse(text);
    return fields.map((name) => parsed[name] ?? "");
  } catch {
    return [text, ...fields.slice(1).map(() => "")];
  }
}

function answerCell(value) {
  const element = cell(typeof value === "object" ? JSON.stringify(value) : typeof value === "boolean" ? String(value) : value);
  element.classList.add("answer");
  return element;
}
