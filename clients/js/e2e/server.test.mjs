/** The client in Node against a real server. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { connect, ConnectionLost, Refused } from "../dist/node.js";
import { Cutter, Server, sleep, until } from "./server.mjs";

let server;
before(async () => {
  server = await new Server().start();
});
after(() => server?.end());

const connections = [
  ["text", {}],
  ["binary", { binary: true }],
];

/** Offsets of each partition are 0, 1, 2, … */
function assertInOrder(messages) {
  const next = {};
  for (const { partition, offset } of messages) {
    assert.equal(offset, next[partition] ?? 0, `partition ${partition}`);
    next[partition] = offset + 1;
  }
}

async function collect(subscription, count) {
  const messages = [];
  for await (const message of subscription) if (messages.push(message) === count) break;
  return messages;
}

for (const [name, options] of connections) {
  test(`${name}: what is sent comes out as it was, in all modes`, async () => {
    const mq = await connect(server.url, options);
    const topic = `all-${name}`;
    await mq.http.createTopic(topic, 3);
    const records = Array.from({ length: 3_000 }, (_, n) => ({
      key: `k${n % 50}`, value: { n, text: "é".repeat(n % 10) }, tag: n % 2 ? "odd" : "even", headers: { from: "test", raw: new Uint8Array([n & 255]) }, timestamp: 1_700_000_000_000 + n,
    }));
    const receipts = await Promise.all(records.map((record) => mq.produce(topic, record)));
    const stored = new Map(receipts.map(({ partition, offset }, n) => [`${partition}:${offset}`, n]));
    assert.equal(stored.size, 3_000);
    const subscriptions = {
      reader: { from: "earliest" }, stream: { group: `${topic}-s`, start: "earliest" }, queue: { group: `${topic}-q`, mode: "queue", start: "earliest" },
    };
    for (const [mode, how] of Object.entries(subscriptions)) {
      const messages = [];
      for await (const message of mq.subscribe({ topics: topic, ...how })) {
        messages.push(message);
        if (mode !== "reader") void message.ack();
        if (messages.length === 3_000) break;
      }
      if (mode !== "queue") assertInOrder(messages);
      const numbers = messages.map((message) => {
        const n = stored.get(`${message.partition}:${message.offset}`);
        assert.deepEqual([message.key, message.value, message.tag, message.timestamp], [records[n].key, records[n].value, records[n].tag, records[n].timestamp]);
        assert.deepEqual(message.headers.map(({ key, value }) => [key, Buffer.from(value).toString("latin1")]), [["from", "test"], ["raw", String.fromCharCode(n & 255)]]);
        return n;
      });
      assert.equal(new Set(numbers).size, 3_000, mode);
    }
    await until(async () => (await mq.http.lag(`${topic}-q`)).total_lag === 0, "no lag");
    assert.equal((await mq.http.lag(`${topic}-s`)).total_lag, 0);
    const odd = await collect(mq.subscribe({ topics: topic, from: "earliest", tags: ["odd"] }), 1_500);
    assert.ok(odd.every(({ tag }) => tag === "odd"));
    await mq.close();
  });

  test(`${name}: bytes, texts and nothing`, async () => {
    const mq = await connect(server.url, options);
    const topic = `bytes-${name}`;
    await mq.http.createTopic(topic, 1);
    const bytes = new Uint8Array(70_000).map((_, n) => n & 255);
    await mq.produce(topic, [{ value: bytes, key: new Uint8Array([255]) }, { value: "text" }, { value: null, key: "k" }, { value: 1.5 }, { value: new Uint8Array() }]);
    const messages = await collect(mq.subscribe({ topics: topic, from: "earliest" }), 5);
    assert.deepEqual(messages[0].bytes, bytes.slice());
    assert.deepEqual([...messages[0].key], [255]);
    assert.deepEqual(messages.slice(1, 4).map(({ key, value }) => [key, value]), [[null, "text"], ["k", null], [null, 1.5]]);
    assert.equal(messages[4].bytes.length, 0);
    await mq.close();
  });
}

test("raw batches hold the same as messages", async () => {
  const mq = await connect(server.url, { binary: true });
  await mq.http.createTopic("raw", 2);
  await Promise.all(Array.from({ length: 5_000 }, (_, n) => mq.produce("raw", { key: `k${n}`, value: { n }, tag: "t", headers: { h: "v" } })));
  for (const how of [{ from: "earliest" }, { group: "raw-g", start: "earliest" }]) {
    const records = await collect(mq.subscribe({ topics: "raw", format: "batch", ...how }), 5_000);
    assertInOrder(records);
    assert.equal(new Set(records.map((record) => record.json().n)).size, 5_000);
    assert.ok(records.every((record) => record.keyText === `k${record.json().n}` && record.tag === "t"));
    assert.ok(records[0].headers.some(({ key, value }) => key === "h" && Buffer.from(value).toString() === "v"));
  }
  await mq.close();
});

