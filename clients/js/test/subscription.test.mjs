import assert from "node:assert/strict";
import { getEventListeners } from "node:events";
import { test } from "node:test";
import { connect } from "../build/index.js";
import { Closed, MqError, Refused, Undecodable } from "../build/errors.js";
import { batch } from "./batches.mjs";
import { binary, FakeServer, frame, messages, settled } from "./fake_server.mjs";

const subscribed = {
  reader: { mode: "reader", epochs: { t: "16" }, partitions: { t: [0, 1] }, cursor: "t:0=0;t:1=0" },
  stream: { mode: "stream", generation: 1, epochs: { t: "16" }, partitions: { t: [0, 1] }, cursor: "t:0=0;t:1=0" },
  queue: { mode: "queue", epochs: { t: "16" }, partitions: { t: [0, 1] } },
};

/** A client with one subscription that the server has accepted. */
async function subscription(options = {}, connectOptions = {}) {
  const server = new FakeServer();
  server.answers.subscribe = ({ mode, credit }) => ({ ...subscribed[mode], credit });
  for (const op of ["pause", "resume", "release"]) server.answers[op] = () => ({});
  server.answers.ack = ({ receipts, cursor }) => ({
    results: receipts?.map((receipt) => ({ receipt, ok: true })) ?? cursor.split(";").map((place) => ({ topic: "t", partition: Number(place.split(/[:=]/)[1]), ok: true })),
  });
  for (const op of ["nack", "reject"]) server.answers[op] = server.answers.ack;
  server.answers.extend = ({ receipts }) => ({ results: receipts.map((receipt) => ({ receipt, ok: true, new_receipt: `${receipt}+` })) });
  const client = await connect("http://host", { WebSocket: server.Socket, ...connectOptions });
  const sub = client.subscribe({ topics: "t", ...options });
  await sub.ready;
  return { server, client, sub };
}

/** Take `count` messages; leaves the iterator open. */
async function take(iterator, count) {
  const taken = [];
  while (taken.length < count) {
    const { value, done } = await iterator.next();
    if (done) break;
    taken.push(value);
  }
  return taken;
}

const offsets = (list) => list.map(({ offset }) => offset);
const reconnected = async (server, before = server.sockets.length) => {
  for (let wait = 0; wait < 200 && server.sockets.length === before; wait++) await new Promise((resolve) => setTimeout(resolve, 10));
  await settled();
};
const commits = (server) => server.sockets.flatMap((socket) => socket.commands("ack").map(({ cursor }) => cursor));

test("what is asked for goes on the wire under the protocol's names, and nothing else does", async () => {
  const { server, client } = await subscription({
    topics: ["t", "u"], group: "g", mode: "queue", start: "earliest", tags: ["a", "b"], credit: 7, creditBytes: 100, batch: 5,
    invisibleMs: 9, format: "json",
  });
  const { id, ...command } = server.last.commands("subscribe")[0];
  assert.deepEqual(command, {
    op: "subscribe", sub: "s1", mode: "queue", topics: ["t", "u"], group: "g", start: "earliest", filter: "tag:a||b", format: "json",
    credit: 7, credit_bytes: 100, auto_credit: true, invisible_ms: 9, batch: 5,
  });
  await client.close();
});

test("the mode follows from the group, and the window from the mode; the server's limit bounds it", async () => {
  for (const [options, mode, credit] of [[{}, "reader", 2000], [{ group: "g" }, "stream", 2000], [{ group: "g", mode: "queue" }, "queue", 200], [{ format: "batch" }, "reader", 10_000]]) {
    const { server, client } = await subscription(options, { binary: true });
    const [command] = server.last.commands("subscribe");
    assert.deepEqual([command.mode, command.credit], [mode, credit]);
    await client.close();
  }
  const server = new FakeServer();
  server.limits = { max_credit: 100 };
  const client = await connect("http://host", { WebSocket: server.Socket });
  const sub = client.subscribe({ topics: "t" });
  assert.equal(server.last.commands("subscribe")[0].credit, 100);
  await Promise.all([client.close(), assert.rejects(sub.ready, Closed)]);
});

test("messages come in the order of frames, also those in the packet of the answer (K4)", async () => {
  const server = new FakeServer();
  server.answers.subscribe = () => subscribed.reader;
  // In one turn with the answer, as a Node socket reads one packet.
  server.behind = (command, socket) => command.op === "subscribe" && socket.push(frame("s1", 1, messages("t", 0, 0, 3)));
  const client = await connect("http://host", { WebSocket: server.Socket });
  const sub = client.subscribe({ topics: "t", from: "earliest" });
  const iterator = sub[Symbol.asyncIterator]();
  await sub.ready;
  server.last.push(frame("s1", 2, messages("t", 1, 5, 2)));
  const taken = await take(iterator, 5);
  assert.deepEqual(taken.map(({ partition, offset, value }) => [partition, offset, value]), [[0, 0, 0], [0, 1, 1], [0, 2, 2], [1, 5, 5], [1, 6, 6]]);
  assert.equal(sub.cursor, "t:0=3;t:1=7");
  await client.close();
});

