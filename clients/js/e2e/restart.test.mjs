/** The server dies and comes back, and the client with it. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Closed, connect } from "../dist/node.js";
import { Server, sleep, until } from "./server.mjs";

const KILLS = Number(process.env["MQ_KILLS"] ?? 1);

test(`kill -9 and restart, ${KILLS} times, under load: 0 lost and 0 duplicated in stream mode and as a reader, 0 lost as a queue`, async () => {
  const server = await new Server().start();
  const mq = await connect(server.url, { idempotent: true, recordsMax: 5_000 });
  await mq.http.createTopic("t", 3);
  const got = { reader: [], stream: [], queue: [] };
  const subscriptions = {
    reader: { from: "earliest" },
    stream: { group: "s", start: "earliest", member: "one", commitIntervalMs: 100 },
    queue: { group: "q", mode: "queue", start: "earliest", invisibleMs: 3_000, concurrency: 4 },
  };
  for (const [mode, how] of Object.entries(subscriptions)) {
    mq.subscribe({ topics: "t", ...how, onMessage: ({ value }) => void got[mode].push(value) });
  }
  let isSending = true;
  let sent = 0;
  const receipts = [];
  const sending = (async () => {
    while (isSending) {
      await mq.room();
      receipts.push(mq.produce("t", Array.from({ length: 5 }, () => ({ key: `k${sent % 20}`, value: sent++ }))));
      await sleep(2);
    }
  })();
  for (let kill = 0; kill < KILLS; kill++) {
    const before = got.stream.length;
    await until(() => got.stream.length > before + 500, () => `${got.stream.length} of ${sent}`);
    await server.kill();
    await sleep(100);
    await server.start();
  }
  const before = got.stream.length;
  await until(() => got.stream.length > before + 500, () => `${got.stream.length} of ${sent}`);
  isSending = false;
  await sending;
  const stored = (await Promise.all(receipts)).flat();
  assert.equal(stored.length, sent);
  assert.equal(new Set(stored.map(({ partition, offset }) => `${partition}:${offset}`)).size, sent);
  for (const [mode, values] of Object.entries(got)) {
    await until(() => new Set(values).size === sent, () => `${mode}: ${new Set(values).size} of ${sent}`);
  }
  await sleep(300);
  assert.equal(got.reader.length, sent, "reader: none twice");
  assert.equal(got.stream.length, sent, "stream: none twice");
  await until(async () => (await mq.http.lag("q")).total_lag === 0, "the queue is empty");
  await mq.close();

  // What was committed is committed: another process under the same name begins behind it.
  const other = await connect(server.url);
  assert.equal((await other.http.lag("s")).total_lag, 0);
  const again = other.subscribe({ topics: "t", group: "s", member: "one", onMessage: ({ value }) => got.stream.push(value) });
  await again.ready;
  await other.produce("t", { value: "last" });
  await until(() => got.stream.at(-1) === "last", "the last one");
  assert.equal(got.stream.length, sent + 1);
  await other.close();
  await server.end();
});

test("a server that stops says so: nothing is lost, and the client is back when the server is", async () => {
  const server = await new Server().start();
  const states = [];
  const mq = await connect(server.url, { onState: (state, reason) => states.push([state, reason?.message]) });
  await mq.http.createTopic("t", 1);
  const got = [];
  mq.subscribe({ topics: "t", from: "earliest", onMessage: ({ value }) => void got.push(value) });
  const results = [];
  for (let n = 0; n < 50; n++) results.push(mq.produce("t", { value: n }));
  await Promise.all(results);
  await server.stop();
  const later = mq.produce("t", { value: "later" });
  await server.start();
  assert.equal((await later).offset, 50);
  await until(() => got.length === 51, () => `${got.length}`);
  assert.ok(states.some(([state, reason]) => state === "waiting" && /4001|1006/.test(reason)), JSON.stringify(states));
  await mq.close();
  await server.end();
});

test("a token that ends: renewed by a function, without a gap; one that is revoked closes", async () => {
  const server = new Server(["--auth"]);
  const long = server.mq("token", "create", "ann", "--allow", "admin");
  const [, id] = long.split("_");
  await server.start();
  const made = { principal: "ann", scopes: ["admin"], expires_in_ms: 6_000 };
  const headers = { Authorization: `Bearer ${long}`, "Content-Type": "application/json" };
  const { token: short } = await (await fetch(`${server.url}/mq/v1/tokens`, { method: "POST", headers, body: JSON.stringify(made) })).json();
  const asked = [];
  const states = [];
  const mq = await connect(server.url, {
    token: () => {
      asked.push(Date.now());
      return asked.length === 1 ? short : long;
    },
    onState: (state) => states.push(state),
  });
  await mq.http.createTopic("t", 1);
  const fixed = await connect(server.url, { token: short });
  const fixedClosed = assert.rejects(async () => {
    for await (const _ of fixed.subscribe({ topics: "t" }));
  }, Closed);
  const got = [];
  const sub = mq.subscribe({ topics: "t", from: "earliest", onMessage: ({ value }) => void got.push(value), onEnd: () => {} });
  let sent = 0;
  for (const end = Date.now() + 6_500; Date.now() < end; await sleep(50)) await mq.produce("t", { value: sent++ });
  await until(() => got.length === sent, () => `${got.length} of ${sent}`);
  assert.deepEqual(states, ["open"], "one connection all the time");
  await fixedClosed;
  assert.equal(fixed.state, "closed", "a token that cannot be renewed ends with its client");

  server.mq("token", "revoke", id);
  await until(() => mq.state === "closed", "closed");
  await assert.rejects(sub.ready.then(() => mq.produce("t", { value: 1 })), (error) => error instanceof Closed && error.code === 4501);
  await assert.rejects(connect(server.url, { token: "mq_nonsense" }), Closed);
  await server.end();
});
