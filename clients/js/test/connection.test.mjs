import assert from "node:assert/strict";
import { mock, test } from "node:test";
import { connect } from "../build/index.js";
import { Closed, ConnectionLost, Refused, Undecodable } from "../build/errors.js";
import { mayReconnect, waitMs } from "../build/backoff.js";
import { FakeServer, frame, messages, settled } from "./fake_server.mjs";

/** A client of a server that answers produces when the test says so. */
async function connected(options = {}) {
  const server = new FakeServer();
  const states = [];
  const onState = (state, reason) => states.push([state, reason?.message ?? null]);
  const client = await connect("http://host", { WebSocket: server.Socket, lingerMs: 0, onState, ...options });
  return { server, client, states };
}

/** With time stopped: what `run` does, and nobody else, moves it. */
function timed(name, run) {
  test(name, async () => {
    mock.timers.enable({ apis: ["setTimeout", "setInterval", "Date"], now: 1_000_000 });
    try {
      await run(async (ms) => {
        mock.timers.tick(ms);
        await settled();
      });
    } finally {
      mock.timers.reset();
    }
  });
}

const answered = { produce: (command) => ({ acks: "flushed", offsets: command.records.map((_, at) => ({ partition: 0, offset: at })) }) };

test("connect says hello on the socket's path with the subprotocol, and resolves with the answer", async () => {
  const { server, client, states } = await connected({ token: "secret", client: "tests" });
  assert.equal(server.last.url, "ws://host/ws/v1");
  assert.deepEqual(server.last.protocols, ["mq.v1.json"]);
  const [hello] = server.last.received;
  assert.equal(hello.op, "hello");
  assert.equal(hello.token, "secret");
  assert.equal(hello.client, "tests");
  assert.deepEqual(states, [["open", null]]);
  await client.close();
  assert.equal(server.last.closedWith, 1000);
  assert.equal(client.state, "closed");
});

timed("the wait before the next connection grows to half a minute, and starts again after a stable one", async (tick) => {
  const { server, client, states } = await connected();
  server.isUp = false;
  await tick(6_000);
  server.last.cut();
  for (let failure = 0; failure < 12; failure++) {
    const before = server.sockets.length;
    await tick(0);
    assert.equal(client.state, "waiting");
    await tick(30_000);
    assert.equal(server.sockets.length, before + 1, "one more connection is tried within half a minute");
  }
  server.isUp = true;
  await tick(30_000);
  assert.equal(client.state, "open");
  await tick(6_000);
  server.last.cut();
  await tick(500);
  assert.equal(client.state, "open", "after a stable connection the first wait is short again");
  assert.ok(states.some(([state, reason]) => state === "waiting" && reason.includes("1006")));
  await client.close();
});

test("waits are spread over the whole time and bounded", () => {
  assert.equal(waitMs(1, () => 0), 0);
  assert.equal(waitMs(1, () => 1), 500);
  assert.equal(waitMs(2, () => 1), 1_000);
  assert.equal(waitMs(7, () => 1), 30_000);
  assert.equal(waitMs(10_000, () => 1), 30_000);
});

test("reconnects after codes below 4500 and after a cut, never from 4500 on", () => {
  for (const code of [1000, 1001, 1005, 1006, 1011, 1012, 4001, 4003, 4005, 4008, 4009, 4029, 4499]) assert.ok(mayReconnect(code), `${code}`);
  for (const code of [1002, 1003, 1007, 1009, 4500, 4501, 4503, 4504, 4999]) assert.ok(!mayReconnect(code), `${code}`);
});

test("a code from 4500 on closes the client for good and rejects what waits", async () => {
  const { server, client, states } = await connected();
  const sent = client.produce("t", { value: 1 });
  await new Promise((resolve) => setTimeout(resolve, 5));
  server.last.cut(4503, "not you");
  const error = await sent.catch((e) => e);
  assert.ok(error instanceof Closed);
  assert.equal(error.code, 4503);
  assert.match(error.message, /4503 \(not you\)/);
  assert.deepEqual(states.at(-1)[0], "closed");
  await assert.rejects(client.produce("t", { value: 1 }), Closed);
  assert.equal(server.sockets.length, 1);
});

