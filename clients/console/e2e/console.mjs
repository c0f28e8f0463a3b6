/** A browser at the console of a real server, and everything that must not happen there: errors, violations of the policy, axe's findings. */
import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { createRequire } from "node:module";
import { after } from "node:test";
import { launched } from "../../js/e2e/browser.mjs";

export { Server, sleep, until } from "../../js/e2e/server.mjs";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const WCAG = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
/** What Chromium itself logs of an answer from 400 on, or of none: each test says which it expects. */
const NETWORK = /Failed to load resource|WebSocket connection to|net::ERR_/;

export const browser = await launched();
export const skip = browser === null ? "there is no Chromium here (Debian: apt-get install chromium)" : false;

/** To preload for a clock of one's own; undefined: it is not installed. */
export const libfaketime = readdirSync("/usr/lib").map((name) => `/usr/lib/${name}/faketime/libfaketime.so.1`).find((path) => existsSync(path));

/** Each must be ended, which is when it is judged. */
const tabs = new Set();
after(() => assert.deepEqual([...tabs].map(({ url }) => url), [], "tabs that nobody has judged"));

/** What the browser keeps of a page. */
const KEPT = async () => [
  localStorage.length, sessionStorage.length, document.cookie, (await indexedDB.databases()).length, (await caches.keys()).length,
  (await navigator.serviceWorker.getRegistrations()).length, location.href.includes("mq_"),
];

export class Tab {
  errors = [];
  network = [];
  /** Of the policy; those of pages that were left, too. */
  violations = [];

  /** A window of its own, or, which is quicker, one more of another tab's, that ends before it. */
  static async at(url, options = {}, beside = null) {
    const tab = new Tab();
    tab.url = url;
    tab.context = beside?.context ?? await browser.newContext({ viewport: { width: 1280, height: 800 }, permissions: ["clipboard-read", "clipboard-write"], ...options });
    tab.isBeside = beside !== null;
    tab.page = await tab.context.newPage();
    await tab.page.exposeFunction("violated", (text) => tab.violations.push(text));
    await tab.page.addInitScript(() => {
      document.addEventListener("securitypolicyviolation", (event) => window.violated(`${event.violatedDirective} ${event.blockedURI} ${event.sample}`));
    });
    tab.watch(tab.page);
    tabs.add(tab);
    return tab;
  }

  /** Note what goes wrong on a page of this browser. */
  watch(page) {
    page.setDefaultTimeout(30_000); // of a busy machine
    page.on("pageerror", (error) => this.errors.push(error.stack ?? error.message));
    page.on("console", (line) => {
      if (line.type() !== "error" && line.type() !== "warning") return;
      (NETWORK.test(line.text()) ? this.network : this.errors).push(`${line.text()} ${line.location().url}`);
    });
  }

  /** Open a page of the console: "topics/orders?tab=send". */
  async open(path = "overview") {
    await this.page.goto(`${this.url}/#/${path}`);
    await this.page.waitForSelector("main h1");
  }

  /** To another place without loading the page anew, which would sign out. */
  async go(path) {
    await this.page.evaluate((hash) => (location.hash = hash), `#/${path}`);
    await this.page.waitForSelector("main h1");
  }

  async signIn(token) {
    await this.page.fill("input[type=password]", token);
    await this.page.press("input[type=password]", "Enter");
  }

  button(name, within = this.page) {
    return within.getByRole("button", { name, exact: true });
  }

  async said(text) {
    try {
      await this.page.locator(".toast", { hasText: text }).first().waitFor();
    } catch {
      throw new Error(`"${text}" was not said, but: ${await this.page.locator(".toast, .note, dialog .hint").allTextContents()}`);
    }
  }

  dialog() {
    return this.page.locator("dialog[open]");
  }

