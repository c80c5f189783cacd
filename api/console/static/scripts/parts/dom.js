// Makes elements without text that is parsed as HTML.
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key in element && typeof value !== "string") element[key] = value;
    else if (value !== null && value !== undefined) element.setAttribute(key, value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

// A link that has the focus and comes again keeps it.
export function replace(element, ...children) {
  const held = element.contains(document.activeElement) && document.activeElement.getAttribute("href");
  element.replaceChildren(...children.flat(3).filter(Boolean));
  if (held) [...element.querySelectorAll("a")].find((link) => link.getAttribute("href") === held)?.focus();
}

// A message for screen readers.
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}

export const failure = (error) => h("p", { class: "notice", role: "alert" }, error.message);

export function labelled(text, control, hint) {
  return h("label", {}, h("span", {}, text), control, hint && h("span", { class: "hint" }, hint));
}

// A file that the browser saves.
export function save(blob, name) {
  const link = h("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}
