// npm's `ws` against a running server: produce, all three modes, binary frames, resume after a cut, goaway.
// Says "stop" when the server is to be stopped, waits for a line, and ends with "ok".
"use strict";

const WebSocket = require("ws");
const assert = require("node:assert");
const readline = require("node:readline");

const url = process.argv[2].replace("http:", "ws:") + "/ws/v1";
const COUNT = 200;

class Socket {
  constructor(ws) {
    this.ws = ws;
    this.pushes = [];
    this.waiting = new Map();
    this.wake = () => {};
    this.closed = new Promise((resolve) => ws.on("close", (code) => resolve(code)));
    this.nextId = 0;
    ws.on("message", (data, isBinary) => {
      let frame;
      if (isBinary) {
        const end = 4 + data.readUInt32BE(0);
        frame = { ...JSON.parse(data.subarray(4, end)), payload: data.subarray(end) };
      } else frame = JSON.parse(data);
      if ("id" in frame) this.waiting.get(frame.id)?.(frame);
      else {
        this.pushes.push(frame);
        this.wake();
      }
    });
  }

  static open(options) {
    return new Promise((resolve, reject) => {
      const ws = new WebSocket(url, ["mq.v1.json"], options);
      ws.on("open", () => {
        assert.equal(ws.protocol, "mq.v1.json");
        resolve(new Socket(ws));
      });
      ws.on("error", (error) => {
        console.error(error);
        reject(error);
      });
    });
  }

  async ask(command) {
    const id = ++this.nextId;
    const answer = new Promise((resolve) => this.waiting.set(id, resolve));
    this.ws.send(JSON.stringify({ id, ...command }));
    const frame = await answer;
    assert.equal(frame.ok, true, JSON.stringify(frame));
    return frame;
  }

  async push(op, sub) {
    for (;;) {
      const at = this.pushes.findIndex((frame) => frame.op === op && (sub === undefined || frame.sub === sub));
      if (at >= 0) return this.pushes.splice(at, 1)[0];
      await new Promise((resolve) => (this.wake = resolve));
    }
  }
}

async function collect(socket, sub, count, seen = { seq: 0 }) {
  const values = [];
  while (values.length < count) {
    const frame = await socket.push("messages", sub);
    assert.equal(frame.seq, seen.seq + 1);
    seen.seq = frame.seq;
    for (const message of frame.messages) values.push(message);
  }
  return values;
}

function numbers(messages) {
  return messages.map((message) => message.value).sort((a, b) => a - b);
}

async function main() {
  const everything = [...Array(COUNT).keys()];
  let socket = await Socket.open({ perMessageDeflate: true }); // large frames come compressed
  const hello = await socket.ask({ op: "hello", client: "npm ws" });
  const records = everything.map((n) => ({ key: `k${n % 7}`, value: n }));
  assert.equal((await socket.ask({ op: "produce", topic: "orders", records })).offsets.length, COUNT);

  const modes = {
    r: { from: "earliest" },
    st: { mode: "stream", group: "st", start: "earliest" },
    q: { mode: "queue", group: "qu", start: "earliest" },
  };
  for (const [sub, fields] of Object.entries(modes)) await socket.ask({ op: "subscribe", sub, topics: ["orders"], batch: 20, ...fields });

  // Take one frame of each, and lose the connection with the others on their way.
  const seen = {}, got = {};
  for (const sub of Object.keys(modes)) {
    seen[sub] = { seq: 0 };
    got[sub] = await collect(socket, sub, 1, seen[sub]);
  }
  socket.ws.terminate();
  await socket.closed;

  socket = await Socket.open();
  const resumed = await socket.ask({
    op: "hello", resume: hello.session, seen: Object.fromEntries(Object.entries(seen).map(([sub, { seq }]) => [sub, seq])),
  });
  assert.equal(resumed.resumed, true);
  for (const sub of Object.keys(modes)) {
    got[sub] = got[sub].concat(await collect(socket, sub, COUNT - got[sub].length, seen[sub]));
    assert.deepEqual(numbers(got[sub]), everything, `${sub}: each once`);
  }
  const acked = await socket.ask({ op: "ack", sub: "q", receipts: got.q.map((message) => message.receipt) });
  assert.ok(acked.results.every((result) => result.ok));
  await socket.ask({ op: "ack", sub: "st", cursor: `orders:0=${got.st.filter((m) => m.partition === 0).length}` });

  // Binary frames, on a socket of their own.
  const binary = await Socket.open();
  await binary.ask({ op: "hello", binary: true });
  const header = Buffer.from(JSON.stringify({ id: 99, op: "produce", topic: "orders", records: [{ key_len: 1, value_len: 3 }] }));
  const length = Buffer.alloc(4);
  length.writeUInt32BE(header.length);
  const answer = new Promise((resolve) => binary.waiting.set(99, resolve));
  binary.ws.send(Buffer.concat([length, header, Buffer.from([1, 0xff, 0xfe, 0xfd])]));
  const place = (await answer).offsets[0];
  await binary.ask({ op: "subscribe", sub: "b", topics: ["orders"], from: { orders: { [place.partition]: place.offset } } });
  for (;;) {
    const frame = await binary.push("messages", "b");
    if (frame.messages[0].partition !== place.partition) continue;
    assert.deepEqual([...frame.payload.subarray(0, 4)], [1, 0xff, 0xfe, 0xfd]);
    break;
  }
  binary.ws.close(1000);

  console.log("stop");
  const goaway = await socket.push("goaway");
  assert.equal(goaway.resume, hello.session);
  assert.equal(await socket.closed, 4001);
  await new Promise((resolve) => readline.createInterface({ input: process.stdin }).once("line", resolve));
  console.log("ok");
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