test("S1: credit is returned as messages are taken, never before, and all of it", async () => {
  const { server, client, sub } = await subscription({ credit: 10, creditBytes: 1000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 10)));
  await settled();
  assert.deepEqual(server.last.commands("permit"), []);
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 4);
  assert.deepEqual(server.last.commands("permit"), []);
  await take(iterator, 6);
  const permits = server.last.commands("permit");
  assert.deepEqual(permits.map(({ messages }) => messages), [5, 5]);
  assert.equal(permits.reduce((sum, { bytes }) => sum + bytes, 0), 100);
  await client.close();
});

test("a frame that is missing is not passed over in silence; one that comes twice is", async () => {
  const { server, client, sub } = await subscription();
  server.last.push(frame("s1", 1, messages("t", 0, 0, 1)));
  server.last.push(frame("s1", 1, messages("t", 0, 0, 1)));
  const iterator = sub[Symbol.asyncIterator]();
  assert.deepEqual(offsets(await take(iterator, 1)), [0]);
  server.last.push(frame("s1", 3, messages("t", 0, 2, 1)));
  await assert.rejects(iterator.next(), Undecodable);
  assert.equal(client.state, "closed");
});

test("reader: a session that is resumed goes on behind the last frame, with the credit that is due", async () => {
  const { server, client, sub } = await subscription({ credit: 10 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 4)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 3); // 3 are free, not yet returned; 1 is held
  server.resumed = ({ seen }) => {
    assert.deepEqual(seen, { s1: 1 });
    return { subs: { s1: { mode: "reader", seq: 1, partitions: { t: [0, 1] }, cursor: "t:0=4;t:1=0", credit: 6, paused: false } }, ended: {} };
  };
  server.behind = (command, socket) => command.op === "hello" && socket.push(frame("s1", 2, messages("t", 0, 4, 2)));
  server.last.cut();
  await reconnected(server);
  assert.equal(server.last.commands("subscribe").length, 0);
  assert.deepEqual(server.last.commands("permit").map(({ messages }) => messages), [3]);
  assert.deepEqual(offsets(await take(iterator, 3)), [3, 4, 5]);
  await client.close();
});

test("reader: without its session it subscribes again from its cursor, with the epochs, and keeps what it has (S2)", async () => {
  const { server, client, sub } = await subscription({ from: "earliest", credit: 10 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 4)));
  const iterator = sub[Symbol.asyncIterator]();
  assert.deepEqual(offsets(await take(iterator, 2)), [0, 1]);
  server.answers.subscribe = () => ({ ...subscribed.reader, cursor: "t:0=4;t:1=0" });
  server.last.cut();
  await reconnected(server);
  const [again] = server.last.commands("subscribe");
  assert.equal(again.from, "t:0=4;t:1=0");
  assert.deepEqual(again.epochs, { t: "16" });
  assert.equal(again.credit, 8, "two of its frame wait here");
  server.last.push(frame("s1", 1, messages("t", 0, 4, 2)));
  assert.deepEqual(offsets(await take(iterator, 4)), [2, 3, 4, 5]);
  assert.equal(server.last.commands("permit").reduce((sum, { messages }) => sum + messages, 0), 4);
  await client.close();
});

test("reader of a pattern: without its session it reads what came to a pattern that had matched nothing from the first record on", async () => {
  const { server, client, sub } = await subscription({ topics: undefined, pattern: "t.*", from: "latest" });
  assert.equal(server.last.commands("subscribe")[0].from, "latest");
  server.last.push({ op: "revoked", sub: "s1", partitions: { t: [0, 1] }, lost: true });
  server.answers.subscribe = () => subscribed.reader;
  server.last.cut();
  await reconnected(server);
  const [again] = server.last.commands("subscribe");
  assert.equal(again.from, "earliest");
  assert.deepEqual(again.epochs, {}, "a topic of that name is another one now");
  server.last.push(frame("s1", 1, messages("t", 0, 0, 1)));
  assert.deepEqual(offsets(await take(sub[Symbol.asyncIterator](), 1)), [0]);
  await client.close();
});

test("reader of a pattern: a topic that was made again is read from its first record, the others from where they were", async () => {
  const both = { mode: "reader", epochs: { t: "16", u: "17" }, partitions: { t: [0], u: [0] }, cursor: "t:0=5;u:0=7" };
  const { server, client, sub } = await subscription({ topics: undefined, pattern: "[tu]" });
  server.answers.subscribe = () => both;
  server.last.cut();
  await reconnected(server);
  server.last.push(frame("s1", 1, messages("t", 0, 5, 2)));
  const iterator = sub[Symbol.asyncIterator]();
  assert.deepEqual(offsets(await take(iterator, 1)), [5]);
  server.answers.subscribe = ({ epochs }) =>
    epochs.t === "16"
      ? { ok: false, error_code: 40953, message: "made again", retriable: false, details: { topic: "t", epoch: "18" } }
      : { ...both, epochs: { ...both.epochs, t: "18" }, cursor: "t:0=0;u:0=7" };
  server.last.cut();
  await reconnected(server);
  const [refused, again] = server.last.commands("subscribe");
  assert.deepEqual([refused.from, refused.epochs], ["t:0=7;u:0=7", both.epochs]);
  assert.deepEqual([again.from, again.epochs], ["u:0=7", { u: "17" }]);
  server.last.push(frame("s1", 1, messages("t", 0, 0, 2)));
  assert.deepEqual(offsets(await take(iterator, 2)), [0, 1]);
  await client.close();
});

