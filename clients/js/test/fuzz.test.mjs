/** Frames of a server gone mad: the client takes them, or closes with Undecodable; it never breaks in another way. */
import assert from "node:assert/strict";
import { test } from "node:test";
import { connect } from "../build/index.js";
import { MqError } from "../build/errors.js";
import { batch } from "./batches.mjs";
import { binary, FakeServer, frame, messages, settled } from "./fake_server.mjs";
import { pick, randomBytes, randomInt } from "./random.mjs";

const ROUNDS = Number(process.env["MQ_FUZZ_ROUNDS"] ?? 400);

const good = () => [
  frame("s1", 1 + randomInt(3), messages("t", randomInt(3), randomInt(50), 1 + randomInt(5))),
  frame("s2", 1 + randomInt(3), messages("t", randomInt(3), randomInt(50), 1 + randomInt(5))),
  frame("s3", 1 + randomInt(3), messages("t", randomInt(3), randomInt(50), 1 + randomInt(5), { receipt: "r", attempt: 1, visible_until: 9e15 })),
  { op: "assigned", sub: "s2", generation: 2, partitions: { t: [1] }, cursor: "t:1=5" },
  { op: "revoked", sub: "s2", generation: 2, partitions: { t: [1] }, drain_ms: 5 },
  { op: "revoked", sub: "s2", generation: 2, partitions: { t: [0, 1] }, lost: true },
  { op: "caught_up", sub: "s1", cursor: "t:0=5" },
  { op: "error", sub: pick(["s1", "s2"]), error_code: 40953, message: "anew" },
  { op: "error", error_code: 42253, message: "permit" },
  { op: "auth_expiring", in_ms: 1000 },
  { op: "pong", ts: 5 },
  { id: 1 + randomInt(12), ok: true, offsets: [{ partition: 0, offset: 1 }], results: [{ receipt: "r", ok: true }], cursor: "t:0=1", partitions: { t: [0] } },
  { id: 1 + randomInt(12), ok: false, error_code: 422, message: "no" },
];

const VALUES = [null, true, -1, 0, 1.5, 2 ** 53, "", "x", "t:0=9", [], [1], [null], {}, { t: 1 }, { t: ["0"] }, { t: [0] }];

/** A frame with some of its fields replaced, removed, or changed deep inside. */
function damaged(value, depth = 0) {
  if (depth > 0 && randomInt(6) === 0) return pick(VALUES);
  if (Array.isArray(value)) return value.map((one) => damaged(one, depth + 1));
  if (typeof value !== "object" || value === null) return value;
  const entries = Object.entries(value).filter(() => depth === 0 || randomInt(12) > 0);
  return Object.fromEntries(entries.map(([name, field]) => [name, name === "op" || randomInt(2) === 0 ? field : damaged(field, depth + 1)]));
}

function anyFrame() {
  const one = pick(good());
  switch (randomInt(20)) {
    case 1:
      return JSON.stringify(one).slice(0, randomInt(60));
    case 2: {
      const payload = randomInt(2) ? batch(randomInt(9), [{ value: "v" }]) : randomBytes(randomInt(80));
      if (payload.length > 0 && randomInt(2)) payload[randomInt(payload.length)] ^= 1 << randomInt(8);
      const header = { op: "batch", sub: "s1", seq: 1, topic: "t", partition: 0, offset: randomInt(5), next_offset: 5, count: 5, bytes: payload.length };
      return randomInt(2) ? binary(damaged(header), payload) : binary(damaged(one), payload);
    }
    case 3:
      return randomBytes(randomInt(40));
    case 4:
    case 5:
      return damaged(one);
    default:
      return one;
  }
}

test(`fuzz: ${ROUNDS} servers that send nonsense`, async () => {
  let closedCount = 0;
  for (let round = 0; round < ROUNDS; round++) {
    const server = new FakeServer();
    server.answers.subscribe = ({ mode }) => ({ mode, partitions: { t: [0, 1] }, cursor: mode === "queue" ? undefined : "t:0=0;t:1=0" });
    const states = [];
    const client = await connect("http://host", { WebSocket: server.Socket, binary: true, lingerMs: 0, onState: (state, reason) => states.push([state, reason]) });
    const outcomes = [];
    const consume = async (options) => {
      try {
        for await (const message of client.subscribe({ topics: "t", ...options })) {
          void message.value;
          void message.ack?.();
        }
      } catch (error) {
        outcomes.push(error);
      }
    };
    const consumers = [consume({}), consume({ group: "g", commitIntervalMs: 1 }), consume({ group: "q", mode: "queue" })];
    const sends = [1, 2].map((value) => client.produce("t", { value }).catch((error) => outcomes.push(error)));
    await settled(2);
    for (let step = 0; step < 12; step++) {
      server.last.push(anyFrame());
      if (randomInt(4) === 0) await settled(1);
    }
    if (client.state === "closed") closedCount++;
    server.last.cut(4500);
    await Promise.all([...consumers, ...sends]);
    for (const error of outcomes) assert.ok(error instanceof MqError, `${error?.stack}`);
    assert.equal(states.at(-1)[0], "closed");
    assert.ok(states.at(-1)[1] instanceof MqError);
  }
  assert.ok(closedCount > ROUNDS / 4 && closedCount < ROUNDS, `${closedCount} of ${ROUNDS} were closed for what they sent`);
});

test("fuzz: answers to hello that are none are refused, or taken as no session", async () => {
  for (let round = 0; round < ROUNDS; round++) {
    const server = new FakeServer();
    server.answers.hello = (command) => ({ ...damaged(server.hello(command)), ...(randomInt(3) ? {} : { resumed: true, subs: pick(VALUES) }) });
    const opening = connect("http://host", { WebSocket: server.Socket });
    const error = await Promise.race([opening.then(() => null, (e) => e), settled(10).then(() => "nothing")]);
    if (error !== null) assert.ok(error instanceof MqError, `${String(error)}`);
    await opening.then((client) => client.close()).catch(() => {});
  }
});
