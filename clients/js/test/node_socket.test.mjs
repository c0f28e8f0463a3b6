import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { test } from "node:test";
import { NodeSocket } from "../build/node_socket.js";
import { randomBytes, randomInt } from "./random.mjs";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/** A frame as a server writes it: no mask. */
function written(opcode, payload, { isFinal = true, flags = 0 } = {}) {
  const body = Buffer.from(payload);
  const head = body.length < 126 ? Buffer.from([0, body.length]) : body.length < 65536 ? Buffer.from([0, 126, body.length >> 8, body.length & 255]) : Buffer.alloc(10);
  if (body.length >= 65536) {
    head[1] = 127;
    head.writeBigUInt64BE(BigInt(body.length), 2);
  }
  head[0] = (isFinal ? 0x80 : 0) | flags | opcode;
  return Buffer.concat([head, body]);
}

/** Reads the client's frames from a stream: `next()` resolves with `{ opcode, payload }`. */
function frames(stream) {
  let bytes = Buffer.alloc(0);
  const waiting = [];
  const look = () => {
    while (waiting.length > 0 && bytes.length >= 6) {
      assert.ok(bytes[1] & 0x80, "clients mask");
      let length = bytes[1] & 0x7f;
      let at = 2;
      if (length === 126) [length, at] = [bytes.readUInt16BE(2), 4];
      else if (length === 127) [length, at] = [Number(bytes.readBigUInt64BE(2)), 10];
      if (bytes.length < at + 4 + length) return;
      const mask = bytes.subarray(at, at + 4);
      const payload = Buffer.from(bytes.subarray(at + 4, at + 4 + length).map((byte, index) => byte ^ mask[index & 3]));
      const opcode = bytes[0] & 0x0f;
      bytes = bytes.subarray(at + 4 + length);
      waiting.shift()({ opcode, payload });
    }
  };
  stream.on("data", (chunk) => {
    bytes = Buffer.concat([bytes, chunk]);
    look();
  });
  return { next: () => new Promise((resolve) => (waiting.push(resolve), look())) };
}