test("a delayed message is never early; schedules are shown, moved, cancelled and fired", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("later", 1);
  const arrivals = new Map();
  mq.subscribe({ topics: "later", from: "earliest", onMessage: (message) => arrivals.set(message.value, [Date.now(), message]) });
  const began = Date.now();
  const soon = await mq.produce("later", { value: "soon", delayMs: 300 });
  const at = await mq.produce("later", { value: "at", deliverAt: new Date(began + 500) });
  const [fired, moved, cancelled] = await mq.produce("later", ["fired", "moved", "cancelled"].map((value) => ({ value, delayMs: 3_600_000 })));
  assert.equal(soon.offset, null);
  assert.ok(soon.deliverAt >= began + 300);
  assert.equal(at.deliverAt, began + 500);
  assert.equal((await mq.http.schedule(fired.scheduleId)).topic, "later");
  assert.ok((await mq.http.schedules({ topic: "later" })).schedules.length >= 3);
  await mq.http.fireSchedule(fired.scheduleId);
  await mq.http.moveSchedule(moved.scheduleId, { delayMs: 200 });
  assert.equal(await mq.http.cancelSchedule(cancelled.scheduleId), null);
  const gone = await mq.http.cancelSchedule(cancelled.scheduleId).catch((e) => e);
  assert.ok(gone instanceof Refused, String(gone));
  await until(() => arrivals.size === 4, () => [...arrivals.keys()].join());
  const [soonAt, message] = arrivals.get("soon");
  assert.ok(soonAt >= soon.deliverAt && soonAt < soon.deliverAt + 2_000);
  assert.ok(arrivals.get("at")[0] >= began + 500);
  assert.equal(message.deliverAt, soon.deliverAt);
  assert.equal(message.scheduleId, soon.scheduleId);
  await mq.close();
});

test("a recurring schedule sends by itself, rests, and ends", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("again", 1);
  const arrived = [];
  mq.subscribe({ topics: "again", from: "earliest", onMessage: (message) => arrived.push(message) });
  const put = await mq.http.putRecurring("tick", { topic: "again", record: { key: "k", value: { n: 1 } }, every_ms: 1_000, missed: "all" });
  assert.equal(put.next_at, put.anchor + 1_000);
  await until(() => arrived.length >= 2, () => arrived.length);
  assert.deepEqual(arrived.slice(0, 2).map(({ key, value, deliverAt }) => [key, value, deliverAt]), [
    ["k", { n: 1 }, put.next_at],
    ["k", { n: 1 }, put.next_at + 1_000],
  ]);
  assert.equal((await mq.http.pauseRecurring("tick")).next_at, null);
  assert.deepEqual((await mq.http.recurring({ topic: "again" })).recurring.map(({ name }) => name), ["tick"]);
  assert.deepEqual((await mq.http.recurringSchedule("tick")).record, { key: "k", value: { n: 1 } });
  assert.equal((await mq.http.resumeRecurring("tick")).paused, false);
  await mq.http.deleteRecurring("tick");
  const gone = await mq.http.recurringSchedule("tick").catch((e) => e);
  assert.ok(gone instanceof Refused && gone.code === 40452, String(gone));
  await mq.close();
});

test("the level of safety is asked for, and the one that was reached is named", async () => {
  for (const acks of [undefined, "flushed", "written"]) {
    const mq = await connect(server.url, { acks });
    await mq.http.createTopic("levels", 1);
    assert.equal((await mq.produce("levels", { value: 1 })).acks, acks ?? "flushed");
    await mq.close();
  }
});

test("frames of six mebibytes go and come", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("large", 1);
  const size = 3 * 1024 * 1024;
  const values = [7919, 104_729].map((factor) => new Uint8Array(size).map((_, n) => (n * factor) >> 3));
  await mq.produce("large", values.map((value) => ({ value }))); // one frame
  const got = await collect(mq.subscribe({ topics: "large", from: "earliest" }), 2);
  got.forEach(({ value }, n) => assert.ok(Buffer.from(value).equals(Buffer.from(values[n]))));
  await mq.close();
});

