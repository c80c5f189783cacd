// The prompts of the first rows as they will be sent, and a trial of them.
import { post } from "../../parts/api.js";
import { announce, failure, h, replace } from "../../parts/dom.js";

const DELAY_MS = 400;

// fields() gives the batch as it stands.
export function previewPanel(fields, signal) {
  const list = h("div", { class: "preview" });
  const note = h("div", {});
  const tryButton = h("button", { type: "button" }, "Try three rows");
  const element = h("div", { class: "stack" }, h("h2", {}, "The first three rows"), note, list);
  let timer = 0;
  let asking = new AbortController();
  let requests = [];
  signal.addEventListener("abort", () => (clearTimeout(timer), asking.abort()));

  const load = async () => {
    asking.abort();
    asking = new AbortController();
    try {
      const preview = await post("/v1/batches/preview", { ...fields(), rows: 3 }, asking.signal);
      requests = preview.requests;
      replace(note);
      replace(list, requests.map(shown));
    } catch (error) {
      if (error.name !== "AbortError") replace(note, failure(error));
    }
  };
  const refresh = () => {
    clearTimeout(timer);
    timer = setTimeout(load, DELAY_MS);
  };
  tryButton.addEventListener("click", async () => {
    clearTimeout(timer);
    tryButton.disabled = true;
    await load();
    await Promise.all(requests.map((request, index) => answer(request, list.children[index], signal)));
    tryButton.disabled = false;
    announce("The first rows have been answered.");
  });
  return { element, tryButton, refresh };
}

function shown(request, index) {
  const messages = request.body?.messages ?? [];
  return h("div", { class: "preview-row" },
    h("p", { class: "muted small" }, `Row ${index + 1}`),
    request.error && h("p", { class: "bad" }, request.error.message),
    messages.map(({ role, content }) => h("p", { class: "prompt" }, role === "system" && h("span", { class: "muted" }, "System: "), content)));
}

async function answer(request, row, signal) {
  if (!request.body) return;
  const place = h("p", { class: "answer muted" }, "…");
  row.append(place);
  try {
    const completion = await post("/v1/chat/completions", request.body, signal);
    place.className = "answer";
    place.textContent = readable(completion.choices[0].message.content ?? "") || "(empty)";
  } catch (error) {
    place.className = "answer bad";
    place.textContent = error.message;
  }
}

// An object as one line for each field.
function readable(text) {
  try {
    const found = JSON.parse(text);
    const fields = found && typeof found === "object" ? Object.entries(found) : [];
    return fields.length ? fields.map(([name, value]) => `${name}: ${JSON.stringify(value)}`).join("\n") : text;
  } catch {
    return text;
  }
}