  /** `within`: the parts of a large page, as selectors. */
  async axe(what, within = ["html"]) {
    if (await this.page.evaluate("typeof axe") === "undefined") await this.page.evaluate(AXE);
    const options = { runOnly: WCAG, resultTypes: ["violations"] }; // of what is right, one element each: names for all take long
    const { violations } = await this.page.evaluate(`axe.run({ include: ${JSON.stringify(within)} }, ${JSON.stringify(options)})`);
    const told = violations.map(({ id, help, nodes }) => `${id}: ${help}\n${nodes.slice(0, 5).map(({ html, failureSummary }) => `  ${html}\n  ${failureSummary}`).join("\n")}`);
    assert.deepEqual(told, [], `axe on ${what}`);
  }

  async fits(what) {
    const [is, may] = await this.page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
    assert.ok(is <= may, `${what} is ${is} pixels wide, the window ${may}`);
  }

  /** No word of plain text goes on in a second line. What is `mono` is a name or a value, of any length: it may. */
  async wholeWords(what) {
    const broken = await this.page.evaluate(() => {
      const found = [];
      const texts = document.createTreeWalker(document.querySelector("main"), NodeFilter.SHOW_TEXT);
      for (let text = texts.nextNode(); text !== null; text = texts.nextNode()) {
        if (!text.parentElement.checkVisibility() || text.parentElement.closest(".mono, pre, code, .list-body, textarea, select, title, .hidden") !== null) continue;
        for (const { index, 0: word } of text.data.matchAll(/[\p{L}\p{N}]+/gu)) {
          const range = document.createRange();
          range.setStart(text, index);
          range.setEnd(text, index + word.length);
          if (new Set([...range.getClientRects()].map(({ top }) => Math.round(top))).size > 1) found.push(word);
        }
      }
      return found;
    });
    assert.deepEqual(broken, [], `words broken on ${what}`);
  }

  /** Nothing was logged that must not be, and nothing stored. `network` says which refusals were meant. */
  async end(network = null) {
    tabs.delete(this);
    assert.deepEqual(await this.page.evaluate(KEPT), [0, 0, "", 0, 0, 0, false], "nothing is stored in the browser");
    assert.deepEqual(this.violations, [], "violations of the policy");
    assert.deepEqual(this.errors, [], "errors in the console");
    if (network === null) assert.deepEqual(this.network, [], "requests that failed");
    else for (const line of this.network) assert.match(line, network);
    await (this.isBeside ? this.page : this.context).close();
  }
}

/** Requests beside the page. */
export class Api {
  constructor(url, token) {
    this.url = url;
    this.headers = token === undefined ? {} : { Authorization: `Bearer ${token}` };
  }

  async call(method, path, body, type = "application/json") {
    const answer = await fetch(this.url + path, { method, headers: { ...this.headers, ...(body === undefined ? {} : { "Content-Type": type }) }, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await answer.text();
    if (!answer.ok) throw Object.assign(new Error(`${method} ${path}: ${answer.status} ${text}`), { status: answer.status });
    return text === "" ? null : JSON.parse(text);
  }

  /** A token of this server, made by one with the right; a command would take half a second of processor time. */
  async token(principal, scopes) {
    return (await this.call("POST", "/mq/v1/tokens", { principal, scopes })).token;
  }

  topic(name, settings = { partitions: 2 }) {
    return this.call("PUT", `/mq/v1/topics/${name}`, settings);
  }

  async send(topic, records) {
    return (await this.call("POST", `/topics/${topic}`, { records }, "application/vnd.kafka.json.v2+json")).offsets;
  }

  /** Have a group reject records: dead letters. */
  async reject(group, topic, count, reason) {
    const { messages } = await this.call("POST", `/mq/v1/groups/${group}/messages:receive`, { topics: [topic], start: "earliest", max_messages: count, consumer: "worker-1" });
    await this.call("POST", `/mq/v1/groups/${group}/messages:reject`, { receipts: messages.map(({ receipt }) => receipt), reason });
    return messages;
  }
}
