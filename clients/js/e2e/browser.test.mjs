/** The client in headless Chromium against a real server: the bundle that is served, and the examples page. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { launched } from "./browser.mjs";
import { Server, until } from "./server.mjs";

const browser = await launched();
const skip = browser === null ? "there is no Chromium here (Debian: apt-get install chromium)" : false;
let server;

before(async () => {
  if (browser !== null) server = await new Server().start();
});
after(async () => {
  await browser?.close();
  await server?.end();
});

/** A page of the server's own origin that has no script but the test's. */
async function page(path = "/healthz") {
  const opened = await browser.newPage();
  const errors = [];
  opened.on("pageerror", (error) => errors.push(error.message));
  await opened.goto(`${server.url}${path}`);
  return { page: opened, errors };
}

test("what is sent comes out as it was: text, binary and raw batches, three modes", { skip }, async () => {
  const { page: tab, errors } = await page();
  const results = await tab.evaluate(async () => {
    const { connect } = await import("/examples/mq.js");
    const results = {};
    for (const binary of [false, true]) {
      const mq = await connect(location.origin, { binary });
      const topic = `browser-${binary}`;
      await mq.http.createTopic(topic, 2);
      const sent = Array.from({ length: 1000 }, (_, n) => ({ key: `k${n}`, value: { n, text: "é" } }));
      await Promise.all(sent.map((record) => mq.produce(topic, record)));
      await mq.produce(topic, { value: new Uint8Array([0, 255]) });
      const modes = { reader: { from: "earliest" }, stream: { group: `${topic}s`, start: "earliest" }, queue: { group: `${topic}q`, mode: "queue" } };
      if (binary) modes.batch = { from: "earliest", format: "batch" };
      for (const [mode, how] of Object.entries(modes)) {
        const got = [];
        for await (const message of mq.subscribe({ topics: topic, ...how })) {
          if (mode === "batch") got.push(message.value.length === 2 ? "bytes" : message.json().n);
          else got.push(message.value instanceof Uint8Array ? "bytes" : message.value.n);
          if (mode !== "reader" && mode !== "batch") void message.ack();
          if (got.length === 1001) break;
        }
        results[`${mode} ${binary}`] = [new Set(got).size, got.filter((one) => one === "bytes").length];
      }
      await mq.close();
    }
    return results;
  });
  assert.deepEqual(Object.keys(results), ["reader false", "stream false", "queue false", "reader true", "stream true", "queue true", "batch true"]);
  for (const [mode, counts] of Object.entries(results)) assert.deepEqual(counts, [1001, 1], mode);
  assert.deepEqual(errors, []);
  await tab.close();
});

test("a gzip batch of somebody else is inflated by the browser", { skip }, async () => {
  const { page: tab } = await page();
  const { batch } = await import("../test/batches.mjs");
  const payload = [...batch(0, [{ value: "a" }, { value: "b" }], { compression: "gzip" })];
  const values = await tab.evaluate(async (bytes) => {
    const { connect } = await import("/examples/mq.js");
    // Its checksum is not made here, so the server would not take it: hand it over as a frame.
    class Socket extends EventTarget {
      constructor() {
        super();
        setTimeout(() => this.onopen({}));
      }
      send(text) {
        const { id, op } = JSON.parse(text);
        const answer = (fields) => this.onmessage({ data: JSON.stringify({ id, ok: true, ...fields }) });
        if (op === "hello") setTimeout(() => answer({ session: "s" }));
        if (op === "unsubscribe") setTimeout(() => answer({}));
        if (op !== "subscribe") return;
        setTimeout(() => {
          answer({ partitions: { t: [0] }, cursor: "t:0=0" });
          const head = new TextEncoder().encode(JSON.stringify({ op: "batch", sub: "s1", seq: 1, topic: "t", partition: 0, offset: 0, next_offset: 2, count: 2, bytes: 1 }));
          const frame = new Uint8Array(4 + head.length + bytes.length);
          new DataView(frame.buffer).setUint32(0, head.length);
          frame.set(head, 4);
          frame.set(bytes, 4 + head.length);
          this.onmessage({ data: frame.buffer });
        });
      }
      close() {}
    }
    const mq = await connect(location.origin, { binary: true, WebSocket: Socket });
    const values = [];
    for await (const record of mq.subscribe({ topics: "t", format: "batch" })) if (values.push(record.valueText) === 2) break;
    return values;
  }, payload);
  assert.deepEqual(values, ["a", "b"]);
  await tab.close();
});