test("stream: what the consumer is done with is committed: not what it has in hand (S3)", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 1);
  await sub.commit();
  assert.deepEqual(commits(server), []);
  await take(iterator, 1);
  await sub.commit();
  assert.deepEqual(commits(server), ["t:0=1"]);
  await sub.commit();
  assert.equal(commits(server).length, 1, "nothing new");
  await client.close();
  assert.deepEqual(commits(server), ["t:0=1"]);
});

test("stream: leaving the loop commits what is done; the message in hand only if it was acked", async () => {
  for (const isAcked of [false, true]) {
    const { server, client, sub } = await subscription({ group: "g" });
    server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
    await assert.rejects(async () => {
      for await (const message of sub) {
        if (message.offset < 1) continue;
        if (isAcked) await message.ack();
        throw new Error("mine");
      }
    }, /mine/);
    assert.deepEqual(commits(server), [isAcked ? "t:0=2" : "t:0=1"]);
    assert.equal(server.last.commands("unsubscribe").length, 1);
    await client.close();
  }
});

test("stream: commits are made by themselves, now and then", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 5 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 3);
  await new Promise((resolve) => setTimeout(resolve, 30));
  assert.deepEqual(commits(server), ["t:0=2"]);
  await client.close();
});

test("stream, manual: what is acked is committed, up to there", async () => {
  const { server, client, sub } = await subscription({ group: "g", commit: "manual", commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 5)));
  const taken = await take(sub[Symbol.asyncIterator](), 4);
  await sub.commit();
  assert.deepEqual(commits(server), []);
  await taken[2].ack();
  await taken[1].ack(); // behind: says nothing new
  await sub.commit();
  assert.deepEqual(commits(server), ["t:0=3"]);
  await client.close();
});

test("stream: after a restart of the server nothing is given twice, and what was done is committed again", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  const [{ member }] = server.last.commands("subscribe");
  server.last.push(frame("s1", 1, messages("t", 0, 0, 10)));
  const iterator = sub[Symbol.asyncIterator]();
  assert.deepEqual(offsets(await take(iterator, 6)), [0, 1, 2, 3, 4, 5]);
  server.answers.subscribe = () => ({ ...subscribed.stream, cursor: "t:0=2;t:1=0" });
  server.last.cut();
  await reconnected(server);
  assert.equal(server.last.commands("subscribe")[0].member, member);
  assert.equal(server.last.commands("subscribe")[0].credit, 2000);
  server.last.push(frame("s1", 1, messages("t", 0, 2, 10)));
  assert.deepEqual(offsets(await take(iterator, 3)), [6, 7, 8]);
  await sub.commit();
  assert.deepEqual(commits(server), ["t:0=8"]);
  await client.close();
});

test("stream: an ack whose answer was lost is sent again", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  await take(sub[Symbol.asyncIterator](), 2);
  const { ack } = server.answers;
  server.answers.ack = undefined;
  const committed = sub.commit();
  await settled();
  server.answers.ack = ack;
  server.last.cut();
  await reconnected(server);
  await committed;
  assert.deepEqual(commits(server), ["t:0=1", "t:0=1"]);
  await client.close();
});

test("stream: a commit that is refused rejects", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  await take(sub[Symbol.asyncIterator](), 2);
  server.answers.ack = () => ({ results: [{ topic: "t", partition: 0, ok: false, error_code: 40959, error: "not the owner" }] });
  const error = await sub.commit().catch((e) => e);
  assert.ok(error instanceof Refused && error.code === 40959);
  await client.close();
});

test("stream: a partition that is revoked is finished, committed, and then released", async () => {
  const told = [];
  const { server, client, sub } = await subscription({ group: "g", onRevoked: (partitions, lost) => told.push([partitions, lost]), commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 2)));
  server.last.push(frame("s1", 2, messages("t", 1, 0, 2)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 1);
  server.last.push({ op: "revoked", sub: "s1", generation: 2, partitions: { t: [0] }, drain_ms: 10_000 });
  await settled();
  assert.deepEqual(told, [[{ t: [0] }, false]]);
  assert.deepEqual(server.last.commands("release"), [], "one waits, one is in hand");
  assert.deepEqual((await take(iterator, 2)).map(({ partition, offset }) => [partition, offset]), [[0, 1], [1, 0]]);
  await settled();
  assert.deepEqual(commits(server), ["t:0=2"]);
  assert.deepEqual(server.last.commands("release").map(({ partitions }) => partitions), [{ t: [0] }]);
  assert.ok(server.last.received.findIndex(({ op }) => op === "ack") < server.last.received.findIndex(({ op }) => op === "release"));
  await client.close();
});

