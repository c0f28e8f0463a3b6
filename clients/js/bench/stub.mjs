/**
 * A server that does nothing but talk the protocol, as fast as Node can: frames that are made once are sent again and
 * again, within the credit that the client grants. A process of its own, so that its work is not taken for the client's.
 * `process.send` tells the port. The checksums of its batches are zero: the client does not look at them.
 */
import { createHash } from "node:crypto";
import { createServer } from "node:http";
import { batch, joined } from "../test/batches.mjs";
import { binary } from "../test/fake_server.mjs";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const VALUE = "v".repeat(98); // 100 bytes of JSON with its quotes
const JSON_RECORDS = 256;
const BATCH_RECORDS = 2_000;
const BUFFERED_BYTES_MAX = 4 * 1024 * 1024;

function framed(opcode, payload) {
  const head = Buffer.alloc(payload.length < 126 ? 2 : payload.length < 65_536 ? 4 : 10);
  head[0] = 0x80 | opcode;
  if (head.length === 2) head[1] = payload.length;
  else if (head.length === 4) {
    head[1] = 126;
    head.writeUInt16BE(payload.length, 2);
  } else {
    head[1] = 127;
    head.writeBigUInt64BE(BigInt(payload.length), 2);
  }
  return Buffer.concat([head, payload]);
}

const json = (value) => framed(1, Buffer.from(JSON.stringify(value)));

/** Frame `seq` of a subscription: numbers change, so each is made; what they hold is made once. */
const kinds = {
  json: {
    count: JSON_RECORDS,
    frame(seq, offset) {
      const list = Array.from({ length: JSON_RECORDS }, (_, index) => {
        const at = offset + index;
        return { topic: "bench", key: `k${at % 1000}`, value: VALUE, partition: 0, offset: at, timestamp: 1_795_258_151_218, store_timestamp: 1_795_258_151_219, cursor: `bench:0=${at + 1}` };
      });
      return json({ op: "messages", sub: "s1", seq, messages: list, bytes: JSON_RECORDS * 240, credit: 1000 });
    },
  },
  batch: {
    count: BATCH_RECORDS,
    frame(seq, offset) {
      const one = batch(offset, Array.from({ length: BATCH_RECORDS }, (_, n) => ({ key: `k${n % 1000}`, value: `"${VALUE}"`, timestamp: 1_795_258_151_218 + (n >> 5) })));
      const payload = joined(one);
      const header = { op: "batch", sub: "s1", seq, topic: "bench", partition: 0, offset, next_offset: offset + BATCH_RECORDS, count: BATCH_RECORDS, cursor: `bench:0=${offset + BATCH_RECORDS}`, bytes: payload.length, credit: 1000 };
      return framed(2, binary(header, payload));
    },
  },
};

const made = new Map();
/** All frames of `count` records, made once and kept: making them is no part of a measurement. */
function framesOf(kind, count) {
  const key = `${kind} ${count}`;
  if (!made.has(key)) {
    const { count: each, frame } = kinds[kind];
    made.set(key, Array.from({ length: Math.ceil(count / each) }, (_, n) => frame(n + 1, n * each)));
  }
  return made.get(key);
}

const server = createServer();
server.on("upgrade", (request, stream) => {
  const accept = createHash("sha1").update(request.headers["sec-websocket-key"] + GUID).digest("base64");
  stream.write(`HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ${accept}\r\nSec-WebSocket-Protocol: mq.v1.json\r\n\r\n`);
  stream.setNoDelay(true);
  stream.on("error", () => {});
  let received = Buffer.alloc(0);
  let flow = null; // what is being replayed
  let offset = 0;

  const pump = () => {
    while (flow !== null && flow.next < flow.frames.length && flow.credit >= flow.count && stream.writableLength < BUFFERED_BYTES_MAX) {
      stream.write(flow.frames[flow.next++]);
      flow.credit -= flow.count;
    }
  };
  stream.on("drain", pump);

  const take = (command) => {
    const answer = (fields) => command.id !== undefined && stream.write(json({ id: command.id, ok: true, ...fields }));
    switch (command.op) {
      case "hello":
        answer({ session: "sess", resumed: false, ping_ms: 25_000, grace_ms: 15_000, limits: { max_frame: 16 * 1024 * 1024, max_credit: 10_000, max_records: 10_000 } });
        break;
      case "subscribe": {
        const [kind, records] = command.topics[0].split("-");
        const frames = framesOf(kind, Number(records));
        answer({ mode: "reader", partitions: { bench: [0] }, cursor: "bench:0=0", epochs: {} });
        flow = { frames, next: 0, credit: command.credit, count: kinds[kind].count };
        pump();
        break;
      }
      case "permit":
        if (flow !== null) flow.credit += command.messages;
        pump();
        break;
      case "produce":
        answer({ acks: "flushed", offsets: command.records.map(() => ({ partition: 0, offset: offset++ })) });
        break;
      default:
        answer({});
    }
  };

  stream.on("data", (chunk) => {
    received = received.length === 0 ? chunk : Buffer.concat([received, chunk]);
    for (;;) {
      if (received.length < 6) return;
      let length = received[1] & 0x7f;
      let at = 2;
      if (length === 126) [length, at] = [received.readUInt16BE(2), 4];
      else if (length === 127) [length, at] = [Number(received.readBigUInt64BE(2)), 10];
      if (received.length < at + 4 + length) return;
      const opcode = received[0] & 0x0f;
      const mask = received.subarray(at, at + 4);
      const payload = Buffer.from(received.subarray(at + 4, at + 4 + length));
      for (let index = 0; index < length; index++) payload[index] ^= mask[index & 3];
      received = received.subarray(at + 4 + length);
      if (opcode === 1) take(JSON.parse(payload.toString()));
      else if (opcode === 8) stream.end(framed(8, payload));
    }
  });
});
server.listen(0, "127.0.0.1", () => process.send(server.address().port));
process.on("message", ([kind, count]) => {
  framesOf(kind, count);
  process.send("made");
});
process.on("disconnect", () => process.exit());
