// Chooses the view by the address, and asks for a key where the gateway wants one.
import { onKeyWanted } from "./parts/api.js";
import { forgetKey, hasKey } from "./parts/key.js";
import { replace, h } from "./parts/dom.js";
import { batchView } from "./views/batch.js";
import { jobView } from "./views/job.js";
import { jobsView } from "./views/jobs.js";
import { keyView } from "./views/key.js";
import { newView } from "./views/new.js";
import { nowView } from "./views/now.js";
import { tryView } from "./views/try.js";

const VIEWS = { now: nowView, new: newView, batch: batchView, try: tryView, jobs: jobsView, job: jobView };
const TITLES = { now: "Now", new: "New batch", batch: "Batch", try: "Try", jobs: "Jobs", job: "Job" };
const PARENTS = { batch: "now", job: "jobs" };
const main = document.getElementById("main");
const forget = document.getElementById("forget");
let leave = new AbortController();
let asking = false;

function show(focus = true) {
  asking = false;
  const [name, id] = location.hash.replace(/^#\/?/, "").split("/");
  const chosen = VIEWS[name] ? name : "now";
  leave.abort();
  leave = new AbortController();
  forget.hidden = !hasKey();
  for (const link of document.querySelectorAll("nav a")) {
    const current = link.hash === `#/${PARENTS[chosen] ?? chosen}`;
    current ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  document.title = `${TITLES[chosen]} - medusaq`;
  main.className = "";
  replace(main);
  VIEWS[chosen](main, leave.signal, decodeURIComponent(id ?? ""));
  if (focus) main.focus();
}

onKeyWanted((reason) => {
  if (asking) return; // each request of a view is refused: what is typed meanwhile must stay
  asking = true;
  leave.abort();
  document.title = "API key - medusaq";
  keyView(main, reason, show);
});
forget.addEventListener("click", () => {
  forgetKey();
  show();
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => show());
addEventListener("unhandledrejection", (event) => {
  if (event.reason?.name === "AbortError") event.preventDefault();
  else main.prepend(h("p", { class: "notice", role: "alert" }, String(event.reason?.message ?? event.reason)));
});
show(false);