test("stream: a partition of which nothing is here is released at once; one that is too slow is lost", async () => {
  const told = [];
  const { server, client, sub } = await subscription({ group: "g", onRevoked: (partitions, lost) => told.push([partitions, lost]) });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 5)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 1);
  server.last.push({ op: "revoked", sub: "s1", generation: 2, partitions: { t: [0, 1] }, drain_ms: 20 });
  await settled();
  assert.deepEqual(server.last.commands("release").map(({ partitions }) => partitions), [{ t: [1] }]);
  await new Promise((resolve) => setTimeout(resolve, 40));
  assert.deepEqual(told, [[{ t: [0, 1] }, false], [{ t: [0] }, true]]);
  server.last.push({ op: "assigned", sub: "s1", generation: 3, partitions: { t: [0] }, cursor: "t:0=0" });
  server.last.push(frame("s1", 2, messages("t", 0, 0, 1)));
  assert.deepEqual(offsets(await take(iterator, 1)), [0], "it comes anew, to whoever has it");
  await client.close();
});

test("stream: a revoked partition that stays after all goes on without a gap", async () => {
  const { server, client, sub } = await subscription({ group: "g" });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 1);
  server.last.push({ op: "revoked", sub: "s1", generation: 2, partitions: { t: [0] }, drain_ms: 10_000 });
  server.last.push({ op: "assigned", sub: "s1", generation: 3, partitions: { t: [0] }, cursor: "t:0=3" });
  server.last.push(frame("s1", 2, messages("t", 0, 3, 1)));
  assert.deepEqual(offsets(await take(iterator, 3)), [1, 2, 3]);
  assert.deepEqual(server.last.commands("release"), []);
  await client.close();
});

test("stream: what waits of a lost partition is dropped, its credit returned, and nothing of it committed", async () => {
  const { server, client, sub } = await subscription({ group: "g", credit: 4, commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  server.last.push(frame("s1", 2, messages("t", 1, 0, 1)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 1);
  server.last.push({ op: "revoked", sub: "s1", generation: 2, partitions: { t: [0] }, lost: true });
  const [message] = await take(iterator, 1);
  assert.equal(message.partition, 1);
  await sub.commit();
  assert.deepEqual(commits(server), []);
  assert.equal(server.last.commands("permit").reduce((sum, { messages }) => sum + messages, 0), 4);
  await client.close();
});

test("stream: a session that comes back with other partitions tells so", async () => {
  const told = [];
  const hooks = { onRevoked: (partitions, lost) => told.push(["revoked", partitions, lost]), onAssigned: (partitions) => told.push(["assigned", partitions]) };
  const { server, client, sub } = await subscription({ group: "g", ...hooks });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 1);
  server.resumed = () => ({ subs: { s1: { mode: "stream", seq: 1, generation: 4, partitions: { t: [1, 2] }, cursor: "t:1=0;t:2=7", credit: 1997, paused: false } }, ended: {} });
  server.last.cut();
  await reconnected(server);
  assert.deepEqual(told, [["assigned", { t: [0, 1] }], ["revoked", { t: [0] }, true], ["assigned", { t: [2] }]]);
  server.last.push(frame("s1", 2, messages("t", 2, 7, 1)));
  const [message] = await take(iterator, 1);
  assert.deepEqual([message.partition, message.offset], [2, 7]);
  await client.close();
});

test("stream: a session that ended is joined again under the member's name", async () => {
  const { server, client } = await subscription({ group: "g", member: "m1", room: "east" });
  server.resumed = () => ({ subs: {}, ended: { s1: { error_code: 40961, message: "too far behind" } } });
  server.last.cut();
  await reconnected(server);
  assert.equal(server.last.commands("subscribe")[0].member, "m1");
  assert.equal(server.last.commands("subscribe")[0].room, "east");
  await client.close();
});

test("stream: what was in hand when the session was lost and resumed is committed when it is done, not before", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
  const taken = await take(sub[Symbol.asyncIterator](), 3);
  server.resumed = () => ({ subs: { s1: { mode: "stream", seq: 1, generation: 1, partitions: { t: [0, 1] }, cursor: "t:0=3;t:1=0", credit: 1997, paused: false } }, ended: {} });
  server.last.cut();
  await reconnected(server);
  await sub.commit();
  assert.deepEqual(commits(server), ["t:0=2"]);
  await taken[2].ack();
  await sub.commit();
  assert.deepEqual(commits(server), ["t:0=2", "t:0=3"]);
  await client.close();
});

test("stream: a revocation that began while away: what is done is committed, and the rest given up at once", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 5)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 3);
  server.resumed = () => ({ subs: { s1: { mode: "stream", seq: 1, generation: 2, partitions: { t: [1] }, cursor: "t:1=0", credit: 1995, paused: false } }, ended: {} });
  server.behind = (command, socket) => command.op === "hello" && socket.push({ op: "revoked", sub: "s1", generation: 2, partitions: { t: [0] }, drain_ms: 10_000 });
  server.last.cut();
  await reconnected(server);
  assert.deepEqual(commits(server), ["t:0=2"]);
  assert.deepEqual(server.last.commands("release").map(({ partitions }) => partitions), [{ t: [0] }]);
  await client.close();
});

