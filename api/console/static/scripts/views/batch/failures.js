// The kinds of failures of a batch, each with an example.
import { request } from "../../parts/api.js";
import { h, replace } from "../../parts/dom.js";
import { count } from "../../parts/format.js";
import { objects } from "../../parts/streams.js";

const MOST_READ = 2000; // lines in which an example of each kind is looked for

export class Failures {
  #id;
  #signal;
  #examples = new Map();
  #read = 0; // failures when examples were last looked for

  constructor(id, signal) {
    this.#id = id;
    this.#signal = signal;
    this.element = h("section", { class: "stack", hidden: true });
  }

  async look(batch) {
    const kinds = batch.top_errors;
    if (!kinds.length) return;
    const failed = batch.request_counts.failed;
    if (failed !== this.#read && kinds.some(({ code }) => !this.#examples.has(code))) {
      this.#read = failed;
      await this.#find(new Set(kinds.map(({ code }) => code)));
    }
    this.element.hidden = false;
    replace(this.element, h("h2", {}, "Failures"), h("div", { class: "scroll" }, h("table", {},
      h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Kind"), h("th", { scope: "col", class: "number" }, "Lines"), h("th", { scope: "col" }, "For example"))),
      h("tbody", {}, kinds.map((kind) => h("tr", {},
        h("td", {}, h("code", {}, kind.code)), h("td", { class: "number" }, count(kind.count)), h("td", {}, this.#examples.get(kind.code) ?? "")))))));
  }

  async #find(codes) {
    const response = await request(`/v1/batches/${this.#id}/errors`, { signal: this.#signal });
    let read = 0;
    for await (const entry of objects(response)) {
      const error = entry.error ?? entry.response?.body?.error ?? {};
      if (!this.#examples.has(error.code)) this.#examples.set(error.code, `${entry.custom_id ?? "?"}: ${error.message}`);
      if (++read >= MOST_READ || [...codes].every((code) => this.#examples.has(code))) break;
    }
  }
}
