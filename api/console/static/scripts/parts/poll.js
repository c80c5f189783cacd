// Repeats a request until it says that there is no more to see. Waits while the tab is hidden.
const sleep = (seconds, signal) =>
  new Promise((resolve) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal.addEventListener("abort", () => (clearTimeout(timer), resolve()), { once: true });
  });

const visible = () =>
  document.visibilityState === "visible"
    ? Promise.resolve()
    : new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));

// step returns false at the end. onError is told of what failed; the next try follows.
export async function poll(step, signal, seconds, onError) {
  while (!signal.aborted) {
    let wait = seconds;
    try {
      await visible();
      if ((await step()) === false) return;
    } catch (error) {
      if (error.name === "AbortError" || error.status === 401 || signal.aborted) return;
      onError(error);
      wait = Math.max(seconds, error.retryAfterS ?? 0);
    }
    await sleep(wait, signal);
  }
}