test("a hello that is refused for good rejects connect", async () => {
  const server = new FakeServer();
  server.answers.hello = () => ({ ok: false, error_code: 40101, message: "no such token", retriable: false });
  const error = await connect("http://host", { WebSocket: server.Socket }).catch((e) => e);
  assert.ok(error instanceof Refused);
  assert.equal(error.code, 40101);
});

timed("a hello that may work later is tried again", async (tick) => {
  const server = new FakeServer();
  let times = 0;
  server.answers.hello = (command) => (++times < 3 ? { ok: false, error_code: 42950, message: "full", retriable: true } : server.hello(command));
  const opening = connect("http://host", { WebSocket: server.Socket });
  for (let turn = 0; turn < 5; turn++) await tick(5_000);
  const client = await opening;
  assert.equal(times, 3);
  await client.close();
});

timed("a server that does not answer hello is given up after 10 s", async (tick) => {
  const server = new FakeServer();
  server.answers.hello = () => undefined;
  const opening = connect("http://host", { WebSocket: server.Socket });
  await tick(9_999);
  assert.equal(server.sockets.length, 1);
  delete server.answers.hello;
  await tick(1);
  await tick(500);
  assert.equal(server.sockets.length, 2);
  await (await opening).close();
});

timed("silence is answered by pings, and two ping times of it by a new connection", async (tick) => {
  const { server, client, states } = await connected();
  await tick(12_500);
  await tick(12_500);
  assert.ok(server.last.commands("ping").length >= 2, "one to learn the clock, one for the silence");
  await tick(12_500);
  server.last.push({ op: "pong", ts: Date.now() });
  await tick(37_500);
  assert.equal(server.sockets.length, 1, "a pong is a sign of life");
  await tick(25_000);
  assert.ok(states.some(([state, reason]) => state === "waiting" && /nothing was heard/.test(reason)));
  await tick(1_000);
  assert.equal(server.sockets.length, 2);
  await client.close();
});

timed("K2: what may be repeated is sent again with its id, what may not is rejected, what was not sent waits", async (tick) => {
  const { server, client } = await connected();
  const safe = client.produce("t", { value: 1, msgId: "m1" });
  await tick(1);
  const unsafe = client.produce("t", { value: 2 });
  await tick(1);
  const first = server.last;
  assert.equal(first.commands("produce").length, 2);
  first.cut();
  const late = client.produce("t", { value: 3 });
  await assert.rejects(unsafe, ConnectionLost);
  Object.assign(server.answers, answered);
  await tick(1_000);
  assert.equal((await safe).offset, 0);
  assert.equal((await late).offset, 0);
  const again = server.last.commands("produce");
  assert.deepEqual(again.map(({ records }) => records[0].value), [1, 3]);
  assert.equal(again[0].id, first.commands("produce")[0].id);
  await client.close();
});

timed("K3: on a new connection subscriptions come before all that waits", async (tick) => {
  const { server, client } = await connected();
  server.answers.subscribe = () => ({ mode: "reader", partitions: { t: [0] }, cursor: "t:0=0", epochs: {} });
  client.subscribe({ topics: "t" });
  await tick(0);
  server.last.cut();
  const waiting = client.produce("t", { value: 1 });
  Object.assign(server.answers, answered, { unsubscribe: () => ({}) });
  await tick(1_000);
  await waiting;
  assert.deepEqual(server.last.received.map(({ op }) => op).slice(0, 2), ["hello", "subscribe"]);
  await client.close();
});

timed("a subscription that was closed while away is ended on the session that comes back", async (tick) => {
  const { server, client } = await connected();
  server.answers.subscribe = () => ({ mode: "reader", partitions: { t: [0] }, cursor: "t:0=0", epochs: {} });
  const gone = client.subscribe({ topics: "t" });
  await tick(0);
  server.last.push(frame("s1", 1, messages("t", 0, 0, 1)));
  await tick(0);
  server.last.cut();
  await tick(0);
  await gone.close();
  server.resumed = () => ({ subs: { s1: { mode: "reader", seq: 0, partitions: { t: [0] }, cursor: "t:0=0", credit: 2000 } }, ended: {} });
  await tick(1_000);
  assert.deepEqual(server.last.commands("unsubscribe").map(({ sub }) => sub), ["s1"]);
  assert.deepEqual(server.last.commands("hello")[0].seen, { s1: 1 }, "what it has may be acked still");
  await client.close();
});

