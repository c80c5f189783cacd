// The template of the prompt, into which the names of columns are put by chips.
import { h, labelled } from "../../parts/dom.js";

const IDENTIFIER = /^[A-Za-z_]\w*$/;

export const placeholder = (column) =>
  IDENTIFIER.test(column) ? `{{ ${column} }}` : `{{ row['${column.replace(/['\\]/g, "\\$&")}'] }}`;

export function templateEditor(columns, changed, text = first(columns)) {
  const prompt = h("textarea", { class: "code", rows: "6", required: true, oninput: changed, spellcheck: true }, text);
  const system = h("textarea", { class: "code", rows: "2", oninput: changed, placeholder: "You are …" });
  let last = prompt;
  for (const field of [prompt, system]) field.addEventListener("focus", () => (last = field));
  const insert = (text) => {
    last.setRangeText(text, last.selectionStart, last.selectionEnd, "end");
    last.focus();
    changed();
  };
  const chips = columns.map((column) =>
    h("button", { type: "button", class: "chip", "aria-label": `Insert the column ${column}`, onclick: () => insert(placeholder(column)) }, column));
  const element = h("div", { class: "stack" },
    h("div", { class: "stack" },
      h("p", { class: "hint" }, "The columns of the table. A click puts one into the prompt."),
      h("div", { class: "chips", role: "group", "aria-label": "Columns" }, chips)),
    labelled("Template", prompt),
    h("details", {}, h("summary", {}, "System message"), labelled("Also a template", system)));
  return { element, value: () => prompt.value, system: () => system.value.trim() };
}

// To begin with: the column that is probably meant.
const first = (columns) => placeholder(columns.find((name) => /prompt|question|text|review/i.test(name)) ?? columns[0]);
