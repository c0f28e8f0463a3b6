import assert from "node:assert/strict";
import { test } from "node:test";
import { connect } from "../build/index.js";
import { ConnectionLost, MqError, QueueFull, Refused, Undecodable } from "../build/errors.js";
import { FakeServer } from "./fake_server.mjs";

/** A client of a server that stores: answers carry the number of the record in the order of arrival. */
async function connected(options = {}) {
  const server = new FakeServer();
  const stored = [];
  server.answers.produce = ({ records }) => ({
    acks: "flushed",
    offsets: records.map((record) => ({ partition: 0, offset: stored.push(record) - 1 })),
  });
  const client = await connect("http://host", { WebSocket: server.Socket, ...options });
  return { server, client, stored };
}

const sizes = (server) => server.last.commands("produce").map(({ records }) => records.length);

test("sends of one moment travel together, and each caller gets the receipts of its own records", async () => {
  const { server, client } = await connected();
  const [one, several, other] = await Promise.all([
    client.produce("t", { value: 0 }),
    client.produce("t", [{ value: 1 }, { value: 2 }]),
    client.produce("t", { value: 3 }),
  ]);
  assert.equal(one.offset, 0);
  assert.deepEqual(several.map(({ offset }) => offset), [1, 2]);
  assert.equal(other.offset, 3);
  assert.deepEqual(sizes(server), [4]);
  await client.close();
});

test("a batch is closed before it has more than batchRecords; a send is never cut", async () => {
  const { server, client } = await connected({ batchRecords: 10 });
  const sends = [4, 6, 1, 10, 11].map((count) => client.produce("t", Array.from({ length: count }, (_, value) => ({ value }))));
  await Promise.all(sends);
  assert.deepEqual(sizes(server), [10, 1, 10, 11]);
  await client.close();
});

test("a batch is closed by its bytes too", async () => {
  const { server, client } = await connected({ batchBytes: 1_000 });
  await Promise.all(Array.from({ length: 10 }, () => client.produce("t", { value: "x".repeat(400) })));
  assert.deepEqual(sizes(server), [2, 2, 2, 2, 2]);
  await client.close();
});

test("topics do not share a command", async () => {
  const { server, client } = await connected();
  await Promise.all([client.produce("a", { value: 1 }), client.produce("b", { value: 2 }), client.produce("a", { value: 3 })]);
  assert.deepEqual(server.last.commands("produce").map(({ topic, records }) => [topic, records.length]), [["a", 2], ["b", 1]]);
  await client.close();
});

test("lingerMs is how long a record waits for company", async () => {
  const { server, client } = await connected({ lingerMs: 40 });
  const began = Date.now();
  const first = client.produce("t", { value: 1 });
  await new Promise((resolve) => setTimeout(resolve, 10));
  await Promise.all([first, client.produce("t", { value: 2 })]);
  assert.ok(Date.now() - began >= 39);
  assert.deepEqual(sizes(server), [2]);
  await client.close();
});

test("all that a record may have goes on the wire under the protocol's names", async () => {
  const { server, client } = await connected();
  const due = new Date(1_900_000_000_000);
  await client.produce("t", {
    key: "k", value: { a: 1 }, partition: 3, headers: { text: "é", bytes: new Uint8Array([0, 255]), none: null },
    timestamp: 5, tag: "paid", deliverAt: due, messageGroup: "g", msgId: "m", scheduleKey: "s",
  });
  await client.produce("t", { value: null, delayMs: 10 });
  const [[full], [bare]] = server.last.commands("produce").map(({ records }) => records);
  assert.deepEqual(full, {
    key: "k", value: { a: 1 }, partition: 3,
    headers: [{ key: "text", text: "é" }, { key: "bytes", value: "AP8=" }, { key: "none", value: null }],
    timestamp: 5, tag: "paid", deliver_at: due.getTime(), message_group: "g", msg_id: "m", schedule_key: "s",
  });
  assert.deepEqual(bare, { value: null, delay_ms: 10 });
  await client.close();
});

test("a scheduled record's receipt names its schedule; a repeated one is a duplicate", async () => {
  const { server, client } = await connected();
  server.answers.produce = () => ({
    acks: "flushed",
    offsets: [{ partition: 1, offset: null, schedule_id: "s1", deliver_at: 7 }, { partition: 1, offset: 4, duplicate: true }],
  });
  assert.deepEqual(await client.produce("t", [{ value: 1, delayMs: 5 }, { value: 2, msgId: "x" }]), [
    { partition: 1, offset: null, scheduleId: "s1", deliverAt: 7, duplicate: false, acks: "flushed" },
    { partition: 1, offset: 4, scheduleId: null, deliverAt: null, duplicate: true, acks: "flushed" },
  ]);
  await client.close();
});