timed("goaway: nothing more is sent, and the next connection waits as long as the server asked", async (tick) => {
  const { server, client } = await connected();
  server.last.push({ op: "goaway", reason: "shutdown", reconnect_after_ms: 1_500, resume: "sess_1" });
  const later = client.produce("t", { value: 1 });
  await tick(5);
  assert.equal(server.last.commands("produce").length, 0);
  Object.assign(server.answers, answered);
  server.last.cut(4001);
  await tick(1_499);
  assert.equal(server.sockets.length, 1);
  await tick(1_000);
  assert.equal(server.sockets.length, 2);
  assert.equal((await later).offset, 0);
  await client.close();
});

timed("4009: the session is another's now: it is not fought for", async (tick) => {
  const { server, client } = await connected();
  server.last.cut(4009);
  await tick(1_000);
  assert.equal(server.last.received[0].resume, undefined);
  await client.close();
});

timed("a token that expires is renewed in time, and asked for again at each connection", async (tick) => {
  let number = 0;
  const { server, client } = await connected({ token: async () => `token${++number}` });
  assert.equal(server.last.received[0].token, "token1");
  server.answers.auth = () => ({ expires_at: null });
  server.last.push({ op: "auth_expiring", in_ms: 60_000 });
  await tick(0);
  assert.deepEqual(server.last.commands("auth").map(({ token }) => token), ["token2"]);
  server.last.cut(4005, "expired");
  await tick(1_000);
  assert.equal(server.last.received[0].token, "token3");
  assert.equal(server.last.received[0].resume, "sess_1");
  await client.close();
});

timed("a token that cannot be had for now is asked for again", async (tick) => {
  const server = new FakeServer();
  let times = 0;
  const token = () => {
    if (++times < 3) throw new Error("identity provider down");
    return "t";
  };
  const opening = connect("http://host", { WebSocket: server.Socket, token });
  for (let turn = 0; turn < 5; turn++) await tick(5_000);
  await (await opening).close();
  assert.equal(times, 3);
});

test("an abort stops connecting, and later closes", async () => {
  const server = new FakeServer();
  server.isUp = false;
  const early = new AbortController();
  const opening = connect("http://host", { WebSocket: server.Socket, signal: early.signal });
  await settled();
  early.abort();
  await assert.rejects(opening, Closed);
  await assert.rejects(connect("http://host", { WebSocket: server.Socket, signal: AbortSignal.abort() }), Closed);

  const late = new AbortController();
  const { client } = await connected({ signal: late.signal });
  const sent = client.produce("t", { value: 1 });
  late.abort();
  await assert.rejects(sent, Closed);
  assert.equal(client.state, "closed");
});

test("an error in the application's hook reaches the platform, not the connection", async () => {
  const errors = [];
  const listener = (error) => errors.push(error.message);
  const before = process.listeners("uncaughtException");
  process.removeAllListeners("uncaughtException");
  process.on("uncaughtException", listener);
  try {
    const { server, client } = await connected({ onState: () => { throw new Error("mine"); } });
    Object.assign(server.answers, answered);
    assert.equal((await client.produce("t", { value: 1 })).offset, 0);
    await client.close();
    await new Promise((resolve) => setTimeout(resolve, 10));
  } finally {
    process.removeListener("uncaughtException", listener);
    for (const one of before) process.on("uncaughtException", one);
  }
  assert.ok(errors.length > 0 && errors.every((message) => message === "mine"));
});

test("a frame that is none closes the client for good, with the reason", async () => {
  for (const bad of ["{", "[]", "3", new Uint8Array([0, 0]), new Uint8Array([0, 0, 0, 9, 123])]) {
    const { server, client, states } = await connected();
    const sent = client.produce("t", { value: 1 });
    await new Promise((resolve) => setTimeout(resolve, 3));
    server.last.push(bad);
    await assert.rejects(sent, Undecodable);
    assert.equal(server.last.closedWith, 4500);
    assert.equal(states.at(-1)[0], "closed");
  }
});

test("pushes of an unknown kind, and of subscriptions that are gone, are passed over", async () => {
  const { server, client } = await connected();
  server.last.push({ op: "news", of: "tomorrow" });
  server.last.push(frame("s99", 1, messages("t", 0, 0, 1)));
  server.last.push({ id: 12345, ok: true });
  server.last.push({ op: "error", error_code: 42253, message: "permit" });
  assert.equal(client.state, "open");
  await client.close();
});
