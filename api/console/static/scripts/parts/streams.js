// Reads answers that come bit by bit: lines of JSON, and server-sent events.
async function* lines(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (rest + value).split("\n");
      rest = parts.pop();
      yield* parts;
    }
    if (rest) yield rest;
  } finally {
    reader.cancel().catch(() => {});
  }
}

// The JSON objects of a response, of which the caller may leave the rest unread.
export async function* objects(response) {
  for await (const line of lines(response)) if (line.trim()) yield JSON.parse(line);
}

// [event, data] of each server-sent event.
export async function* events(response) {
  let event = "message";
  for await (const line of lines(response)) {
    if (line.startsWith("event: ")) event = line.slice(7).trim();
    else if (line.startsWith("data: ")) {
      yield [event, line.slice(6)];
      event = "message";
    }
  }
}