test("a topic that was made again is not read on under the old offsets", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("anew", 1);
  await mq.produce("anew", [1, 2, 3].map((value) => ({ value })));
  const got = [];
  const reading = (async () => {
    for await (const { value } of mq.subscribe({ topics: "anew", from: "earliest" })) {
      got.push(value);
      if (got.length === 1) {
        await mq.http.deleteTopic("anew");
        await mq.http.createTopic("anew", 1);
        await mq.produce("anew", [4, 5, 6].map((value) => ({ value })));
      }
    }
  })();
  const error = await reading.catch((e) => e);
  assert.ok(error instanceof Refused && [40401, 40953].includes(error.code), String(error));
  assert.ok(got.every((value) => value <= 3), got.join());
  await mq.close();
});

test("a pattern takes in topics and partitions that come later", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("grown-a", 1);
  await mq.produce("grown-a", { value: "a" });
  const got = new Set();
  mq.subscribe({ pattern: "grown-.*", from: "earliest", onMessage: ({ value }) => got.add(value) });
  await until(() => got.has("a"), () => [...got].join());
  await mq.http.createTopic("grown-b", 1);
  await mq.produce("grown-b", { value: "b" });
  await until(() => got.has("b"), () => [...got].join());
  await mq.http.call("PATCH", "/mq/v1/topics/grown-a", { partitions: 3 });
  await mq.produce("grown-a", { value: "c", partition: 2 });
  await until(() => got.has("c"), () => [...got].join());
  await mq.close();
});

test("queue: attempts, dead letters and back again; helpers of groups", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("jobs", 1);
  await mq.produce("jobs", [{ value: "good" }, { value: "bad" }, { value: "slow" }]);
  const attempts = [];
  let isFixed = false;
  const work = mq.subscribe({
    topics: "jobs", group: "workers", mode: "queue", start: "earliest",
    onMessage: async (message) => {
      attempts.push([message.value, message.attempt]);
      if (message.value === "bad" && !isFixed) await (message.attempt < 2 ? message.nack({ delayMs: 50 }) : message.reject("no such job"));
      if (message.value === "slow" && message.attempt === 1) {
        await message.extend(60_000);
        throw new Error("once");
      }
    },
  });
  await mq.http.configureGroup("workers", { backoff_ms: [50] });
  await until(async () => (await mq.http.lag("workers")).total_lag === 0 && attempts.length >= 5, () => JSON.stringify(attempts));
  assert.deepEqual(attempts.filter(([value]) => value === "bad"), [["bad", 1], ["bad", 2]]);
  assert.deepEqual(attempts.filter(([value]) => value === "slow"), [["slow", 1], ["slow", 2]]);
  assert.ok(JSON.stringify(await mq.http.call("GET", "/mq/v1/groups/workers/dlq")).includes("no such job"));
  isFixed = true;
  await mq.http.redrive("workers");
  await until(() => attempts.filter(([value]) => value === "bad").length === 3, () => JSON.stringify(attempts));
  await work.close();
  assert.ok((await mq.http.groups()).groups.length > 0);
  assert.equal((await mq.http.group("workers")).group, "workers");
  await mq.http.deleteGroup("workers");
  await assert.rejects(mq.http.group("workers"), Refused);
  await mq.close();
});

test("seek, pause, offsets, reset", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("places", 1);
  await mq.produce("places", Array.from({ length: 100 }, (_, value) => ({ value })));
  const reader = mq.subscribe({ topics: "places", from: "earliest" });
  const iterator = reader[Symbol.asyncIterator]();
  for (let n = 0; n < 10; n++) assert.equal((await iterator.next()).value.value, n);
  assert.equal(reader.cursor, "places:0=10");
  await reader.seek({ places: { 0: 90 } });
  for (let n = 90; n < 100; n++) assert.equal((await iterator.next()).value.value, n);
  await reader.pause();
  const next = iterator.next();
  await mq.produce("places", { value: 100 });
  assert.equal(await Promise.race([next, sleep(300).then(() => "paused")]), "paused");
  await reader.resume();
  assert.equal((await next).value.value, 100);
  const resumed = mq.subscribe({ topics: "places", from: reader.cursor });
  await mq.produce("places", { value: 101 });
  assert.deepEqual((await collect(resumed, 1)).map(({ value }) => value), [101]);
  assert.ok(JSON.stringify(await mq.http.offsets("places")).includes("102"));
  await collect(mq.subscribe({ topics: "places", group: "p", start: "earliest" }), 50);
  await mq.http.resetOffsets("p", { topic: "places", to: 7 });
  assert.equal((await collect(mq.subscribe({ topics: "places", group: "p" }), 1))[0].offset, 7);
  const outside = mq.subscribe({ topics: "places", from: { places: { 0: 5_000 } } });
  await assert.rejects(outside.ready, (error) => error instanceof Refused && error.code === 41601);
  await assert.rejects(mq.produce("no-such-topic", { value: 1 }), (error) => error instanceof Refused && error.code === 40401);
  await assert.rejects(mq.produce("places", { value: 1, partition: 7 }), (error) => error instanceof Refused && error.code === 40402);
  await mq.http.deleteTopic("places");
  await mq.close();
});

