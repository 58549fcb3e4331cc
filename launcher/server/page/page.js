// The built-in page: a chat with the model of this server. Text of the model is only ever set as text, never as HTML.

export const TEXTS = {
  en: {
    think: "Thinking", language: "中文", languageLabel: "Switch the page to Chinese", fresh: "New conversation",
    welcome: "Ask something. Everything stays between this page and this server.", conversation: "Conversation",
    prompt: "Message", send: "Send", stop: "Stop", answer: "Answer now", retry: "Try again", you: "You", model: "Model",
    copy: "Copy", copied: "Copied", thinking: "Thinking…", thought: "Thought",
    keyNeeded: "This server asks for an API key", keyKept: "It is kept until this page is closed or reloaded.",
    keyUse: "Use", keyCancel: "Cancel", sending: "Sending…", writing: "Answering…", done: "Answer complete.",
    stopped: "Stopped.", cut: "The reply was cut: the length limit or the end of the context was reached.",
    queue: "Waiting: place {0} in the queue", prefill: "Reading the prompt: {0} %", paused: "Paused",
    loading: "The model is loading…", away: "The server does not answer.", ended: "The answer broke off.",
    noKey: "The server needs an API key.", wait: "Try again in {0} s.",
    speed: "{0} tokens/s", first: "first token after {0} s", cached: "{0} of {1} prompt tokens reused",
    memory: "Memory {0}, at most {1}", context: "context {0}",
  },
  zh: {
    think: "思考", language: "English", languageLabel: "将页面切换为英文", fresh: "新对话",
    welcome: "请提问。所有内容只在本页面与这台服务器之间传输。", conversation: "对话",
    prompt: "消息", send: "发送", stop: "停止", answer: "立即回答", retry: "重试", you: "你", model: "模型",
    copy: "复制", copied: "已复制", thinking: "思考中…", thought: "思考过程",
    keyNeeded: "此服务器需要 API 密钥", keyKept: "密钥只保留到本页面关闭或刷新为止。",
    keyUse: "使用", keyCancel: "取消", sending: "发送中…", writing: "回答中…", done: "回答完成。",
    stopped: "已停止。", cut: "回复被截断：已达到长度上限或上下文末尾。",
    queue: "排队中：第 {0} 位", prefill: "正在读取提示：{0} %", paused: "已暂停",
    loading: "模型加载中…", away: "服务器没有响应。", ended: "回答意外中断。",
    noKey: "服务器需要 API 密钥。", wait: "请在 {0} 秒后重试。",
    speed: "{0} token/秒", first: "{0} 秒后出现首个 token", cached: "复用 {0}/{1} 个提示 token",
    memory: "内存 {0}，最多 {1}", context: "上下文 {0}",
  },
};

export function fill(text, ...values) {
  return text.replace(/\{(\d)\}/g, (_, index) => values[index]);
}

export function pickLanguage(languages) {
  const known = languages.map((name) => name.toLowerCase().split("-")[0]).find((name) => name in TEXTS);
  return known ?? "en";
}

// Server-sent events out of text that arrives in pieces.
export class EventParser {
  #rest = "";
  #data = [];

