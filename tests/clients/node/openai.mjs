// OpenAI's official client for Node against the server that the environment names (OPENAI_BASE_URL, OPENAI_API_KEY).
import assert from "node:assert/strict";

import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0, timeout: 60_000 });
const model = process.env.PAGODA_MODEL_NAME;
const messages = [{ role: "user", content: "What news from Rome?" }];
const asked = { model, messages, max_tokens: 16, temperature: 0 };

const whole = await client.chat.completions.create(asked);
assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

let text = "";
let usage = null;
for await (const chunk of await client.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
})) {
  text += chunk.choices[0]?.delta.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(text, whole.choices[0].message.content);
assert.equal(usage.completion_tokens, whole.usage.completion_tokens);

const parameters = { type: "object", properties: { city: { enum: ["Rome", "Paris"] } }, required: ["city"] };
const tools = [{ type: "function", function: { name: "weather", parameters } }];
const called = await client.chat.completions.create({ ...asked, max_tokens: 100, tools, tool_choice: "required" });
const call = called.choices[0].message.tool_calls[0];
assert.equal(call.function.name, "weather");
assert.ok(["Rome", "Paris"].includes(JSON.parse(call.function.arguments).city));

const response = await client.responses.create({ model, input: "What news?", max_output_tokens: 8 });
assert.ok(["completed", "incomplete"].includes(response.status)); // eight tokens may be all that it says
assert.deepEqual((await client.responses.retrieve(response.id)).output, response.output);
const items = [];
for await (const item of client.responses.inputItems.list(response.id)) items.push(item);
assert.equal(items[0].content[0].text, "What news?");

const embeddings = await client.embeddings.create({ model, input: ["a crown", "a king"] });
assert.equal(embeddings.data.length, 2);
for (const { embedding } of embeddings.data) assert.ok(Math.abs(Math.hypot(...embedding) - 1) < 1e-3);

const ids = [];
for await (const { id } of client.models.list()) ids.push(id);
assert.ok(ids.includes(model));

await assert.rejects(client.chat.completions.create({ ...asked, temperature: 9 }), (error) => {
  assert.ok(error instanceof OpenAI.BadRequestError);
  assert.equal(error.param, "temperature");
  return true;
});
await assert.rejects(client.chat.completions.create({ ...asked, model: "other" }), OpenAI.NotFoundError);
