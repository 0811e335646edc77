// openai-node as its users have it: asked things of a server, it prints as JSON what it was told.
//
// node openai_client.mjs BASE KEY QUESTION

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [baseURL, apiKey, question] = process.argv.slice(2);
const openai = new OpenAI({ baseURL, apiKey, maxRetries: 0 });
const messages = [{ role: "user", content: question }];
const asked = { model: "trilby-demo", messages, temperature: 0, max_tokens: 64 };

// The error that something ends with.
async function wrong(ask) {
  try {
    await ask();
    return null;
  } catch (error) {
    return { name: error.constructor.name, status: error.status, code: error.code, param: error.param };
  }
}

const whole = await openai.chat.completions.create(asked);
const pieces = [];
let usage = null;
for await (const chunk of await openai.chat.completions.create({
  ...asked,
  stream: true,
  stream_options: { include_usage: true },
})) {
  pieces.push(...chunk.choices.map((choice) => choice.delta.content ?? ""));
  usage = chunk.usage ?? usage;
}

const helper = openai.chat.completions.stream(asked);
const heard = [];
helper.on("content", (delta) => heard.push(delta));
const final = await helper.finalContent();

const animal = z.object({ kind: z.enum(["fox", "owl"]), legs: z.number().int().min(2).max(4) });
const parsed = await openai.chat.completions.parse({
  ...asked,
  messages: [{ role: "user", content: "Tell me of an animal." }],
  response_format: zodResponseFormat(animal, "animal"),
});

// A call that is asked for by its name: parsed, run by the SDK itself, and what is said to what the tool gave.
const called = { ...asked, max_tokens: 100, messages: [{ role: "user", content: "How is the weather in Rome?" }] };
const ran = [];
const weather = zodFunction({
  name: "weather",
  description: "Says how the weather will be.",
  parameters: z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) }),
  function: (given) => {
    ran.push(given);
    return "It is warm.";
  },
});
const named = { tools: [weather], tool_choice: { type: "function", function: { name: "weather" } } };
const made = await openai.chat.completions.parse({ ...called, ...named });
const streamedCall = await openai.chat.completions.stream({ ...called, ...named }).finalMessage();
await openai.chat.completions.runTools({ ...called, ...named }).done();
const [calling] = made.choices[0].message.tool_calls;
const back = [
  ...called.messages,
  made.choices[0].message,
  { role: "tool", tool_call_id: calling.id, content: "It is warm." },
];
const saidAfter = await openai.chat.completions.create({ ...called, messages: back, tools: [weather], max_tokens: 24 });
const callsIn = (message) =>
  message.tool_calls.map((each) => [each.function.name, JSON.parse(each.function.arguments)]);

const response = await openai.responses.create({ model: "trilby-demo", input: question, temperature: 0, max_output_tokens: 64 });
const events = [];
for await (const event of await openai.responses.create({
  model: "trilby-demo",
  input: question,
  temperature: 0,
  max_output_tokens: 64,
  stream: true,
})) {
  events.push(event.type);
}

const leaving = new AbortController();
let left = null;
try {
  const stream = await openai.chat.completions.create(
    { ...asked, max_tokens: 400, ignore_eos: true, stream: true },
    { signal: leaving.signal },
  );
  for await (const chunk of stream) {
    left = chunk.id;
    leaving.abort();
  }
} catch (error) {
  if (error.constructor.name !== "APIUserAbortError") throw error;
}

const models = [];
for await (const model of openai.models.list()) models.push(model.id);
const text = await openai.completions.create({
  model: "trilby-demo",
  prompt: "Once there was a small boat",
  temperature: 0,
  max_tokens: 24,
});
const vectors = await openai.embeddings.create({ model: "trilby-demo", input: [question, "fox"] });

console.log(
  JSON.stringify({
    whole: whole.choices[0].message.content,
    usage: [whole.usage.prompt_tokens, whole.usage.completion_tokens],
    pieces,
    streamed_usage: [usage.prompt_tokens, usage.completion_tokens],
    helped: final,
    heard: heard.join(""),
    form: parsed.choices[0].message.parsed,
    call: {
      whole: callsIn(made.choices[0].message),
      streamed: callsIn(streamedCall),
      later: saidAfter.choices[0].message.content,
    },
    parsed: calling.function.parsed_arguments,
    ran,
    responses: response.output_text,
    events,
    left,
    models,
    retrieved: (await openai.models.retrieve("trilby-demo")).id,
    completion: text.choices[0].text,
    vectors: vectors.data.map((each) => each.embedding),
    wrong: {
      model: await wrong(() => openai.chat.completions.create({ ...asked, model: "nobody" })),
      key: await wrong(() => new OpenAI({ baseURL, apiKey: "wrong", maxRetries: 0 }).models.list()),
      value: await wrong(() => openai.chat.completions.create({ ...asked, temperature: 7 })),
      length: await wrong(() =>
        openai.chat.completions.create({ ...asked, messages: [{ role: "user", content: "fox ".repeat(3000) }] }),
      ),
    },
  }),
);
