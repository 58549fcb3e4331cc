// Checks the functions of the built-in page that need no browser. Usage: node page_check.mjs PAGE.JS
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

const source = await readFile(process.argv[2], "utf8");
const page = await import(`data:text/javascript;base64,${Buffer.from(source).toString("base64")}`);

function pieces(text, size) {
  return text.match(new RegExp(`[^]{1,${size}}`, "g")) ?? [];
}

const STREAM =
  ': accepted\n\n: queue position 2\n\ndata: {"a":1}\n\ndata: one\r\ndata:two\r\n\r\nevent: x\rdata:  three\r\rdata: [DONE]\n\ndata: unfinished\n';
const EVENTS = [
  { comment: "accepted" }, { comment: "queue position 2" }, { data: '{"a":1}' }, { data: "one\ntwo" }, { data: " three" }, { data: "[DONE]" },
];
for (const size of [1, 2, 3, 7, 1000]) {
  const parser = new page.EventParser();
  const found = pieces(STREAM, size).flatMap((piece) => parser.push(piece));
  assert.deepEqual(found, EVENTS, `pieces of ${size}`);
}

assert.deepEqual(page.readComment("queue position 2"), ["queue", "2"]);
assert.deepEqual(page.readComment("prefill 512/2048"), ["prefill", "25"]);
assert.deepEqual(page.readComment("prefill 0/0"), ["prefill", "0"]);
assert.deepEqual(page.readComment("paused"), ["paused"]);
assert.equal(page.readComment("ping"), null);

const reply = page.newReply();
const chunk = (delta, finish = null) => JSON.stringify({ id: "chatcmpl-1", choices: [{ index: 0, delta, finish_reason: finish }] });
page.addData(reply, chunk({ role: "assistant", content: "" }));
page.addData(reply, chunk({ reasoning_content: "1+", reasoning: "1+" }));
page.addData(reply, chunk({ reasoning_content: "1" }));
page.addData(reply, chunk({ content: "\n<b>2" }));
page.addData(reply, chunk({ content: "</b>" }));
page.addData(reply, chunk({}, "stop"));
page.addData(reply, JSON.stringify({ id: "chatcmpl-1", choices: [], usage: {}, mindnano_metrics: { decode_tokens_per_second: 12.34 } }));
assert.equal(reply.done, false);
page.addData(reply, "[DONE]");
assert.deepEqual(
  [reply.id, reply.reasoning, reply.content, reply.finish, reply.done, reply.error],
  ["chatcmpl-1", "1+1", "\n<b>2</b>", "stop", true, null],
);
const failed = page.newReply();
page.addData(failed, '{"error":{"message":"out of luck"}}');
assert.equal(failed.error, "out of luck");

// what the model wrote goes back unchanged, or the server cannot reuse it
const turns = [
  { question: "lost", reply: page.newReply() },
  { question: "1+1?", reply },
  { question: "more", reply: null },
];
assert.deepEqual(page.messagesOf(page.historyOf(turns)), [
  { role: "user", content: "1+1?" },
  { role: "assistant", content: "\n<b>2</b>", reasoning_content: "1+1" },
  { role: "user", content: "more" },
]);

assert.deepEqual(page.blocksOf("a\n\nb"), [{ kind: "text", text: "a\n\nb" }]);
assert.deepEqual(page.blocksOf("a\n```py\nx = 1\n\n```\nb"), [
  { kind: "text", text: "a" }, { kind: "code", text: "x = 1" }, { kind: "text", text: "b" },
]);
assert.deepEqual(page.blocksOf("```\n<script>"), [{ kind: "code", text: "<script>" }]);
assert.deepEqual(page.blocksOf("````\n```\nx\n```\n````"), [{ kind: "code", text: "```\nx\n```" }]);
assert.deepEqual(page.blocksOf("```inline``` text"), [{ kind: "text", text: "```inline``` text" }]);
assert.deepEqual(page.blocksOf(""), []);

assert.equal(page.pickLanguage(["fr-FR", "zh-TW", "en"]), "zh");
assert.equal(page.pickLanguage(["fr"]), "en");
assert.deepEqual(Object.keys(page.TEXTS.zh), Object.keys(page.TEXTS.en));
for (const [key, text] of Object.entries(page.TEXTS.en)) {
  const holes = (value) => (value.match(/\{\d\}/g) ?? []).sort();
  assert.deepEqual(holes(page.TEXTS.zh[key]), holes(text), key);
}
assert.equal(page.fill("{1} of {0}", "$&", 1), "1 of $&");

assert.equal(page.formatBytes(999), "999 B");
assert.equal(page.formatBytes(1536), "1.5 KiB");
assert.equal(page.formatBytes(3 * 2 ** 30), "3.0 GiB");
assert.equal(
  page.speedLine({ decode_tokens_per_second: 12.34, ttft_seconds: 0.25, cached_tokens: 5, prompt_tokens: 9 }, page.TEXTS.en),
  "12.3 tokens/s · first token after 0.3 s · 5 of 9 prompt tokens reused",
);
assert.equal(page.speedLine(null, page.TEXTS.en), "");
assert.equal(
  page.memoryLine({ context: 8192, memory: { resident_bytes: 2 ** 30, predicted_full_bytes: 2 ** 31 } }, page.TEXTS.en),
  "Memory 1.0 GiB, at most 2.0 GiB · context 8192",
);
