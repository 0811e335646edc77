// The Vercel AI SDK with its provider for compatible servers, as its users have it: asked things of a server, it prints
// as JSON what it was told.
//
// node ai_sdk_client.mjs BASE KEY QUESTION

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, Output, streamText, tool } from "ai";
import { z } from "zod";

const [baseURL, apiKey, question] = process.argv.slice(2);
const trilby = createOpenAICompatible({
  name: "trilby",
  baseURL,
  apiKey,
  includeUsage: true,
  supportsStructuredOutputs: true,
});
const model = trilby("trilby-demo");
const asked = { model, temperature: 0, maxOutputTokens: 64, maxRetries: 0 };

// What a call ends with.
async function wrong(ask) {
  try {
    await ask();
    return null;
  } catch (error) {
    return { name: error.name, status: error.statusCode, message: error.message };
  }
}

const whole = await generateText({ ...asked, prompt: question });
const stream = streamText({ ...asked, prompt: question });
const pieces = [];
for await (const piece of stream.textStream) pieces.push(piece);

const animal = z.object({ kind: z.enum(["fox", "owl"]), legs: z.number().int().min(2).max(4) });
const form = await generateText({
  ...asked,
  prompt: "Tell me of an animal.",
  output: Output.object({ schema: animal }),
});
const grown = streamText({ ...asked, prompt: "Tell me of an animal.", output: Output.object({ schema: animal }) });
let last = null;
for await (const part of grown.partialOutputStream) last = part;

// A call that is asked for by its name, which the SDK runs, and what is said to what the tool gave.
const weather = tool({
  description: "Says how the weather will be.",
  inputSchema: z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) }),
  execute: async ({ city, days }) => `It is warm in ${city} for ${days} days.`,
});
const called = {
  ...asked,
  maxOutputTokens: 100,
  tools: { weather },
  toolChoice: { type: "tool", toolName: "weather" },
  messages: [{ role: "user", content: "How is the weather in Rome?" }],
};
const made = await generateText(called);
const streamedCall = streamText(called);
const saidAfter = await generateText({
  ...called,
  maxOutputTokens: 24,
  toolChoice: "auto",
  messages: [...called.messages, ...made.response.messages],
});
const callsIn = (calls) => calls.map((each) => [each.toolName, each.input]);

const completion = await generateText({
  ...asked,
  model: trilby.completionModel("trilby-demo"),
  maxOutputTokens: 24,
  prompt: "Once there was a small boat",
});
const vectors = await embedMany({ model: trilby.embeddingModel("trilby-demo"), values: [question, "fox"] });
const turns = await generateText({
  ...asked,
  system: "You tell stories.",
  messages: [
    { role: "user", content: [{ type: "text", text: question }] },
    { role: "assistant", content: whole.text },
    { role: "user", content: "Why?" },
  ],
});

console.log(
  JSON.stringify({
    whole: whole.text,
    finish: whole.finishReason,
    usage: [whole.usage.inputTokens, whole.usage.outputTokens],
    pieces,
    streamed_usage: await stream.usage.then((usage) => [usage.inputTokens, usage.outputTokens]),
    form: form.output,
    grown: last,
    call: {
      whole: callsIn(made.toolCalls),
      streamed: callsIn(await streamedCall.toolCalls),
      later: saidAfter.text,
    },
    ran: made.toolResults.map((each) => each.output),
    called_finish: made.finishReason,
    completion: completion.text,
    vectors: vectors.embeddings,
    embedded_tokens: vectors.usage.tokens,
    turns: turns.text,
    wrong: {
      model: await wrong(() => generateText({ ...asked, model: trilby("nobody"), prompt: "Hi" })),
      value: await wrong(() => generateText({ ...asked, temperature: 7, prompt: "Hi" })),
    },
  }),
);