test("stream: a partition that is being given up when the connection is lost is still finished on the next", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 2)));
  const iterator = sub[Symbol.asyncIterator]();
  await take(iterator, 1);
  const revoked = { op: "revoked", sub: "s1", generation: 2, partitions: { t: [0] }, drain_ms: 10_000 };
  server.last.push(revoked);
  server.resumed = () => ({ subs: { s1: { mode: "stream", seq: 1, generation: 2, partitions: { t: [1] }, cursor: "t:1=0", credit: 1998, paused: false } }, ended: {} });
  server.behind = (command, socket) => command.op === "hello" && socket.push(revoked);
  server.last.cut();
  await reconnected(server);
  assert.deepEqual(server.last.commands("release"), []);
  assert.deepEqual(offsets(await take(iterator, 1)), [1]);
  void iterator.next();
  await settled();
  assert.deepEqual(commits(server), ["t:0=2"]);
  assert.equal(server.last.commands("release").length, 1);
  await client.close();
});

test("only streams that commit themselves commit: not readers, not autoAck", async () => {
  for (const options of [{}, { group: "g", autoAck: true }]) {
    const { server, client, sub } = await subscription(options);
    server.last.push(frame("s1", 1, messages("t", 0, 0, 3)));
    await take(sub[Symbol.asyncIterator](), 3);
    await sub.commit();
    await client.close();
    assert.deepEqual(commits(server), []);
  }
});

test("stream: a member whose name was taken while it was away does not take it back", async () => {
  const { server, client, sub } = await subscription({ group: "g", member: "m1" });
  server.resumed = () => ({ subs: {}, ended: { s1: { error_code: 40959, message: "another process has joined", retriable: false } } });
  server.last.cut();
  await assert.rejects(sub[Symbol.asyncIterator]().next(), (error) => error instanceof Refused && error.code === 40959);
  assert.equal(server.last.commands("subscribe").length, 0);
  await client.close();
});

test("queue: what is settled in one turn goes in one command; each gets its own result", async () => {
  const { server, client, sub } = await subscription({ group: "g", mode: "queue" });
  const list = messages("t", 0, 0, 6, { attempt: 2, visible_until: Date.now() + 60_000 }).map((one, at) => ({ ...one, receipt: `r${at}` }));
  server.last.push(frame("s1", 1, list));
  const [a, b, c, d, e, f] = await take(sub[Symbol.asyncIterator](), 6);
  assert.deepEqual([a.attempt, a.receipt, a.visibleUntil], [2, "r0", list[0].visible_until]);
  server.answers.ack = ({ receipts }) => ({ results: receipts.map((receipt) => (receipt === "r1" ? { receipt, ok: false, error_code: 40951, error: "the lease is over" } : { receipt, ok: true })) });
  const results = await Promise.allSettled([a.ack(), b.ack(), c.nack({ delayMs: 5, reason: "later" }), d.reject("never"), e.extend(1000), f.nack()]);
  assert.deepEqual(results.map(({ status }) => status), ["fulfilled", "rejected", "fulfilled", "fulfilled", "fulfilled", "fulfilled"]);
  assert.ok(results[1].reason instanceof Refused && results[1].reason.code === 40951);
  assert.deepEqual(server.last.commands("ack").map(({ receipts }) => receipts), [["r0", "r1"]]);
  assert.deepEqual(server.last.commands("nack").map(({ receipts, delay_ms, reason }) => [receipts, delay_ms, reason]), [[["r2"], 5, "later"], [["r5"], undefined, undefined]]);
  assert.deepEqual(server.last.commands("reject").map(({ receipts, reason }) => [receipts, reason]), [[["r3"], "never"]]);
  assert.equal(e.receipt, "r4+");
  await client.close();
});

test("queue: acks that were not answered are sent again; at close those that wait go first", async () => {
  const { server, client, sub } = await subscription({ group: "g", mode: "queue" });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 2).map((one, at) => ({ ...one, receipt: `r${at}` }))));
  const [a, b] = await take(sub[Symbol.asyncIterator](), 2);
  const { ack } = server.answers;
  server.answers.ack = undefined;
  const acked = a.ack();
  await new Promise((resolve) => setTimeout(resolve, 5));
  server.answers.ack = ack;
  server.last.cut();
  await reconnected(server);
  await acked;
  const last = b.ack();
  await client.close();
  await last;
  const ops = server.last.received.map(({ op }) => op);
  assert.ok(ops.lastIndexOf("ack") < ops.lastIndexOf("unsubscribe"));
});

