// The built-in page in headless Chromium. Usage: node page.mjs URL FOLDER [KEY]
import assert from "node:assert/strict";
import chromium from "@sparticuz/chromium";
import puppeteer from "puppeteer-core";

const [base, folder, key] = process.argv.slice(2);
const LISTED = "1. cat\n2. dog\n3. horse\n4. cow\n5. sheep";
const ANSWER = "#messages > li.message[data-role=assistant]";
const headers = key ? { Authorization: `Bearer ${key}` } : {};

// On a busy machine the browser sometimes ends while it starts, which says nothing of the page.
async function launch(tries) {
  try {
    return await puppeteer.launch({
      args: puppeteer.defaultArgs({ args: chromium.args, headless: "shell" }),
      executablePath: await chromium.executablePath(),
      headless: "shell",
      timeout: 60_000,
    });
  } catch (error) {
    if (tries === 1) throw error;
    return launch(tries - 1);
  }
}

const browser = await launch(3);

async function queue() {
  return (await (await fetch(`${base}/props`, { headers })).json()).queue;
}

async function until(holds, what) {
  const end = Date.now() + 30_000;
  while (!(await holds())) {
    assert.ok(Date.now() < end, what);
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
}

async function open() {
  const page = await browser.newPage();
  await page.setViewport({ width: 900, height: 800 });
  const seen = { console: [], requests: [], bodies: [], refused: [] };
  page.on("console", (message) => seen.console.push(`${message.type()}: ${message.text()}`));
  page.on("response", (response) => {
    if (response.status() >= 400) seen.refused.push(`${response.status()} ${new URL(response.url()).pathname}`);
  });
  page.on("pageerror", (error) => seen.console.push(String(error)));
  page.on("request", (request) => {
    seen.requests.push(request.url());
    if (request.postData()) seen.bodies.push(JSON.parse(request.postData()));
  });
  await page.evaluateOnNewDocument(() => Object.defineProperty(navigator, "languages", { get: () => ["en"] }));
  await page.goto(`${base}/`, { waitUntil: "networkidle0" });
  return { page, seen };
}

const textOf = (page, selector) => page.$eval(selector, (found) => found.textContent);
const hidden = (page, selector) => page.$eval(selector, (found) => !found.checkVisibility());

// Clicks wait for the page to be still, which it is not while an answer is written.
const press = (page, selector) => page.$eval(selector, (found) => found.click());

async function ask(page, question) {
  await page.type("#prompt", question);
  await page.keyboard.press("Enter");
}

const answered = (page, count) =>
  page.waitForFunction(
    (selector, wanted) => {
      const found = document.querySelectorAll(selector);
      return found.length === wanted && found[wanted - 1].getAttribute("aria-busy") === "false";
    },
    { timeout: 30_000 },
    ANSWER,
    count,
  );

// Nothing was asked of another server, and the console is empty but for refusals that are expected.
async function clean(seen, expected = /^$/) {
  for (const url of seen.requests) assert.ok(url.startsWith(`${base}/`) || url.startsWith("data:"), url);
  for (const refused of seen.refused) assert.match(refused, expected);
  const others = seen.console.filter((line) => !line.startsWith("error: Failed to load resource"));
  assert.deepEqual(others, []);
  // The console tells of a refusal a moment after its answer.
  await until(() => seen.console.length === seen.refused.length, "the console tells of every refusal and of nothing else");
}

const tests = {
  async "a question is answered"() {
    const { page, seen } = await open();
    await page.waitForFunction(() => document.querySelector("#model").textContent === "mindnano-demo");
    assert.equal(await page.title(), "mindnano-demo");
    assert.match(await textOf(page, "#memory"), /Memory \d.*MiB, at most .* context 4096/);
    await ask(page, "Please list 5 animals.");
    await answered(page, 1);
    assert.equal(await textOf(page, "#messages > li[data-role=user] .text"), "Please list 5 animals.");
    assert.equal(await textOf(page, `${ANSWER} .text`), LISTED);
    assert.equal(await page.$eval(`${ANSWER} details.reasoning`, (found) => found.open), false);
    assert.equal(await textOf(page, `${ANSWER} .thought`), "I need 5 items.");
    assert.ok(await hidden(page, `${ANSWER} .thought`));
    assert.match(await textOf(page, "#speed"), /^\d+\.\d tokens\/s · first token after \d+\.\d s/);
    assert.equal(await textOf(page, "#status"), "Answer complete.");

    await ask(page, "What is the capital of France?");
    await answered(page, 2);
    const texts = await page.$$eval(`${ANSWER} .text`, (found) => found.map((each) => each.textContent));
    assert.equal(texts[1], "The capital of France is Paris.");
    assert.match(await textOf(page, "#speed"), /prompt tokens reused/);
    const last = seen.bodies.filter(({ messages }) => messages).at(-1);
    assert.deepEqual(last.messages.map(({ role }) => role), ["user", "assistant", "user"]);
    await page.click(`${ANSWER} summary`);
    assert.equal(await hidden(page, `${ANSWER} .thought`), false);
    await page.screenshot({ path: `${folder}/answer.png` });
    await clean(seen);
    await page.close();
  },

  async "the answer grows until the stop button ends the work"() {
    const { page, seen } = await open();
    // The built-in model's answers are short: the page's request gets what makes one go on.
    await page.evaluate(() => {
      const real = window.fetch;
      window.fetch = (path, options) => {
        if (path === "v1/chat/completions") {
          options = { ...options, body: JSON.stringify({ ...JSON.parse(options.body), ignore_eos: true }) };
        }
        return real(path, options);
      };
    });
    assert.ok(await hidden(page, "#stop"));
    await ask(page, "Please list 5 animals.");
    await page.waitForFunction((selector) => document.querySelector(`${selector} .text`), {}, ANSWER);
    assert.equal(await hidden(page, "#stop"), false);
    assert.ok(await hidden(page, "#send"));
    const length = (await textOf(page, ANSWER)).length;
    await page.waitForFunction(
      (selector, before) => {
        const found = document.querySelector(selector);
        return found.getAttribute("aria-busy") === "true" && found.textContent.length > before + 100;
      },
      {},
      ANSWER,
      length,
    );
    await page.waitForFunction(() => /^\d+\.\d tokens\/s/.test(document.querySelector("#speed").textContent));
    await page.screenshot({ path: `${folder}/writing.png` });
    await press(page, "#stop");
    await answered(page, 1);
    assert.equal(await textOf(page, "#status"), "Stopped.");
    await until(async () => (await queue()).running === 0, "idle after the stop");
    assert.equal(await hidden(page, "#stop"), true);
    assert.ok(await hidden(page, "#error"));
    const kept = await textOf(page, ANSWER);
    await new Promise((resolve) => setTimeout(resolve, 100));
    assert.equal(await textOf(page, ANSWER), kept);
    // The connection's end may reach the server before the cancel.
    await clean(seen, /^404 \/v1\/cancel$/);
    await page.close();
  },

  async "thinking ends when the answer is asked for"() {
    const { page, seen } = await open();
    const idsOf = async (content) => {
      const body = JSON.stringify({ content });
      const asked = { method: "POST", headers: { "Content-Type": "application/json" }, body };
      return (await (await fetch(`${base}/tokenize`, asked)).json()).tokens;
    };
    // The model would think for a few tokens only: it may not end that itself.
    const barred = [...(await idsOf("</think>")), ...(await idsOf("<tool_call>"))];
    const bias = Object.fromEntries(barred.map((id) => [id, -100]));
    await page.evaluate((logit_bias) => {
      const real = window.fetch;
      window.fetch = (path, options) => {
        if (path === "v1/chat/completions") {
          options = { ...options, body: JSON.stringify({ ...JSON.parse(options.body), logit_bias, ignore_eos: true }) };
        }
        return real(path, options);
      };
    }, bias);
    assert.ok(await hidden(page, "#answer"));
    await ask(page, "Please list 5 animals.");
    await page.waitForFunction(() => document.querySelector("#answer").checkVisibility());
    assert.equal(await textOf(page, "#answer"), "Answer now");
    assert.equal(await textOf(page, "#status"), "Thinking…");
    await press(page, "#answer");
    await page.waitForFunction((selector) => document.querySelector(`${selector} .text`), {}, ANSWER);
    await page.waitForFunction(() => !document.querySelector("#answer").checkVisibility());
    assert.notEqual(await textOf(page, `${ANSWER} .thought`), "");
    await press(page, "#stop");
    await answered(page, 1);
    await until(async () => (await queue()).running === 0, "idle after the stop");
    await clean(seen, /^404 \/v1\/cancel$/);
    await page.close();
  },

  async "languages, thinking and a new conversation"() {
    const { page, seen } = await open();
    assert.equal(await textOf(page, "#send"), "Send");
    await press(page, "#language");
    assert.equal(await textOf(page, "#send"), "发送");
    assert.equal(await page.$eval("html", (found) => found.lang), "zh-CN");
    await press(page, "#think");
    await ask(page, "你好，RK3588 的厂商。");
    await answered(page, 1);
    assert.match(await textOf(page, `${ANSWER} .text`), /瑞芯微/);
    assert.equal(await page.$(`${ANSWER} .reasoning`), null);
    assert.equal(await textOf(page, "#status"), "回答完成。");
    await page.screenshot({ path: `${folder}/chinese.png` });
    await page.reload({ waitUntil: "networkidle0" });
    assert.equal(await textOf(page, "#send"), "发送");
    await press(page, "#language");
    assert.equal(await textOf(page, "#send"), "Send");
    await ask(page, "Hello!");
    await answered(page, 1);
    await press(page, "#new");
    assert.equal((await page.$$("#messages > li")).length, 0);
    assert.equal(await hidden(page, "#welcome"), false);
    // The server need not have kept the conversation that is to be forgotten.
    await clean(seen, /^404 \/v1\/sessions\//);
    await page.close();
  },

  async "text of the model is text"() {
    const { page, seen } = await open();
    await ask(page, "<img src=x onerror=alert(1)> <b>bold</b>");
    await answered(page, 1);
    assert.equal((await page.$$("#messages img, #messages b")).length, 0);
    await clean(seen);
    await page.close();
  },
};

const guarded = {
  async "the key is asked for, and a wrong one again"() {
    const { page, seen } = await open();
    await page.waitForFunction(() => document.querySelector("#key-dialog").open);
    await page.screenshot({ path: `${folder}/key.png` });
    await page.type("#key", "wrong");
    await press(page, "#key-use");
    await page.waitForFunction(() => document.querySelector("#key-dialog").open && document.querySelector("#key").value === "");
    await page.type("#key", key);
    await press(page, "#key-use");
    await page.waitForFunction(() => document.querySelector("#model").textContent === "mindnano-demo");
    await ask(page, "Please list 5 animals.");
    await answered(page, 1);
    assert.equal(await textOf(page, `${ANSWER} .text`), LISTED);
    await clean(seen, /^401 /);
    assert.ok(!(await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))).includes(key));
    await page.close();
  },
};

let failed = 0;
for (const [name, test] of Object.entries(key ? guarded : tests)) {
  try {
    await test();
    console.log(`ok: ${name}`);
  } catch (error) {
    failed += 1;
    console.log(`failed: ${name}\n${error.stack}`);
  }
}
await browser.close();
process.exitCode = failed === 0 ? 0 : 1;
