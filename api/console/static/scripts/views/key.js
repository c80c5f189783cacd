// Asks for an API key.
import { h, labelled, replace } from "../parts/dom.js";
import { keepKey } from "../parts/key.js";

export function keyView(main, reason, then) {
  const field = h("input", { type: "password", autocomplete: "off", required: true, placeholder: "mq_…", spellcheck: false });
  const form = h(
    "form", { class: "stack" },
    labelled("API key", field, "Kept in this tab alone, and forgotten with it. medusaq keys create NAME makes one."),
    h("p", {}, h("button", { class: "primary" }, "Continue")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    keepKey(field.value.trim());
    then();
  });
  main.className = "lone";
  replace(
    main,
    h("h1", {}, "This gateway needs a key"),
    reason && h("p", { class: "notice", role: "alert" }, reason),
    form,
  );
  field.focus();
}