test("a slow consumer has no more than its credit waiting, and slows nobody else on the socket", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("slow", 1);
  await Promise.all(Array.from({ length: 20_000 }, (_, value) => mq.produce("slow", { value })));
  let slowCount = 0;
  let latest = 0;
  const slow = mq.subscribe({
    topics: "slow", from: "earliest", credit: 100, batch: 10,
    onMessage: async () => {
      slowCount++;
      await sleep(2);
    },
  });
  await slow.ready;
  const quick = await collect(mq.subscribe({ topics: "slow", from: "earliest" }), 20_000);
  assertInOrder(quick);
  assert.ok(slowCount < 10_000, "the quick one is done long before");
  latest = slowCount;
  await until(() => slowCount > latest + 50, "the slow one goes on");
  await slow.close();
  await mq.close();
});

test("a small window is never overrun: credit in messages and bytes", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("window", 1);
  await Promise.all(Array.from({ length: 300 }, (_, n) => mq.produce("window", { value: "x".repeat(n % 300) })));
  for (const how of [{ credit: 1 }, { credit: 7 }, { creditBytes: 2_000 }, { credit: 3, creditBytes: 500, batch: 2 }]) {
    assertInOrder(await collect(mq.subscribe({ topics: "window", from: "earliest", ...how }), 300));
  }
  await mq.close();
});

test("two members share a topic: each record once, also while one comes and goes", async () => {
  const mq = await connect(server.url);
  await mq.http.createTopic("shared", 4);
  const counts = new Map();
  const revoked = [];
  const member = (client) =>
    client.subscribe({
      topics: "shared", group: "pair", start: "earliest", commitIntervalMs: 100, credit: 50,
      onMessage: async ({ value }) => {
        counts.set(value, (counts.get(value) ?? 0) + 1);
        await sleep(1);
      },
      onRevoked: (partitions, lost) => revoked.push(lost),
    });
  const first = member(mq);
  await first.ready;
  let sent = 0;
  const send = async (count) => {
    for (let n = 0; n < count; n++) await mq.produce("shared", Array.from({ length: 10 }, () => ({ key: `k${sent}`, value: sent++ })));
  };
  await send(30);
  const other = await connect(server.url);
  const second = member(other);
  await second.ready;
  await send(30);
  await other.close();
  await send(30);
  await until(() => counts.size === sent, () => `${counts.size} of ${sent}`);
  assert.deepEqual([...counts].filter(([, count]) => count !== 1), []);
  assert.ok(revoked.length > 0 && revoked.every((lost) => !lost));
  await mq.close();
});

for (const mode of ["reader", "stream", "queue"]) {
  test(`${mode}: connections are cut again and again: the session is resumed, 0 lost, 0 duplicated`, async () => {
    const topic = `cut-${mode}`;
    const direct = await connect(server.url, { idempotent: true });
    await direct.http.createTopic(topic, 3);
    const cutter = await Cutter.to(server.port);
    let openCount = 0;
    const mq = await connect(cutter.url, { onState: (state) => state === "open" && openCount++ });
    const got = [];
    const hooks = [];
    mq.subscribe({
      topics: topic, credit: 64, batch: 16, commitIntervalMs: 50,
      ...(mode === "reader" ? { from: "earliest" } : { group: `${topic}-g`, start: "earliest", mode }),
      onMessage: async (message) => {
        got.push(message);
        if (got.length % 20 === 0) await sleep(1);
      },
      onRevoked: (partitions) => hooks.push(partitions),
    });
    const TOTAL = 4_000;
    const sending = (async () => {
      for (let n = 0; n < TOTAL; n += 20) {
        await direct.produce(topic, Array.from({ length: 20 }, (_, k) => ({ value: n + k })));
      }
    })();
    while (got.length < TOTAL) {
      const before = got.length;
      await until(() => got.length > before + 1_000 || got.length >= TOTAL, () => `${got.length} of ${TOTAL}`);
      cutter.cut();
    }
    await sending;
    await sleep(200);
    assert.ok(openCount >= 3, `${openCount} connections`);
    assert.equal(new Set(got.map(({ value }) => value)).size, TOTAL);
    assert.equal(got.length, TOTAL, "none came twice");
    if (mode !== "queue") assertInOrder(got);
    assert.deepEqual(hooks, [], "the member stayed");
    await until(() => mq.state === "open");
    await mq.close();
    if (mode !== "reader") assert.equal((await direct.http.lag(`${topic}-g`)).total_lag, 0);
    await direct.close();
    cutter.end();
  });
}