test("queue: a message whose lease is over is not given: it comes again", async () => {
  const { server, client, sub } = await subscription({ group: "g", mode: "queue" });
  const now = Date.now();
  server.last.push({ op: "pong", ts: now + 5_000 }); // the server's clock is ahead
  const [over, good] = messages("t", 0, 0, 2);
  server.last.push(frame("s1", 1, [{ ...over, receipt: "r0", visible_until: now + 4_000 }, { ...good, receipt: "r1", visible_until: now + 60_000 }]));
  assert.deepEqual(offsets(await take(sub[Symbol.asyncIterator](), 1)), [1]);
  await client.close();
});

test("queue, callback: returning acks, throwing gives back; so many at a time as was said", async () => {
  let running = 0;
  let most = 0;
  const { server, client } = await subscription({
    group: "g", mode: "queue", concurrency: 3,
    onMessage: async ({ offset }) => {
      most = Math.max(most, ++running);
      await settled(2);
      running--;
      if (offset === 4) throw new Error("db down");
    },
  });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 9).map((one, at) => ({ ...one, receipt: `r${at}` }))));
  const settledOnes = () => ["ack", "nack"].flatMap((op) => server.last.commands(op)).flatMap(({ receipts }) => receipts);
  for (let tries = 0; settledOnes().length < 9 && tries < 1_000; tries++) await new Promise((resolve) => setTimeout(resolve, 5));
  assert.equal(most, 3);
  assert.deepEqual(server.last.commands("ack").flatMap(({ receipts }) => receipts).sort(), ["r0", "r1", "r2", "r3", "r5", "r6", "r7", "r8"]);
  assert.deepEqual(server.last.commands("nack").map(({ receipts, reason }) => [receipts, reason]), [[["r4"], "Error: db down"]]);
  await client.close();
});

test("queue, autoAck: nothing is settled, and credit is returned here, so that a slow consumer is not flooded", async () => {
  const { server, client, sub } = await subscription({ group: "g", mode: "queue", autoAck: true, credit: 4 });
  const [command] = server.last.commands("subscribe");
  assert.deepEqual([command.auto_ack, command.auto_credit], [true, false]);
  server.last.push(frame("s1", 1, messages("t", 0, 0, 4)));
  const [first] = await take(sub[Symbol.asyncIterator](), 4);
  await assert.rejects(first.nack(), TypeError);
  assert.equal(server.last.commands("permit").reduce((sum, { messages }) => sum + messages, 0), 4);
  assert.deepEqual(server.last.commands("ack"), []);
  await client.close();
});

test("callbacks get messages one after the other; what one throws ends the subscription and is told", async () => {
  const given = [];
  let running = 0;
  let told;
  const ended = new Promise((resolve) => (told = resolve));
  const { server, client } = await subscription({
    group: "g",
    onMessage: async ({ offset }) => {
      assert.equal(++running, 1);
      await settled(1);
      running--;
      given.push(offset);
      if (offset === 2) throw new Error("mine");
    },
    onEnd: told,
    commitIntervalMs: 1_000_000,
  });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 5)));
  assert.equal((await ended).message, "mine");
  assert.deepEqual(given, [0, 1, 2]);
  assert.equal(server.last.commands("unsubscribe").length, 1);
  await client.close();
});

test("an error that ends a callback's subscription is uncaught when nobody asked for it", async () => {
  const before = process.listeners("uncaughtException");
  process.removeAllListeners("uncaughtException");
  const uncaught = new Promise((resolve) => process.once("uncaughtException", resolve));
  try {
    const { server, client } = await subscription({ onMessage: () => {} });
    server.last.push({ op: "error", sub: "s1", error_code: 40953, message: "created anew", retriable: false });
    const error = await uncaught;
    assert.ok(error instanceof Refused && error.code === 40953);
    await client.close();
  } finally {
    for (const one of before) process.on("uncaughtException", one);
  }
});

test("a server that ends the subscription: a reader gets what has come, then the error; a group's does not", async () => {
  for (const [options, expected] of [[{}, [0, 1]], [{ group: "g" }, []]]) {
    const { server, client, sub } = await subscription(options);
    server.last.push(frame("s1", 1, messages("t", 0, 0, 2)));
    server.last.push({ op: "error", sub: "s1", error_code: 41601, message: "out of range", retriable: false });
    const given = [];
    await assert.rejects(async () => {
      for await (const { offset } of sub) given.push(offset);
    }, (error) => error instanceof Refused && error.code === 41601);
    assert.deepEqual(given, expected);
    assert.equal(client.state, "open");
    await client.close();
  }
});

test("a subscription that is refused rejects where it is used; one that may work later is tried again", async () => {
  const server = new FakeServer();
  server.answers.subscribe = () => ({ ok: false, error_code: 40401, message: "no topic", retriable: false });
  const client = await connect("http://host", { WebSocket: server.Socket });
  const sub = client.subscribe({ topics: "t" });
  await assert.rejects(sub.ready, Refused);
  await assert.rejects(sub[Symbol.asyncIterator]().next(), /no topic/);
  let times = 0;
  server.answers.subscribe = () => (++times < 3 ? { ok: false, error_code: 50351, message: "busy", retriable: true, retry_after_ms: 5 } : subscribed.reader);
  await client.subscribe({ topics: "t" }).ready;
  assert.equal(times, 3);
  await client.close();
});