test("bytes go as base64, or as they are on a binary connection", async () => {
  const record = { key: new Uint8Array([1, 2]), value: new Uint8Array([255]) };
  const plain = await connected();
  await plain.client.produce("t", [record, { value: { a: 1 } }]);
  const [command] = plain.server.last.commands("produce");
  assert.deepEqual(command.records, [{ key_b64: "AQI=", value_b64: "/w==" }, { value: { a: 1 } }]);
  await plain.client.close();

  const raw = await connected({ binary: true });
  const others = [{ key: "u1", value: record.value }, { value: null, key: record.key }];
  await Promise.all([raw.client.produce("t", record), raw.client.produce("t", others)]);
  const [sent] = raw.server.last.commands("produce");
  assert.deepEqual(sent.records, [
    { key_len: 2, value_len: 1 }, { key: "u1", key_len: null, value_len: 1 }, { key_len: 2, value_len: null },
  ]);
  assert.deepEqual([...sent.payload], [1, 2, 255, 255, 1, 2]);
  await raw.client.close();
});

test("P3: on a binary connection bytes, JSON and tombstones of a topic keep the order of the calls", async () => {
  const { server, client } = await connected({ binary: true });
  const values = [null, new Uint8Array([1]), new Uint8Array([2]), null, "json"];
  const receipts = await Promise.all(values.map((value) => client.produce("t", { value })));
  assert.deepEqual(receipts.map(({ offset }) => offset), [0, 1, 2, 3, 4]);
  assert.deepEqual(sizes(server), [1, 2, 2]);
  await client.close();
});

test("a record is taken as it is when it is sent", async () => {
  const { server, client } = await connected();
  const value = { n: 1 };
  const sent = client.produce("t", { value });
  value.n = 2;
  await sent;
  assert.equal(server.last.commands("produce")[0].records[0].value.n, 1);
  await client.close();
});

test("what JSON cannot say is told to its sender alone", async () => {
  const { client } = await connected();
  const bad = client.produce("t", { value: 1n });
  const good = client.produce("t", { value: 1 });
  await assert.rejects(bad, TypeError);
  assert.equal((await good).offset, 0);
  await client.close();
});

test("what waits is bounded in records, at n and n + 1; room() says when there is some again", async () => {
  const { server, client } = await connected({ recordsMax: 5 });
  server.answers.produce = undefined;
  const first = client.produce("t", Array.from({ length: 4 }, (_, value) => ({ value })));
  const fifth = client.produce("t", { value: 4 });
  assert.ok(client.isFull);
  await assert.rejects(client.produce("t", { value: 5 }), QueueFull);
  let hasRoom = false;
  const room = client.room().then(() => (hasRoom = true));
  await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(hasRoom, false);
  const [{ id, records }] = server.last.commands("produce");
  server.last.push({ id, ok: true, offsets: records.map((_, offset) => ({ partition: 0, offset })) });
  await Promise.all([first, fifth, room]);
  assert.ok(!client.isFull);
  await client.close();
});

test("what waits is bounded in bytes, at n and n + 1", async () => {
  const text = JSON.stringify({ value: "x".repeat(100) });
  const { client } = await connected({ bytesMax: 2 * text.length });
  const two = [client.produce("t", { value: "x".repeat(100) }), client.produce("t", { value: "x".repeat(100) })];
  await assert.rejects(client.produce("t", { value: "x" }), QueueFull);
  await Promise.all(two);
  await client.close();
});

test("a send larger than a frame may be is refused here: it would end the connection for all", async () => {
  const { server, client } = await connected();
  server.limits = {};
  const room = 1024 * 1024 - 4096 - JSON.stringify({ value: "" }).length;
  assert.equal((await client.produce("t", { value: "x".repeat(room) })).offset, 0);
  await assert.rejects(client.produce("t", { value: "x".repeat(room + 1) }), /bytes in one send; the server takes 1044480/);
  await assert.rejects(client.produce("t", { value: "é".repeat(room / 2 + 1) }), MqError);
  await client.close();
});

test("one bad record does not take the others with it, and is told what is wrong", async () => {
  const { server, client, stored } = await connected();
  const store = server.answers.produce;
  server.answers.produce = (command) => {
    const at = command.records.findIndex(({ value }) => value === "bad");
    if (at < 0) return store(command);
    return { ok: false, error_code: 42251, message: "no", retriable: false, validation_errors: [`records[${at}]: no`] };
  };
  const sends = [1, 2, "bad", 3, "bad", 4].map((value) => client.produce("t", [{ value: `before ${value}` }, { value }]));
  const results = await Promise.allSettled(sends);
  assert.deepEqual(results.map(({ status }) => status === "fulfilled"), [true, true, false, true, false, true]);
  assert.ok(results[2].reason instanceof Refused && results[2].reason.code === 42251);
  assert.equal(results[2].reason.validationErrors.length, 1);
  assert.equal(stored.length, 8);
  assert.ok(stored.every(({ value }) => value !== "bad"));
  await client.close();
});