test("idempotent sends over cut connections are stored once each; others are told", async () => {
  const cutter = await Cutter.to(server.port);
  const mq = await connect(server.url);
  await mq.http.createTopic("once", 2);
  const sender = await connect(cutter.url, { idempotent: true, lingerMs: 1 });
  const plain = await connect(cutter.url, { lingerMs: 1 });
  const sends = [];
  const unsure = [];
  for (let n = 0; n < 2_000; n++) {
    sends.push(sender.produce("once", { value: n }));
    unsure.push(plain.produce("once", { value: `u${n}` }).then(() => "stored", (error) => (error instanceof ConnectionLost ? "unknown" : Promise.reject(error))));
    if (n % 20 === 0) await sleep(2);
    if (n % 400 === 399) cutter.cut();
  }
  const receipts = await Promise.all(sends);
  const outcomes = await Promise.all(unsure);
  assert.equal(new Set(receipts.map(({ partition, offset }) => `${partition}:${offset}`)).size, 2_000);
  const values = [];
  await mq.produce("once", [{ value: "end", partition: 0 }, { value: "end", partition: 1 }]);
  let ends = 0;
  for await (const { value } of mq.subscribe({ topics: "once", from: "earliest" })) {
    values.push(value);
    if (value === "end" && ++ends === 2) break;
  }
  const sure = values.filter((value) => typeof value === "number");
  assert.equal(sure.length, 2_000);
  assert.equal(new Set(sure).size, 2_000);
  const stored = new Set(values);
  outcomes.forEach((outcome, n) => assert.ok(outcome === "unknown" || stored.has(`u${n}`), `u${n}`));
  assert.equal(values.length, new Set(values).size + 1, "nothing twice but the end");
  for (const client of [mq, sender, plain]) await client.close();
  cutter.end();
});

test("an inbox goes on over a kill of the server, and a device where it was", async () => {
  const own = await new Server([], { MQ_STORE_INDEX: "rocksdb" }).start();
  try {
    for (const [name, options] of connections) {
      const mq = await connect(own.url, options);
      const topic = `inbox-${name}`;
      await mq.http.createTopic(topic, 2);
      await mq.produce(topic, { value: 0, queues: ["user/42", "room/7"] });
      await mq.produce(topic, { value: "not yours", queues: ["user/43"] });
      const [first] = await collect(mq.inbox(topic, "user/42", { group: "phone", start: "earliest", commit: "manual" }), 1);
      assert.deepEqual([first.value, first.queue, first.queues], [0, "user/42", []]);
      const phone = mq.inbox(topic, "user/42", { group: "phone", start: "earliest", commit: "manual" });
      for await (const message of phone) {
        await message.ack();
        await phone.commit();
        break;
      }
      const got = [];
      for await (const message of mq.inbox(topic, "user/42", { from: "earliest" })) {
        got.push([message.value, message.queueOffset]);
        if (got.length === 1) {
          await own.kill();
          await own.start();
          await until(() => mq.state === "open");
          await mq.produce(topic, [{ value: 1, queues: ["user/42"] }, { value: 2 }]);
        } else break;
      }
      assert.deepEqual(got.map(([value]) => value), [0, 1]);
      assert.notEqual(got[0][1], got[1][1]);
      const [next] = await collect(mq.inbox(topic, "user/42", { group: "phone" }), 1);
      assert.equal(next.value, 1, "behind what it has committed");
      const [room] = await collect(mq.inbox(topic, "room/*", { from: "earliest" }), 1);
      assert.deepEqual(room.queues, ["room/7"]);
      const leased = [];
      for await (const message of mq.inbox(topic, "user/42", { group: "workers", mode: "queue" })) {
        leased.push([message.value, message.attempt]);
        if (leased.length === 1) await message.nack({ delayMs: 0 });
        else await message.ack();
        if (leased.length === 3) break;
      }
      assert.deepEqual(leased.sort(), [[0, 1], [0, 2], [1, 1]], "one was given back, and came again");
      await mq.close();
    }
  } finally {
    await own.end();
  }
});