test("kill -9 and restart of the server: 0 lost, 0 duplicated in stream mode with commits", { skip }, async () => {
  const { page: tab, errors } = await page();
  await tab.evaluate(async () => {
    const { connect } = await import("/examples/mq.js");
    const mq = await connect(location.origin, { idempotent: true });
    await mq.http.createTopic("killed", 2);
    Object.assign(window, { mq, got: [], sent: 0, states: [] });
    mq.subscribe({ topics: "killed", group: "k", start: "earliest", commitIntervalMs: 100, onMessage: ({ value }) => void got.push(value) });
    window.sending = (async () => {
      window.isSending = true;
      while (window.isSending) await mq.produce("killed", [{ value: sent++ }, { value: sent++ }]);
    })();
  });
  for (let kill = 0; kill < 2; kill++) {
    const before = await tab.evaluate(() => got.length);
    await until(async () => (await tab.evaluate(() => got.length)) > before + 100, "more messages");
    await server.kill();
    await server.start();
  }
  const before = await tab.evaluate(() => got.length);
  await until(async () => (await tab.evaluate(() => got.length)) > before + 100, "more messages");
  await tab.evaluate(async () => {
    window.isSending = false;
    await window.sending;
  });
  await until(() => tab.evaluate(() => new Set(got).size === sent), "all of them");
  await tab.waitForTimeout(200);
  assert.ok(await tab.evaluate(() => got.length === sent));
  await tab.evaluate(() => mq.close());
  assert.deepEqual(errors, []);
  await tab.close();
});

