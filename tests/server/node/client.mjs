// The official Node client against a server. Usage: node client.mjs URL
import assert from "node:assert/strict";
import OpenAI from "openai";

const base = process.argv[2];
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
const model = "mindnano-demo";
const LIST = "Please list 5 animals.";
const LISTED = "1. cat\n2. dog\n3. horse\n4. cow\n5. sheep";
const long = { ignore_eos: true };
const user = (content) => [{ role: "user", content }];

async function props() {
  return (await fetch(`${base}/props`)).json();
}

async function engineTokens() {
  const text = await (await fetch(`${base}/metrics`)).text();
  const lines = text.split("\n").filter((line) => /^mindnano_engine_tokens_total\{.*generated/.test(line));
  assert.equal(lines.length, 1, text);
  return Number(lines[0].split(" ").at(-1));
}

async function until(holds, what) {
  const end = Date.now() + 30_000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, what);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

const isIdle = async () => {
  const { running, waiting, paused } = (await props()).queue;
  return running + waiting + paused === 0;
};

const WEATHER = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: ["Paris", "Rome"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
      required: ["city", "days"],
      additionalProperties: false,
    },
  },
};

const tests = {
  async "with its usual retries it repeats no work in vain"() {
    let count = 0;
    const counting = (...asked) => (count++, fetch(...asked));
    const usual = new OpenAI({ baseURL: `${base}/v1`, apiKey: "none", fetch: counting });
    const asked = usual.chat.completions.create({ model, messages: user(LIST), ...long, timeout: 0.3 });
    await assert.rejects(asked, (error) => error.status === 504);
    assert.equal(count, 1);
  },
  async "whole answers and streams agree"() {
    const reply = await client.chat.completions.create({ model, messages: user(LIST) });
    assert.equal(reply.choices[0].message.content, LISTED);
    assert.equal(reply.choices[0].message.reasoning_content, "I need 5 items.");
    const stream = client.chat.completions.stream({ model, messages: user(LIST), stream_options: { include_usage: true } });
    let text = "";
    stream.on("content", (piece) => (text += piece));
    const final = await stream.finalChatCompletion();
    assert.equal(text, LISTED);
    assert.equal(final.choices[0].message.content, LISTED);
    assert.equal(final.choices[0].finish_reason, "stop");
    assert.equal(final.usage.completion_tokens, reply.usage.completion_tokens);
    assert.ok(reply.usage.completion_tokens_details.reasoning_tokens > 0);
    assert.ok(final.usage.prompt_tokens_details.cached_tokens > 0);
  },

  async "chunks are iterated to their end"() {
    const stream = await client.chat.completions.create({ model, messages: user("你好，RK3588 的厂商。"), stream: true });
    const ids = new Set();
    const reasons = [];
    let text = "";
    for await (const chunk of stream) {
      ids.add(chunk.id);
      reasons.push(chunk.choices[0].finish_reason);
      text += chunk.choices[0].delta.content ?? "";
    }
    assert.equal(ids.size, 1);
    assert.deepEqual(reasons.slice(0, -1).filter((reason) => reason !== null), []);
    assert.equal(reasons.at(-1), "stop");
    assert.match(text, /[\u4e00-\u9fff]/);
    assert.doesNotMatch(text, /\ufffd/);
  },

  async "stops, seeds, choices and logprobs"() {
    const stopped = await client.chat.completions.create({ model, messages: user(LIST), stop: ["t\n2", "never"] });
    assert.equal(stopped.choices[0].message.content, "1. ca");
    const wild = { model, messages: user(LIST), temperature: 2, seed: 5, max_tokens: 40, n: 2, ...long };
    const [one, two] = [await client.chat.completions.create(wild), await client.chat.completions.create(wild)];
    assert.deepEqual(one.choices, two.choices);
    assert.equal(one.choices.length, 2);
    const told = await client.chat.completions.create({ model, messages: user(LIST), logprobs: true, top_logprobs: 2 });
    assert.equal(told.choices[0].logprobs.content.map(({ token }) => token).join(""), LISTED);
    assert.ok(told.choices[0].logprobs.content.every(({ top_logprobs: top }) => top.length === 2));
  },

  async "completions and models"() {
    const { prompt } = await client.post("/../apply-template", { body: { messages: user(LIST), enable_thinking: false } });
    const reply = await client.completions.create({ model, prompt });
    assert.equal(reply.choices[0].text, LISTED);
    let text = "";
    for await (const chunk of await client.completions.create({ model, prompt, stream: true })) text += chunk.choices[0].text;
    assert.equal(text, LISTED);
    const models = [];
    for await (const found of client.models.list()) models.push(found.id);
    assert.deepEqual(models, [model]);
    assert.equal((await client.models.retrieve(model)).object, "model");
  },

  async "tools are run by the client's runner"() {
    const calls = [];
    const runner = client.chat.completions.runTools({
      model,
      messages: user("What is the weather in Paris?"),
      tool_choice: "required",
      tools: [
        {
          type: "function",
          function: {
            ...WEATHER.function,
            parse: JSON.parse,
            function: (found) => {
              calls.push(found);
              return "18 degrees";
            },
          },
        },
      ],
      stream: true,
    }, { maxChatCompletions: 1 });
    await runner.done();
    assert.ok(calls.length > 0);
    for (const { city, days } of calls) {
      assert.ok(["Paris", "Rome"].includes(city));
      assert.ok(days >= 1 && days <= 9);
    }
    const results = runner.messages.filter(({ role }) => role === "tool");
    assert.equal(results.length, calls.length);
    const after = await client.chat.completions.create({ model, messages: runner.messages, tools: [WEATHER] });
    assert.equal(after.choices[0].finish_reason, "stop");
  },

  async "a named call is streamed in pieces that make it whole"() {
    const asked = { model, messages: user("Rome?"), tools: [WEATHER], tool_choice: { type: "function", function: { name: "get_weather" } } };
    const whole = await client.chat.completions.create(asked);
    const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
    assert.equal(streamed.choices[0].finish_reason, "tool_calls");
    assert.equal(
      streamed.choices[0].message.tool_calls[0].function.arguments,
      whole.choices[0].message.tool_calls[0].function.arguments,
    );
  },

  async "a schema is followed"() {
    const reply = await client.chat.completions.parse({
      model,
      messages: user(LIST),
      response_format: { type: "json_schema", json_schema: { name: "weather", schema: WEATHER.function.parameters, strict: true } },
    });
    const value = JSON.parse(reply.choices[0].message.content);
    assert.deepEqual(Object.keys(value).sort(), ["city", "days"]);
    assert.ok(["Paris", "Rome"].includes(value.city));
  },

  async "an abort stops the work"() {
    const controller = new AbortController();
    const stream = await client.chat.completions.create(
      { model, messages: user(LIST), stream: true, max_tokens: 3900, ...long },
      { signal: controller.signal },
    );
    let seen = 0;
    for await (const chunk of stream) {
      if (chunk.choices[0].delta.content && ++seen === 3) controller.abort();
    }
    await until(isIdle, "idle after the abort");
    // Idle is told once the request ended; the engine does no more after that.
    const tokens = await engineTokens();
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.equal(await engineTokens(), tokens);
    const whole = new AbortController();
    const waited = client.chat.completions.create({ model, messages: user(LIST), ...long }, { signal: whole.signal });
    await until(async () => (await props()).queue.running === 1, "running");
    whole.abort();
    await assert.rejects(waited, OpenAI.APIUserAbortError);
    await until(isIdle, "idle after the abort of a whole answer");
    assert.ok((await engineTokens()) - tokens < 3900);
  },

  async "errors are the client's classes"() {
    const ask = (more) => client.chat.completions.create({ model, messages: user(LIST), ...more });
    const refused = async (more, kind, code, param) => {
      for (const stream of [false, true]) {
        await assert.rejects(ask({ ...more, stream }), (error) => {
          assert.ok(error instanceof kind, String(error));
          assert.equal(error.code, code);
          if (param !== undefined) assert.equal(error.param, param);
          return true;
        });
      }
    };
    await refused({ temperature: 9 }, OpenAI.BadRequestError, "invalid_value", "temperature");
    await refused({ model: "gpt-4" }, OpenAI.NotFoundError, "model_not_found", "model");
    await refused({ messages: user("red ".repeat(5000)) }, OpenAI.BadRequestError, "context_length_exceeded");
    const stream = await ask({ stream: true, timeout: 0.3, ...long });
    await assert.rejects(async () => {
      for await (const chunk of stream) assert.ok(chunk);
    }, OpenAI.APIError);
    await until(isIdle, "idle after the deadline");
  },

  async "responses are answered whole and in events"() {
    const reply = await client.responses.create({ model, input: LIST });
    assert.equal(reply.output_text, LISTED);
    assert.deepEqual(reply.output.map(({ type }) => type), ["reasoning", "message"]);
    assert.equal(reply.output[0].content[0].text, "I need 5 items.");
    assert.ok(reply.usage.output_tokens_details.reasoning_tokens > 0);
    let text = "";
    const stream = client.responses.stream({ model, input: LIST });
    stream.on("response.output_text.delta", ({ delta }) => (text += delta));
    const final = await stream.finalResponse();
    assert.equal(text, LISTED);
    assert.equal(final.output_text, LISTED);
    assert.equal(final.status, "completed");
    assert.equal(final.usage.output_tokens, reply.usage.output_tokens);
    const next = [...user(LIST), ...reply.output, ...user("Hello!")];
    const second = await client.responses.create({ model, input: next });
    assert.ok(second.usage.input_tokens_details.cached_tokens >= reply.usage.total_tokens - 2);
  },

  async "responses call tools and follow schemas"() {
    const { name, parameters } = WEATHER.function;
    const tools = [{ type: "function", name, parameters, strict: true }];
    const asked = { model, input: "What is the weather in Rome?", tools, tool_choice: "required" };
    const stream = client.responses.stream(asked);
    const pieces = [];
    stream.on("response.function_call_arguments.delta", ({ delta }) => pieces.push(delta));
    const called = await stream.finalResponse();
    const call = called.output.find(({ type }) => type === "function_call");
    assert.equal(pieces.join(""), call.arguments);
    assert.ok(["Paris", "Rome"].includes(JSON.parse(call.arguments).city));
    const result = { type: "function_call_output", call_id: call.call_id, output: "18 degrees" };
    const after = await client.responses.create({ model, input: [...user(asked.input), ...called.output.map(({ parsed_arguments, ...item }) => item), result], tools });
    assert.equal(after.status, "completed");
    const format = { type: "json_schema", name: "weather", schema: parameters, strict: true };
    const parsed = await client.responses.parse({ model, input: LIST, text: { format } });
    assert.ok(["Paris", "Rome"].includes(JSON.parse(parsed.output_text).city));
  },

  async "responses end with their reader, and fail as errors"() {
    const stream = await client.responses.create({ model, input: LIST, stream: true, ...long });
    for await (const event of stream) if (event.type === "response.output_text.delta") break;
    await until(isIdle, "idle after the reader left");
    const ask = (more) => client.responses.create({ model, input: LIST, ...more });
    await assert.rejects(ask({ background: true }), (error) => {
      assert.ok(error instanceof OpenAI.BadRequestError, String(error));
      assert.equal(error.param, "background");
      return true;
    });
    const types = [];
    for await (const event of await ask({ stream: true, timeout: 0.3, ...long })) types.push(event.type);
    assert.deepEqual(types.slice(-2), ["error", "response.failed"]);
    await until(isIdle, "idle after the deadline");
  },

  async "sessions go on"() {
    const asked = { model, prompt_cache_key: "node", messages: [{ role: "system", content: "red green ".repeat(100) }, ...user(LIST)] };
    const first = await client.chat.completions.create(asked);
    const { content, reasoning_content } = first.choices[0].message;
    const messages = [...asked.messages, { role: "assistant", content, reasoning_content }, ...user("Hello!")];
    const second = await client.chat.completions.create({ ...asked, messages });
    assert.ok(second.usage.prompt_tokens_details.cached_tokens >= first.usage.total_tokens - 2);
    assert.ok((await client.get("/sessions")).data.some(({ id }) => id === "node"));
    assert.equal((await client.delete("/sessions/node")).deleted, true);
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  try {
    await test();
    console.log(`ok: ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`failed: ${name}\n${error.stack}`);
  }
}
process.exitCode = failed === 0 ? 0 : 1;