test("a refusal that names no record is found by sending each alone; one of the topic is everybody's", async () => {
  const { server, client } = await connected();
  const store = server.answers.produce;
  server.answers.produce = (command) =>
    command.records.some(({ partition }) => partition === 9) ? { ok: false, error_code: 40402, message: "no partition", retriable: false } : store(command);
  const results = await Promise.allSettled([client.produce("t", { value: 1 }), client.produce("t", { value: 2, partition: 9 })]);
  assert.deepEqual(results.map(({ status }) => status), ["fulfilled", "rejected"]);
  server.answers.produce = () => ({ ok: false, error_code: 40401, message: "no topic", retriable: false });
  const before = server.last.commands("produce").length;
  const all = await Promise.allSettled([1, 2, 3].map((value) => client.produce("t", { value })));
  assert.ok(all.every(({ reason }) => reason.code === 40401));
  assert.equal(server.last.commands("produce").length, before + 1);
  await client.close();
});

test("what the server cannot take for now is sent again, for retryMs", async () => {
  const { server, client } = await connected();
  const store = server.answers.produce;
  let times = 0;
  const refusal = { ok: false, error_code: 50750, message: "disk full", retriable: true, retry_after_ms: 5 };
  server.answers.produce = (command) => (++times < 3 ? refusal : store(command));
  assert.equal((await client.produce("t", { value: 1 })).offset, 0);
  assert.equal(times, 3);
  await client.close();
  const impatient = await connected({ retryMs: 60 });
  impatient.server.answers.produce = () => refusal;
  const error = await impatient.client.produce("t", { value: 1 }).catch((e) => e);
  assert.ok(error instanceof Refused && error.code === 50750 && error.retriable);
  await impatient.client.close();
});

test("P2: after a store has stopped only what has ids is sent again", async () => {
  const { server, client } = await connected();
  const store = server.answers.produce;
  let times = 0;
  server.answers.produce = (command) =>
    ++times === 1 ? { ok: false, error_code: 50350, message: "stopped", retriable: true, retry_after_ms: 1 } : store(command);
  await assert.rejects(client.produce("t", { value: 1 }), Refused);
  times = 0;
  assert.equal((await client.produce("t", { value: 1, msgId: "m" })).offset, 0);
  await client.close();
});

test("P2: an idempotent client repeats what was not answered with the same ids; another rejects it", async () => {
  const safe = await connected({ idempotent: true });
  const store = safe.server.answers.produce;
  safe.server.answers.produce = undefined;
  const sent = safe.client.produce("t", [{ value: 1 }, { value: 2 }]);
  await new Promise((resolve) => setTimeout(resolve, 5));
  safe.server.answers.produce = store;
  safe.server.last.cut();
  assert.deepEqual((await sent).map(({ offset }) => offset), [0, 1]);
  const ids = safe.server.sockets.map((socket) => socket.commands("produce")[0].records.map(({ msg_id }) => msg_id));
  assert.deepEqual(ids[0], ids[1]);
  assert.equal(new Set(ids[0]).size, 2);
  await safe.client.close();

  const plain = await connected();
  plain.server.answers.produce = undefined;
  const lost = plain.client.produce("t", { value: 1 });
  await new Promise((resolve) => setTimeout(resolve, 5));
  plain.server.last.cut();
  await assert.rejects(lost, ConnectionLost);
  await plain.client.close();
});

test("close sends what waits for company, and takes nothing new", async () => {
  const { server, client } = await connected({ lingerMs: 10_000 });
  const sent = client.produce("t", { value: 1 });
  const closing = client.close();
  assert.equal((await sent).offset, 0);
  await assert.rejects(client.produce("t", { value: 2 }), /being closed/);
  await closing;
  assert.deepEqual(sizes(server), [1]);
});

test("an answer that has not a receipt for each record rejects the send", async () => {
  const { server, client } = await connected();
  for (const offsets of ["many", [], [3], [{ partition: 0, offset: 0 }, { partition: 0, offset: 1 }]]) {
    server.answers.produce = () => ({ offsets });
    await assert.rejects(client.produce("t", { value: 1 }), Undecodable);
  }
  await client.close();
});

test("no records: nothing to send", async () => {
  const { client } = await connected();
  assert.deepEqual(await client.produce("t", []), []);
  await client.close();
});