  push(text) {
    const events = [];
    this.#rest += text;
    for (;;) {
      const end = /\r\n|\n|\r(?!$)/.exec(this.#rest);
      if (end === null) return events;
      const line = this.#rest.slice(0, end.index);
      this.#rest = this.#rest.slice(end.index + end[0].length);
      if (line === "") {
        if (this.#data.length > 0) events.push({ data: this.#data.join("\n") });
        this.#data = [];
      } else if (line.startsWith(":")) {
        events.push({ comment: line.slice(1).trim() });
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
  }
}

// What a comment of the stream tells: the key of a text and its values, or null.
export function readComment(comment) {
  const queue = /^queue position (\d+)$/.exec(comment);
  if (queue) return ["queue", queue[1]];
  const prefill = /^prefill (\d+)\/(\d+)$/.exec(comment);
  if (prefill) return ["prefill", String(Math.floor((100 * Number(prefill[1])) / Math.max(1, Number(prefill[2]))))];
  return comment === "paused" ? ["paused"] : null;
}

export function newReply() {
  return { reasoning: "", content: "", finish: null, id: null, metrics: null, error: null, done: false, stopped: false };
}

// Adds the data of one event to a reply.
export function addData(reply, data) {
  if (data === "[DONE]") {
    reply.done = true;
    return;
  }
  const chunk = JSON.parse(data);
  if (chunk.error) {
    reply.error = String(chunk.error.message ?? "");
    return;
  }
  reply.id ??= chunk.id ?? null;
  reply.metrics = chunk.mindnano_metrics ?? reply.metrics;
  const choice = chunk.choices?.[0];
  reply.reasoning += choice?.delta?.reasoning_content ?? "";
  reply.content += choice?.delta?.content ?? "";
  reply.finish = choice?.finish_reason ?? reply.finish;
}

// The history as the server wants it. It is sent back unchanged, thinking included: then the server has it in its cache.
export function messagesOf(turns) {
  const messages = [];
  for (const { question, reply } of turns) {
    messages.push({ role: "user", content: question });
    if (reply) messages.push({ role: "assistant", content: reply.content, reasoning_content: reply.reasoning });
  }
  return messages;
}

// A turn without any reply is not part of the history, unless it is the last one: the question.
export function historyOf(turns) {
  return turns.filter(({ reply }, index) => index === turns.length - 1 || (reply && (reply.content || reply.reasoning)));
}

// Text and fenced code blocks, in order. A block that is still open ends with the text.
export function blocksOf(text) {
  const blocks = [];
  let lines = [];
  let fence = null;
  const close = (kind) => {
    const joined = lines.join("\n");
    if (kind === "code" || joined.trim() !== "") blocks.push({ kind, text: joined.replace(/^\n+|\n+$/g, "") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
    if (fence === null && mark && !(mark[1][0] === "`" && mark[2].includes("`"))) {
      close("text");
      fence = mark[1];
    } else if (fence !== null && mark && mark[1].startsWith(fence) && mark[2].trim() === "") {
      close("code");
      fence = null;
    } else {
      lines.push(line);
    }
  }
  close(fence === null ? "text" : "code");
  return blocks;
}

export function formatBytes(count) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let unit = 0;
  let value = count;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value < 10 && unit > 0 ? value.toFixed(1) : Math.round(value)} ${units[unit]}`;
}

export function speedLine(metrics, texts) {
  if (!metrics) return "";
  const parts = [];
  if (metrics.decode_tokens_per_second > 0) parts.push(fill(texts.speed, metrics.decode_tokens_per_second.toFixed(1)));
  if (metrics.ttft_seconds > 0) parts.push(fill(texts.first, metrics.ttft_seconds.toFixed(1)));
  if (metrics.cached_tokens > 0) parts.push(fill(texts.cached, metrics.cached_tokens, metrics.prompt_tokens));
  return parts.join(" · ");
}

export function memoryLine(props, texts) {
  const { resident_bytes: now, predicted_full_bytes: most } = props?.memory ?? {};
  const parts = [];
  if (now) parts.push(fill(texts.memory, formatBytes(now), formatBytes(most)));
  if (props?.context) parts.push(fill(texts.context, props.context));
  return parts.join(" · ");
}

function randomId() {
  // crypto.randomUUID exists only on https and on localhost
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function remembered(store, name) {
  try {
    return store.getItem(name);
  } catch {
    return null;
  }
}

function remember(store, name, value) {
  try {
    store.setItem(name, value);
  } catch {
    // Storage is off or full: the page works, and forgets.
  }
}

function element(name, className, text) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

class Failure extends Error {}

class Page {
  constructor() {
    this.at = Object.fromEntries([...document.querySelectorAll("[id]")].map((found) => [found.id, found]));
    const chosen = remembered(localStorage, "mindnano.language");
    this.language = chosen in TEXTS ? chosen : pickLanguage(navigator.languages);
    this.session = remembered(sessionStorage, "mindnano.session") ?? this.newSession();
    this.turns = [];
    this.views = [];
    this.key = "";
    this.running = null;
    this.props = null;
    this.metrics = null;
    this.state = null; // the key of the status text and its values
  }

  start() {
    const { at } = this;
    at.think.checked = remembered(localStorage, "mindnano.think") !== "off";
    at.think.addEventListener("change", () => remember(localStorage, "mindnano.think", at.think.checked ? "on" : "off"));
    at.language.addEventListener("click", () => this.setLanguage(this.language === "en" ? "zh" : "en"));
    at.new.addEventListener("click", () => this.reset());
    at.stop.addEventListener("click", () => this.stop());
    at.answer.addEventListener("click", () => this.control("end-thinking"));
    at.retry.addEventListener("click", () => this.retry());
    at.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send();
    });
    at.prompt.addEventListener("keydown", (event) => {
      const plain = event.key === "Enter" && !event.shiftKey && !event.isComposing && event.keyCode !== 229;
      if (!plain || matchMedia("(pointer: coarse)").matches) return;
      event.preventDefault();
      this.send();
    });
    at.prompt.addEventListener("input", () => this.fitPrompt());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && !at["key-dialog"].open && !event.isComposing) this.stop();
    });
    this.setLanguage(this.language);
    this.watch();
  }

  get texts() {
    return TEXTS[this.language];
  }

  setLanguage(language) {
    this.language = language;
    remember(localStorage, "mindnano.language", language);
    document.documentElement.lang = language === "zh" ? "zh-CN" : "en";
    this.translate(document);
    this.showState();
    this.showFacts();
  }

  translate(root) {
    for (const found of root.querySelectorAll("[data-text]")) found.textContent = this.texts[found.dataset.text];
    for (const found of root.querySelectorAll("[data-label]")) found.setAttribute("aria-label", this.texts[found.dataset.label]);
    for (const found of root.querySelectorAll("[data-placeholder]")) found.placeholder = this.texts[found.dataset.placeholder];
  }

  newSession() {
    const id = randomId();
    remember(sessionStorage, "mindnano.session", id);
    return id;
  }

  async request(path, options = {}) {
    for (;;) {
      const headers = { ...options.headers, ...(this.key && { Authorization: `Bearer ${this.key}` }) };
      const answer = await fetch(path, { ...options, headers });
      if (answer.status !== 401) return answer;
      if (options.quiet || !(await this.askKey())) throw new Failure(this.texts.noKey);
    }
  }

  askKey() {
    const { at } = this;
    const dialog = at["key-dialog"];
    this.asking ??= new Promise((resolve) => {
      const end = (key) => {
        this.asking = null;
        this.key = key;
        dialog.close();
        resolve(key !== "");
      };
      at.key.value = "";
      at["key-form"].onsubmit = (event) => {
        event.preventDefault();
        end(at.key.value.trim());
      };
      at["key-cancel"].onclick = () => end("");
      dialog.oncancel = () => end("");
      dialog.showModal();
    });
    return this.asking;
  }

  // Shows the model and its memory; asks again while the model is loading, and now and then while it writes.
  async watch() {
    clearTimeout(this.timer);
    let wait = null;
    try {
      const answer = await this.request("props");
      if (answer.ok) {
        this.props = await answer.json();
        this.at.model.textContent = this.props.model;
        document.title = this.props.model;
        if (this.state?.[0] === "loading" || this.state?.[0] === "away") this.setState();
        if (this.running) wait = 2000;
      } else if (answer.status === 503 && !this.running) {
        this.setState("loading");
        wait = 2000;
      }
    } catch (error) {
      if (!(error instanceof Failure)) {
        if (!this.running) this.setState("away");
        wait = 5000;
      }
    }
    this.showFacts();
    clearTimeout(this.timer);
    if (wait !== null) this.timer = setTimeout(() => this.watch(), wait);
  }

  setState(...state) {
    this.state = state.length > 0 ? state : null;
    this.showState();
  }

  showState() {
    this.at.status.textContent = this.state ? fill(this.texts[this.state[0]], ...this.state.slice(1)) : "";
  }

  showFacts() {
    this.at.speed.textContent = speedLine(this.metrics, this.texts);
    this.at.memory.textContent = memoryLine(this.props, this.texts);
  }

  showError(message) {
    this.at.error.hidden = message === null;
    this.at["error-text"].textContent = message ?? "";
    this.at.retry.hidden = this.turns.length === 0;
    if (message !== null) this.follow(() => {}, true);
  }

  fitPrompt() {
    const { prompt } = this.at;
    prompt.style.height = "auto";
    prompt.style.height = `${prompt.scrollHeight + 2}px`;
  }

  send() {
    const question = this.at.prompt.value.trim();
    if (question === "" || this.running) return;
    this.at.prompt.value = "";
    this.fitPrompt();
    this.turns.push({ question, reply: null });
    this.run();
  }

  retry() {
    const turn = this.turns.at(-1);
    if (this.running || !turn) return;
    turn.reply = null;
    for (const view of this.views.splice(-2)) view.remove();
    this.run();
  }

  reset() {
    this.stop();
    // The server may free what it kept for a conversation that nobody will go on with.
    this.request(`v1/sessions/${this.session}`, { method: "DELETE", quiet: true }).catch(() => {});
    this.session = this.newSession();
    this.turns = [];
    this.views = [];
    this.at.messages.replaceChildren();
    this.at.welcome.hidden = false;
    this.metrics = null;
    this.setState();
    this.showFacts();
    this.showError(null);
    this.at.prompt.focus();
  }

  stop() {
    const { running } = this;
    if (!running) return;
    running.reply.stopped = true;
    this.control("cancel");
    running.controller.abort();
  }

  control(word) {
    const id = this.running?.id ?? this.running?.reply.id;
    if (!id) return;
    this.request(`v1/${word}`, {
      method: "POST", quiet: true, keepalive: true,
      headers: { "Content-Type": "application/json" }, body: JSON.stringify({ request_id: id }),
    }).catch(() => {});
  }

  async run() {
    const turn = this.turns.at(-1);
    const reply = newReply();
    const body = {
      messages: messagesOf(historyOf(this.turns)),
      stream: true,
      stream_options: { include_usage: true },
      session_id: this.session,
      enable_thinking: this.at.think.checked,
    };
    turn.reply = reply;
    const running = { reply, controller: new AbortController(), id: null };
    this.running = running;
    this.metrics = null;
    this.showError(null);
    this.setBusy(true);
    this.setState("sending");
    this.at.welcome.hidden = true;
    this.draw(this.addView("user", "you"), { ...newReply(), content: turn.question }, true);
    const view = this.addView("assistant", "model");
    this.follow(() => {}, true);
    this.watch();
    let message = null;
    try {
      await this.receive(running, body, view);
      if (reply.error !== null) message = reply.error;
      else if (!reply.done) message = this.texts.ended;
    } catch (error) {
      message = error instanceof Failure ? error.message : this.texts.away;
    }
    this.running = null;
    this.setBusy(false);
    if (this.turns.at(-1) !== turn) return; // a new conversation was begun meanwhile
    this.draw(view, reply, true);
    if (reply.stopped) this.setState("stopped");
    else if (message === null) this.setState("done");
    else {
      this.setState();
      this.showError(message);
    }
    this.watch();
  }

  async receive(running, body, view) {
    const { reply, controller } = running;
    const answer = await this.request("v1/chat/completions", {
      method: "POST", signal: controller.signal,
      headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    if (!answer.ok) throw new Failure(await this.refusal(answer));
    running.id = answer.headers.get("X-Request-Id");
    const parser = new EventParser();
    const decoder = new TextDecoder();
    const reader = answer.body.getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      for (const event of parser.push(decoder.decode(value, { stream: true }))) {
        const told = event.comment === undefined ? null : readComment(event.comment);
        if (told) this.setState(...told);
        if (event.data !== undefined) addData(reply, event.data);
      }
      if (reply.content || reply.reasoning) {
        const state = reply.content ? "writing" : "thinking";
        if (this.state?.[0] !== state) this.setState(state);
        this.offerAnswer(state === "thinking");
        view.pending ??= requestAnimationFrame(() => this.draw(view, reply, false));
      }
      this.metrics = reply.metrics;
      if (reply.done || reply.error !== null) return;
    }
  }

  async refusal(answer) {
    const told = await answer.json().catch(() => null);
    const wait = answer.headers.get("Retry-After");
    const message = told?.error?.message ?? `HTTP ${answer.status}`;
    return wait ? `${message} ${fill(this.texts.wait, wait)}` : message;
  }

  offerAnswer(offered) {
    const { answer, stop } = this.at;
    const focused = document.activeElement === answer;
    answer.hidden = !offered;
    if (focused && !offered) stop.focus();
  }

  setBusy(busy) {
    this.offerAnswer(false);
    const { send, stop } = this.at;
    const [shown, hidden] = busy ? [stop, send] : [send, stop];
    const focused = document.activeElement === hidden;
    shown.hidden = false;
    hidden.hidden = true;
    if (focused) shown.focus();
  }

  addView(role, who) {
    const item = element("li", "message");
    item.dataset.role = role;
    const head = element("div", "who");
    const name = element("span");
    name.dataset.text = who;
    const content = element("div", "content");
    item.shown = { text: "" };
    head.append(name, this.copyButton(() => item.shown.text));
    item.append(head, content);
    this.translate(item);
    this.at.messages.append(item);
    this.views.push(item);
    return item;
  }

  copyButton(text) {
    const button = element("button", "copy");
    button.type = "button";
    button.dataset.text = "copy";
    button.addEventListener("click", async () => {
      await copy(text());
      button.dataset.text = "copied";
      this.translate(button.parentElement);
      setTimeout(() => {
        button.dataset.text = "copy";
        if (button.parentElement) this.translate(button.parentElement);
      }, 1500);
    });
    return button;
  }

  draw(view, reply, ended) {
    cancelAnimationFrame(view.pending);
    view.pending = null;
    this.follow(() => {
      view.setAttribute("aria-busy", String(!ended));
      if (reply.reasoning) this.drawReasoning(view, reply, ended);
      const text = reply.content.replace(/^\n+/, "");
      view.shown.text = text;
      this.drawBlocks(view.querySelector(".content"), blocksOf(text));
      if (ended && reply.finish === "length") this.drawNote(view);
    });
    this.showFacts();
  }

  drawReasoning(view, reply, ended) {
    let details = view.querySelector(".reasoning");
    if (!details) {
      details = element("details", "reasoning");
      const summary = element("summary");
      summary.append(element("span", "title"), element("span", "preview"));
      summary.lastChild.setAttribute("aria-hidden", "true");
      details.append(summary, element("div", "thought"));
      view.querySelector(".content").before(details);
    }
    const open = !ended && !reply.content;
    details.querySelector(".title").dataset.text = open ? "thinking" : "thought";
    details.querySelector(".preview").textContent = open ? reply.reasoning.slice(-120).replace(/\s+/g, " ") : "";
    details.querySelector(".thought").textContent = reply.reasoning;
    this.translate(details);
  }

  // Only the blocks that changed are touched, so that a selection in the others stays.
  drawBlocks(place, blocks) {
    blocks.forEach((block, index) => {
      let shown = place.children[index];
      if (shown?.dataset.kind !== block.kind) {
        const made = this.newBlock(block.kind);
        if (shown) shown.replaceWith(made);
        else place.append(made);
        shown = made;
      }
      const target = block.kind === "code" ? shown.querySelector("code") : shown;
      if (target.textContent !== block.text) target.textContent = block.text;
    });
    while (place.children.length > blocks.length) place.lastChild.remove();
  }

  newBlock(kind) {
    const block = element("div", kind);
    block.dataset.kind = kind;
    if (kind === "code") {
      const pre = element("pre");
      const code = element("code");
      pre.tabIndex = 0; // wide code is scrolled with the keyboard
      pre.append(code);
      block.append(pre, this.copyButton(() => code.textContent));
      this.translate(block);
    }
    return block;
  }

  drawNote(view) {
    if (view.querySelector(".note")) return;
    const note = element("p", "note");
    note.dataset.text = "cut";
    view.append(note);
    this.translate(view);
  }

  // Changes the page and stays at its end, if it was there.
  follow(change, always = false) {
    const { scroll } = this.at;
    const atEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48;
    change();
    if (atEnd || always) scroll.scrollTop = scroll.scrollHeight;
  }
}

async function copy(text) {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text);
    return;
  }
  // Without https there is no clipboard object.
  const area = element("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}

if (typeof document !== "undefined") new Page().start();