test("close ends iterators quietly; so does an abort signal", async () => {
  const { client, sub } = await subscription();
  const over = (async () => {
    for await (const _ of sub);
    return "over";
  })();
  await sub.close();
  assert.equal(await over, "over");
  const controller = new AbortController();
  const second = client.subscribe({ topics: "t", signal: controller.signal });
  await second.ready;
  controller.abort();
  assert.deepEqual(await second[Symbol.asyncIterator]().next(), { value: undefined, done: true });
  const kept = new AbortController();
  const closed = client.subscribe({ topics: "t", signal: kept.signal });
  assert.equal(getEventListeners(kept.signal, "abort").length, 1);
  await closed.close();
  assert.equal(getEventListeners(kept.signal, "abort").length, 0, "the signal may outlive it");
  const third = client.subscribe({ topics: "t", signal: AbortSignal.abort() });
  assert.deepEqual(await third[Symbol.asyncIterator]().next(), { value: undefined, done: true });
  await client.close();
  assert.throws(() => client.subscribe({ topics: "t" }), Closed);
});

test("seek: what waits is dropped with its credit, also what arrives before the answer; the rest is new", async () => {
  const { server, client, sub } = await subscription({ credit: 6 });
  server.last.push(frame("s1", 1, messages("t", 0, 50, 3)));
  server.answers.seek = ({ to }) => {
    assert.equal(to, "earliest");
    server.last.push(frame("s1", 2, messages("t", 0, 53, 3)));
    return { sub: "s1", cursor: "t:0=0;t:1=0" };
  };
  server.behind = (command, socket) => command.op === "seek" && socket.push(frame("s1", 3, messages("t", 0, 0, 2)));
  await sub.seek("earliest");
  assert.equal(sub.cursor, "t:0=0;t:1=0");
  assert.deepEqual(offsets(await take(sub[Symbol.asyncIterator](), 2)), [0, 1]);
  assert.equal(server.last.commands("permit").reduce((sum, { messages }) => sum + messages, 0), 8);
  await client.close();
});

test("stream: a seek back is committed, so that it outlives the session", async () => {
  const { server, client, sub } = await subscription({ group: "g", commitIntervalMs: 1_000_000 });
  server.answers.seek = () => ({ sub: "s1", cursor: "t:0=3;t:1=0" });
  await sub.seek({ t: { 0: 3 } });
  await sub.commit();
  assert.deepEqual(commits(server), ["t:0=3;t:1=0"]);
  await client.close();
});

test("close waits for the call that is running, and for what it sends; then it is done, and committed", async () => {
  const sent = [];
  let finish;
  const { server, client } = await subscription({
    group: "g",
    onMessage: async ({ offset }) => {
      await new Promise((resolve) => (finish = resolve));
      sent.push((await client.produce("u", { value: offset })).offset);
    },
  });
  server.answers.produce = () => ({ offsets: [{ partition: 0, offset: 9 }] });
  server.last.push(frame("s1", 1, messages("t", 0, 0, 5)));
  await settled();
  const closing = client.close();
  await settled();
  finish();
  await closing;
  assert.deepEqual(sent, [9]);
  assert.deepEqual(commits(server), ["t:0=1"]);
});

test("pause outlives the connection", async () => {
  const { server, client, sub } = await subscription();
  await sub.pause();
  server.last.cut();
  await reconnected(server);
  assert.equal(server.last.commands("pause").length, 1);
  server.resumed = () => ({ subs: { s1: { mode: "reader", seq: 0, partitions: { t: [0, 1] }, cursor: "t:0=0;t:1=0", credit: 2000, paused: true } }, ended: {} });
  const paused = server.last;
  await sub.resume();
  server.last.cut();
  await reconnected(server);
  assert.notEqual(server.last, paused);
  assert.equal(server.last.commands("resume").length, 1, "the lost connection may have taken it with it");
  await client.close();
});

test("raw batches: records come out, credit counts offsets, and the place is behind the batch", async () => {
  const { server, client, sub } = await subscription({ format: "batch", credit: 10 }, { binary: true });
  const payload = batch(0, [{ value: "a" }, { value: "b" }, { value: "c" }]);
  const header = { op: "batch", sub: "s1", seq: 1, topic: "t", partition: 0, offset: 1, next_offset: 3, count: 2, cursor: "t:0=3", bytes: payload.length, credit: 8 };
  server.last.push(binary(header, payload));
  const iterator = sub.batches();
  const { value: records } = await iterator.next();
  assert.deepEqual(records.map(({ offset, valueText }) => [offset, valueText]), [[1, "b"], [2, "c"]]);
  assert.deepEqual(server.last.commands("permit").map(({ messages }) => messages), [2]);
  assert.equal(sub.cursor, "t:0=3;t:1=0");
  await client.close();
});

test("raw batches need a binary connection", async () => {
  const { client } = await subscription();
  assert.throws(() => client.subscribe({ topics: "t", format: "batch" }), MqError);
  await client.close();
});

