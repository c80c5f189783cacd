// Text whose tokens from drafts are tinted by the source of the draft.
import { h } from "./dom.js";
import { percent } from "./format.js";

const NAMES = { medusa: "heads", lookup: "lookup", grammar: "grammar" };
const WHAT = {
  medusa: "guessed by draft heads", lookup: "copied from prompt or answer", grammar: "forced by the schema",
};

export const sourceName = (source) => NAMES[source] ?? source;

// Adds text to an element. drafts: [{start, end, source}] in characters, which are not JavaScript's units.
export function append(element, text, drafts = []) {
  const characters = drafts.length ? Array.from(text) : [];
  let at = 0;
  for (const { start, end, source } of drafts) {
    if (start > at) element.append(characters.slice(at, start).join(""));
    element.append(h("span", { class: `draft ${source}`, title: WHAT[source] ?? source }, characters.slice(start, end).join("")));
    at = end;
  }
  element.append(drafts.length ? characters.slice(at).join("") : text);
}

// speculation: of a result. What each source had accepted of what was verified.
export function legend(speculation) {
  const entries = Object.entries(speculation?.sources ?? {}).filter(([, found]) => found.verified);
  return h(
    "p", { class: "legend" },
    entries.map(([source, { accepted, verified }]) =>
      h("span", {},
        h("span", { class: `draft ${source}` }, sourceName(source)),
        ` ${accepted} of ${verified} drafts accepted (${percent(accepted / verified)})`)),
    h("span", {}, entries.length ? "Text without a tint came from the model alone." : "No token was drafted."),
  );
}