/** A server of one socket; both ends of it. */
async function pair(answer = {}) {
  const http = createServer((_, response) => response.writeHead(answer.status ?? 404).end());
  let accepted;
  const stream = new Promise((resolve) => (accepted = resolve));
  if (answer.status === undefined) {
    http.on("upgrade", (request, raw) => {
      const accept = answer.accept ?? createHash("sha1").update(request.headers["sec-websocket-key"] + GUID).digest("base64");
      raw.on("error", () => {});
      raw.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: mq.v1.json\r\n\r\n`);
      if (answer.behind) raw.write(answer.behind);
      accepted(raw);
    });
  }
  await new Promise((resolve) => http.listen(0, "127.0.0.1", resolve));
  const socket = new NodeSocket(`ws://127.0.0.1:${http.address().port}/ws/v1`, ["mq.v1.json"]);
  const received = [];
  let wake = () => {};
  socket.onmessage = ({ data }) => {
    received.push(data);
    wake();
  };
  const closed = new Promise((resolve) => (socket.onclose = resolve));
  const opened = new Promise((resolve) => (socket.onopen = resolve));
  const messages = async (count) => {
    while (received.length < count) await new Promise((resolve) => (wake = resolve));
    return received;
  };
  const end = async () => {
    socket.close();
    if (answer.status === undefined) (await stream).destroy(); // the server has let go of it
    http.closeAllConnections();
    await new Promise((resolve) => http.close(resolve));
  };
  return { socket, stream, opened, closed, messages, received, end };
}

test("text and bytes of every length go both ways", async () => {
  const { socket, stream, opened, messages, end } = await pair();
  const raw = await stream;
  await opened;
  const reader = frames(raw);
  for (const length of [0, 1, 125, 126, 127, 65_535, 65_536, 300_000]) {
    const bytes = randomBytes(length);
    socket.send(bytes);
    const got = await reader.next();
    assert.equal(got.opcode, 2);
    assert.deepEqual(new Uint8Array(got.payload), bytes);
  }
  socket.send("grüße 🐦");
  assert.equal((await reader.next()).payload.toString(), "grüße 🐦");
  raw.write(Buffer.concat([written(1, "grüße 🐦"), written(2, Buffer.alloc(70_000, 7)), written(1, "")]));
  const [text, bytes, empty] = await messages(3);
  assert.equal(text, "grüße 🐦");
  assert.equal(bytes.length, 70_000);
  assert.equal(empty, "");
  await end();
});

test("messages come whole, however the network cuts them, in fragments, with pings between", async () => {
  const { stream, opened, messages, end } = await pair();
  const raw = await stream;
  await opened;
  const reader = frames(raw);
  const parts = [
    written(1, "a".repeat(200), { isFinal: false }), written(9, "ping"), written(0, Buffer.from("é").subarray(0, 1), { isFinal: false }),
    written(0, Buffer.from("é").subarray(1)), written(2, randomBytes(70_000)), written(1, "end"),
  ];
  const whole = Buffer.concat(parts);
  for (let at = 0; at < whole.length; ) {
    const length = at < 500 ? 1 + randomInt(3) : 1 + randomInt(9000);
    raw.write(whole.subarray(at, at + length));
    at += length;
    await new Promise((resolve) => setImmediate(resolve));
  }
  const [text, bytes, end_] = await messages(3);
  assert.equal(text, "a".repeat(200) + "é");
  assert.deepEqual(Buffer.from(bytes), parts[4].subarray(10));
  assert.equal(end_, "end");
  assert.deepEqual(await reader.next(), { opcode: 10, payload: Buffer.from("ping") });
  await end();
});

test("what comes in the packet of the handshake is not lost", async () => {
  const { messages, end } = await pair({ behind: written(1, "first") });
  assert.deepEqual(await messages(1), ["first"]);
  await end();
});

test("a close is answered with its code, and told; a cut is 1006", async () => {
  const closing = await pair();
  const raw = await closing.stream;
  await closing.opened;
  const reader = frames(raw);
  raw.write(written(8, Buffer.concat([Buffer.from([4001 >> 8, 4001 & 255]), Buffer.from("bye")])));
  assert.deepEqual(await closing.closed, { code: 4001, reason: "bye" });
  const { opcode, payload } = await reader.next();
  assert.deepEqual([opcode, payload.readUInt16BE(0)], [8, 4001]);
  closing.socket.send("too late");
  await closing.end();

  const cut = await pair();
  (await cut.stream).destroy();
  assert.equal((await cut.closed).code, 1006);
  await cut.end();
});

test("what breaks the standard ends the connection with its code", async () => {
  const masked = written(1, "x");
  masked[1] |= 0x80;
  const tooLong = Buffer.concat([Buffer.from([0x82, 127]), Buffer.from([0, 0, 1, 0, 0, 0, 0, 0])]);
  const cases = [
    [1002, masked], [1002, written(1, "x", { flags: 0x40 })], [1002, written(0, "x")], [1002, written(3, "x")], [1002, written(11, "x")],
    [1002, written(9, "x".repeat(126))], [1002, written(9, "x", { isFinal: false })], [1002, tooLong],
    [1002, Buffer.concat([written(1, "x", { isFinal: false }), written(1, "y")])], [1007, written(1, Buffer.from([0xc3, 0x28]))],
  ];
  for (const [code, bytes] of cases) {
    const { stream, opened, closed, received, end } = await pair();
    const raw = await stream;
    await opened;
    const reader = frames(raw);
    raw.write(bytes);
    assert.equal((await closed).code, code, bytes.toString("hex").slice(0, 40));
    const told = await reader.next();
    assert.deepEqual([told.opcode, told.payload.readUInt16BE(0)], [8, code]);
    assert.deepEqual(received, []);
    await end();
  }
});

test("fuzz: random bytes from the server end in messages or a close, never in an error", async () => {
  for (let round = 0; round < 100; round++) {
    const { stream, opened, closed, end } = await pair();
    const raw = await stream;
    await opened;
    for (let chunk = 0; chunk < 5; chunk++) raw.write(randomBytes(1 + randomInt(300)));
    raw.end();
    const { code } = await closed;
    assert.ok(Number.isInteger(code));
    await end();
  }
});

test("an answer that is no WebSocket: final where trying again does not help", async () => {
  for (const [status, code] of [[401, 4501], [403, 4501], [404, 4501], [400, 4501], [408, 1006], [425, 1006], [429, 1006], [200, 1006], [500, 1006], [503, 1006]]) {
    const { closed, end } = await pair({ status });
    const event = await closed;
    assert.equal(event.code, code, `${status}`);
    assert.match(event.reason, new RegExp(`HTTP ${status}`));
    await end();
  }
  const { closed, end } = await pair({ accept: "nonsense" });
  assert.equal((await closed).code, 1002);
  await end();
});

test("nobody there: 1006 with the reason", async () => {
  const socket = new NodeSocket("ws://127.0.0.1:1/", []);
  const { code, reason } = await new Promise((resolve) => (socket.onclose = resolve));
  assert.equal(code, 1006);
  assert.match(reason, /ECONNREFUSED/);
});
