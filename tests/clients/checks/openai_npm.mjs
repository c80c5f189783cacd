// OpenAI's own client for JavaScript: chats, completions, responses, files and batches. Prints a line of JSON a case.
import assert from "node:assert/strict";
import OpenAI, { toFile } from "openai";

const { CLIENTS_URL: baseURL, CLIENTS_MODEL: model } = process.env;
const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0 });
const question = "Anna is 42 years old and lives in Rome. Who is it about?";
const asked = { model, messages: [{ role: "user", content: question }], max_tokens: 100 };
const person = {
  type: "object",
  properties: { name: { type: "string", maxLength: 20 }, age: { type: "integer", minimum: 0, maximum: 150 } },
  required: ["name", "age"],
  additionalProperties: false,
};

function isPerson(text) {
  const { name, age, ...others } = JSON.parse(text);
  assert.deepEqual([typeof name, typeof age, others], ["string", "number", {}]);
}

async function joined(stream, part) {
  let text = "";
  for await (const chunk of stream) text += part(chunk) ?? "";
  return text;
}

const cases = {
  "chat, whole and streamed": async () => {
    const whole = await client.chat.completions.create(asked);
    const stream = await client.chat.completions.create({ ...asked, stream: true });
    assert.equal(await joined(stream, (chunk) => chunk.choices[0].delta.content), whole.choices[0].message.content);
    assert.match(whole._request_id, /^job_/);
  },
  "chat with a schema": async () => {
    const response_format = { type: "json_schema", json_schema: { name: "person", strict: true, schema: person } };
    const answer = await client.chat.completions.create({ ...asked, response_format });
    isPerson(answer.choices[0].message.content);
  },
  "chat with a tool": async () => {
    const tools = [{ type: "function", function: { name: "person", parameters: person } }];
    const answer = await client.chat.completions.create({ ...asked, tools, tool_choice: "required" });
    isPerson(answer.choices[0].message.tool_calls[0].function.arguments);
  },
  "completions, whole and streamed": async () => {
    const prompt = { model, prompt: "One, two,", max_tokens: 12 };
    const whole = await client.completions.create(prompt);
    const stream = await client.completions.create({ ...prompt, stream: true });
    assert.equal(await joined(stream, (chunk) => chunk.choices[0].text), whole.choices[0].text);
  },
  "responses, whole and streamed": async () => {
    const body = { model, input: question, max_output_tokens: 100 };
    const whole = await client.responses.create(body);
    const stream = await client.responses.create({ ...body, stream: true });
    const text = await joined(stream, (event) => (event.type === "response.output_text.delta" ? event.delta : ""));
    assert.equal(text, whole.output_text);
  },
  models: async () => {
    const listed = await joined(await client.models.list(), (one) => `${one.id}\n`);
    assert.ok(listed.split("\n").includes(model));
    assert.equal((await client.models.retrieve(model)).id, model);
  },
  "files and batches": async () => {
    const url = "/v1/chat/completions";
    const lines = [1, 2].map((n) => JSON.stringify({ custom_id: `${n}`, method: "POST", url, body: asked }));
    const file = await client.files.create({ file: await toFile(Buffer.from(lines.join("\n")), "lines.jsonl"), purpose: "batch" });
    let batch = await client.batches.create({ input_file_id: file.id, endpoint: url, completion_window: "24h" });
    while (!["completed", "failed", "cancelled", "expired"].includes(batch.status)) {
      await new Promise((resolve) => setTimeout(resolve, 500));
      batch = await client.batches.retrieve(batch.id);
    }
    assert.deepEqual([batch.status, batch.request_counts.completed], ["completed", 2]);
    const output = await (await client.files.content(batch.output_file_id)).text();
    assert.deepEqual(output.trim().split("\n").map((line) => JSON.parse(line).custom_id), ["1", "2"]);
  },
  "an error": async () => {
    const refused = client.chat.completions.create({ ...asked, temperature: 3 });
    await assert.rejects(refused, (error) => error instanceof OpenAI.BadRequestError && error.param === "temperature");
  },
};

for (const [name, run] of Object.entries(cases)) {
  let error = null;
  try {
    await run();
  } catch (failure) {
    console.error(failure);
    error = `${failure.name}: ${failure.message}`.slice(0, 300);
  }
  console.log(JSON.stringify({ case: name, error }));
}
