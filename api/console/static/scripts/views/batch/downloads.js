// Downloads of the results, with the key, which a link could not send.
import { request } from "../../parts/api.js";
import { failure, h, replace, save } from "../../parts/dom.js";

const FORMATS = [["csv", "CSV"], ["parquet", "Parquet"], ["jsonl", "JSON lines"]];

export function downloads(batch, name, note, signal) {
  if (["validating", "failed"].includes(batch.status) && !batch.output_file_id) return null;
  const stem = name.replace(/(\.[a-z]+){1,2}$/i, "");
  const button = (path, file, text) => {
    const element = h("button", { type: "button", class: "small" }, text);
    element.addEventListener("click", async () => {
      element.disabled = true;
      try {
        const response = await request(`/v1/batches/${batch.id}/${path}`, { signal });
        save(await response.blob(), file);
        replace(note);
      } catch (error) {
        if (error.name !== "AbortError") replace(note, failure(error));
      } finally {
        element.disabled = false;
      }
    });
    return element;
  };
  const made = batch.table
    ? FORMATS.map(([ending, text]) => button(`output?format=${ending}`, `${stem}-answers.${ending}`, text))
    : [button("output", `${stem}-answers.jsonl`, "JSON lines"), button("errors", `${stem}-errors.jsonl`, "Failures")];
  return [h("span", { class: "muted small" }, "Download"), made];
}