test("raw batches that are being inflated keep their order, and are not lost with the connection", async () => {
  const { server, client, sub } = await subscription({ format: "batch", from: "earliest" }, { binary: true });
  const push = (seq, offset, compression) => {
    const payload = batch(offset, [{ value: `v${offset}` }], { compression });
    server.last.push(binary({ op: "batch", sub: "s1", seq, topic: "t", partition: 0, offset, next_offset: offset + 1, count: 1, bytes: payload.length }, payload));
  };
  push(1, 0, "gzip");
  push(2, 1, null);
  push(3, 2, "gzip");
  server.answers.subscribe = () => ({ ...subscribed.reader, cursor: "t:0=3;t:1=0" });
  server.last.cut();
  const iterator = sub[Symbol.asyncIterator]();
  assert.deepEqual(offsets(await take(iterator, 3)), [0, 1, 2]);
  await reconnected(server);
  assert.equal(server.last.commands("subscribe")[0].from, "t:0=3;t:1=0");
  push(1, 3, "gzip");
  assert.deepEqual(offsets(await take(iterator, 1)), [3]);
  await client.close();
});

test("a raw batch that cannot be inflated ends its subscription, not the connection", async () => {
  const { server, client, sub } = await subscription({ format: "batch" }, { binary: true });
  const payload = batch(0, [{ value: "a" }], { compression: "zstd" });
  server.last.push(binary({ op: "batch", sub: "s1", seq: 1, topic: "t", partition: 0, offset: 0, next_offset: 1, count: 1, bytes: 1 }, payload));
  await assert.rejects(sub[Symbol.asyncIterator]().next(), /zstd/);
  assert.equal(client.state, "open");
  await client.close();
});

test("keys, values and headers of text frames and of binary frames", async () => {
  const { server, client, sub } = await subscription({}, { binary: true });
  const place = { topic: "t", partition: 0, timestamp: 1, store_timestamp: 2 };
  const text = [
    { ...place, offset: 0, key: "k", value: { a: 1 }, headers: [{ key: "h", value: "AP8=" }, { key: "n", value: null }], tag: "x", deliver_at: 9, schedule_id: "s", schedule_key: "own" },
    { ...place, offset: 1, value_text: "plain" },
    { ...place, offset: 2, key_b64: "/w==", value_b64: "AP8=" },
    { ...place, offset: 3, key: null, value: null },
  ];
  server.last.push(frame("s1", 1, text));
  const lengths = [[2, 7], [null, 5], [1, 2], [null, null]];
  const payload = new Uint8Array([...Buffer.from('"k'), ...Buffer.from('{"a":1}'), ...Buffer.from("plain"), 255, 0, 255]);
  const list = lengths.map(([key_len, value_len], at) => ({ ...place, offset: 4 + at, key_len, value_len }));
  server.last.push(binary({ op: "messages", sub: "s1", seq: 2, messages: list, bytes: payload.length, credit: 1 }, payload));
  const taken = await take(sub[Symbol.asyncIterator](), 8);
  assert.deepEqual(taken.map(({ value }) => value), [{ a: 1 }, "plain", new Uint8Array([0, 255]), null, { a: 1 }, "plain", new Uint8Array([0, 255]), null].map((value) => value));
  assert.deepEqual(taken.map(({ key }) => key), ["k", null, new Uint8Array([255]), null, '"k', null, new Uint8Array([255]), null]);
  assert.deepEqual(taken.map(({ bytes }) => bytes && [...bytes]), [[...Buffer.from('{"a":1}')], [...Buffer.from("plain")], [0, 255], null, [...Buffer.from('{"a":1}')], [...Buffer.from("plain")], [0, 255], null]);
  assert.deepEqual(taken[0].headers, [{ key: "h", value: new Uint8Array([0, 255]) }, { key: "n", value: null }]);
  assert.deepEqual([taken[0].tag, taken[0].deliverAt, taken[0].scheduleId, taken[0].scheduleKey, taken[0].timestamp, taken[0].storeTimestamp, taken[0].attempt], ["x", 9, "s", "own", 1, 2, 1]);
  await client.close();
});

test("caught_up is told once, and once more after a seek", async () => {
  let times = 0;
  const { server, client, sub } = await subscription({ onCaughtUp: () => times++ });
  for (let push = 0; push < 2; push++) server.last.push({ op: "caught_up", sub: "s1", cursor: "t:0=0" });
  assert.equal(times, 1);
  server.answers.seek = () => ({ cursor: "t:0=0" });
  await sub.seek("earliest");
  server.last.push({ op: "caught_up", sub: "s1", cursor: "t:0=0" });
  assert.equal(times, 2);
  await client.close();
});

test("a client that is closed by the server ends its subscriptions with the reason", async () => {
  const { server, client, sub } = await subscription();
  const next = sub[Symbol.asyncIterator]().next();
  server.last.cut(4501, "revoked");
  await assert.rejects(next, (error) => error instanceof Closed && error.code === 4501);
  assert.equal(client.state, "closed");
});