for (const [name, options] of [["light", {}], ["dark", { colorScheme: "dark" }], ["phone", { viewport: { width: 390, height: 844 } }]]) {
  test(`the examples page, ${name}: sends, shows, delays, cancels, pauses`, { skip }, async () => {
    const context = await browser.newContext(options);
    const tab = await context.newPage();
    const errors = [];
    tab.on("pageerror", (error) => errors.push(error.message));
    tab.on("console", (message) => /Content Security Policy|Refused/.test(message.text()) && errors.push(message.text()));
    await tab.goto(`${server.url}/examples?topic=page-${name}`);
    await tab.waitForSelector("#state.open");
    await tab.waitForSelector(`#feed .empty:text('There is no topic page-${name} yet')`);
    assert.equal((await fetch(`${server.url}/mq/v1/topics/page-${name}`)).status, 404, "looking creates nothing");
    await tab.fill("[name=value]", '{"order": 7}');
    await tab.fill("[name=key]", "ann");
    await tab.click("#send button");
    await tab.waitForSelector("#feed .value:text('{\"order\":7}')");
    assert.match(await tab.textContent("#told"), /^On disk in \d+ ms: partition \d, offset 0\.$/);
    assert.match(await tab.textContent("#feed li .about span:first-child"), /^(Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b.*:\d\d:\d\d/);
    assert.match(await tab.textContent("#feed li .about"), /partition \d · offset 0key ann$/);

    await tab.fill("[name=value]", "<b>not markup</b>");
    await tab.selectOption("[name=delay]", "5000");
    await tab.click("#send button");
    await tab.waitForSelector("#waiting .value:text('not markup')");
    await tab.selectOption("[name=delay]", "3600000");
    await tab.fill("[name=value]", "cancelled");
    await tab.click("#send button");
    await tab.waitForSelector("#waiting .value:text('cancelled')");
    await tab.click("#waiting li:last-child button");
    await tab.waitForSelector("#told:text('Cancelled.')");
    await tab.waitForSelector("#feed .late", { timeout: 15_000 });
    assert.equal(await tab.textContent("#feed li:first-child .value"), "<b>not markup</b>");
    await tab.waitForSelector("#waiting .empty");

    await tab.click("#pause");
    await tab.waitForSelector("#pause:text('Go on')");
    await tab.selectOption("[name=delay]", "0");
    await tab.fill("[name=value]", "while paused");
    await tab.click("#send button");
    await tab.waitForSelector("#told:text('On disk')");
    await tab.waitForTimeout(300);
    assert.equal(await tab.locator("#feed .value:text('while paused')").count(), 0);
    await tab.click("#pause");
    await tab.waitForSelector("#feed .value:text('while paused')");

    const isOverflowing = await tab.evaluate(() => document.documentElement.scrollWidth > window.innerWidth);
    assert.equal(isOverflowing, false, "nothing is wider than the screen");
    if (process.env["MQ_SCREENSHOTS"]) await tab.screenshot({ path: `${process.env["MQ_SCREENSHOTS"]}/${name}.png`, fullPage: true });
    assert.deepEqual(errors, []);
    await context.close();
  });
}

test("the examples page asks for a token where the server does", { skip }, async () => {
  const secured = new Server(["--auth"]);
  try {
    const token = secured.mq("token", "create", "ann", "--allow", "admin");
    await secured.start();
    const tab = await browser.newPage();
    await tab.goto(`${secured.url}/examples/`);
    await tab.waitForSelector("#auth:not([hidden])");
    await tab.fill("[name=token]", token);
    await tab.click("#login button");
    await tab.waitForSelector("#state.open");
    await tab.click("#send button");
    await tab.waitForSelector("#feed .value");
    await tab.close();
  } finally {
    await secured.end();
  }
});

test("the chat page: a room and inboxes, over a kill of the server; a device sees its inbox once", { skip }, async () => {
  const own = await new Server([], { MQ_STORE_INDEX: "rocksdb" }).start();
  try {
    const context = await browser.newContext();
    const errors = [];
    const opened = async (me) => {
      const tab = await context.newPage();
      tab.on("pageerror", (error) => errors.push(error.message));
      tab.on("console", (message) => /Content Security Policy|Refused/.test(message.text()) && errors.push(message.text()));
      await tab.goto(`${own.url}/examples/chat.html?me=${me}`);
      await tab.waitForSelector("#state:text('open')");
      return tab;
    };
    const say = async (tab, text, to = "") => {
      await tab.fill("[name=text]", text);
      await tab.fill("[name=to]", to);
      await tab.click("#send button");
    };
    const ann = await opened("ann");
    const bob = await opened("bob");
    await say(ann, "hello all");
    await say(ann, "psst <b>", "bob");
    await bob.waitForSelector("#said li:text('hello all')");
    await bob.waitForSelector("#inbox li:text('psst <b>')");
    await bob.waitForTimeout(1_000); // its place is committed
    await own.kill();
    await own.start();
    await say(bob, "still here");
    await say(bob, "and you?", "ann");
    await ann.waitForSelector("#said li:text('still here')", { timeout: 60_000 });
    await ann.waitForSelector("#inbox li:text('and you?')");
    assert.deepEqual(await ann.locator("#said li").allTextContents(), ["annhello all", "bobstill here"]);
    assert.deepEqual(await ann.locator("#inbox li").allTextContents(), ["boband you?"]);
    const again = await opened("bob");
    await again.waitForSelector("#said li:text('still here')");
    await say(ann, "later", "bob");
    await again.waitForSelector("#inbox li:text('later')");
    assert.deepEqual(await again.locator("#inbox li").allTextContents(), ["annlater"]);
    assert.deepEqual(errors, []);
    await context.close();
  } finally {
    await own.end();
  }
});
