// What answers look like: text, or fields that become columns.
import { h, labelled } from "../../parts/dom.js";

const TYPES = [["choice", "one of"], ["string", "text"], ["integer", "whole number"], ["number", "number"], ["boolean", "yes or no"], ["pattern", "text by pattern"]];

// given: fields to begin with, as {name, pattern}.
export function schemaEditor(changed, given) {
  const rows = h("div", { class: "stack", hidden: true });
  const list = h("div", { class: "stack" });
  let fields = Boolean(given);
  const way = (value, text, checked) =>
    h("label", { class: "choice" }, h("input", { type: "radio", name: "answers", value, checked, onchange: choose }), text);
  const add = h("button", { type: "button", onclick: () => addField().querySelector("input").focus() }, "Add a field");
  rows.append(list, h("p", {}, add));
  function choose(event) {
    fields = event.target.value === "fields";
    rows.hidden = !fields;
    if (fields && !list.children.length) addField("label");
    changed();
  }
  function addField(name = "", pattern = "") {
    const field = fieldRow(name, pattern, changed, () => {
      field.remove();
      changed();
    });
    list.append(field);
    return field;
  }
  const element = h("div", { class: "stack" },
    h("fieldset", {}, h("legend", {}, "Each answer is"), h("div", { class: "row" }, way("text", "text", !fields), way("fields", "a set of fields, each a column", fields))),
    rows);
  for (const { name, pattern } of given ?? []) addField(name, pattern);
  rows.hidden = !fields;
  return { element, value: () => (fields ? schemaOf(list) : null) };
}

function fieldRow(name, pattern, changed, remove) {
  const choices = labelled("Choices", h("input", { name: "choices", value: "good, bad", placeholder: "good, bad", oninput: changed }));
  const form = labelled("Pattern", h("input", { class: "code", name: "pattern", value: pattern, placeholder: "^[A-Z]{2}[0-9]+$", spellcheck: false, oninput: changed }));
  const type = h("select", { name: "type", onchange: () => {
    show();
    changed();
  } }, TYPES.map(([value, text]) => h("option", { value }, text)));
  const show = () => {
    choices.hidden = type.value !== "choice";
    form.hidden = type.value !== "pattern";
  };
  if (pattern) type.value = "pattern";
  show();
  return h("div", { class: "field-row" },
    labelled("Field", h("input", { name: "field", value: name, oninput: changed })),
    labelled("Type", type), h("div", {}, choices, form),
    h("button", { type: "button", class: "danger", "aria-label": "Remove this field", onclick: remove }, "Remove"));
}

// null while no field has a name.
function schemaOf(list) {
  const properties = {};
  for (const row of list.children) {
    const of = (name) => row.querySelector(`[name=${name}]`).value.trim();
    const words = of("choices").split(",").map((word) => word.trim()).filter(Boolean);
    if (!of("field") || (of("type") === "choice" && !words.length)) continue;
    properties[of("field")] = typeOf(of("type"), words, of("pattern"));
  }
  const required = Object.keys(properties);
  return required.length ? { type: "object", properties, required, additionalProperties: false } : null;
}

function typeOf(type, words, pattern) {
  if (type === "choice") return { type: "string", enum: [...new Set(words)] };
  if (type === "pattern") return { type: "string", ...(pattern && { pattern }) };
  return { type };
}
