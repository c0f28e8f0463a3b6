/**
 * A server in this process: sockets whose other end is the test. Says hello by itself; all else is scripted.
 *
 *     const server = new FakeServer();
 *     const client = await connect("http://host", { WebSocket: server.Socket });
 *     server.last.commands("subscribe")      what the client has sent on the last socket
 *     server.last.send({ op: "messages", … })
 */
export class FakeServer {
  sockets = [];
  /** Sockets are opened, and their hello answered, at once. */
  isUp = true;
  sessions = 0;
  /** What a hello that resumes is answered with: fields of the answer; null: the session is unknown. */
  resumed = () => null;
  /** Answers commands: op -> (command, socket) => fields of the answer, or undefined for none. */
  answers = { unsubscribe: () => ({}) };
  limits = { max_frame: 1024 * 1024, max_credit: 10_000, max_records: 10_000 };
  pingMs = 25_000;

  constructor() {
    const server = this;
    this.Socket = class extends FakeSocket {
      constructor(url, protocols) {
        super(server, url, protocols);
      }
    };
  }

  get last() {
    return this.sockets.at(-1);
  }

  hello(command) {
    const kept = command.resume === undefined ? null : this.resumed(command);
    const session = kept === null ? `sess_${++this.sessions}` : command.resume;
    return {
      session, resumed: kept !== null, binary: command.binary, server: "fake", ping_ms: this.pingMs, grace_ms: 15_000,
      limits: this.limits, ...kept,
    };
  }
}

class FakeSocket {
  binaryType = "";
  bufferedAmount = 0;
  onopen = null;
  onmessage = null;
  onclose = null;
  onerror = null;
  /** Commands, in the order they came; those in binary frames with their `payload`. */
  received = [];
  closedWith = null;

  constructor(server, url, protocols) {
    Object.assign(this, { server, url, protocols });
    server.sockets.push(this);
    setImmediate(() => (server.isUp ? this.onopen?.({}) : this.onclose?.({ code: 1006, reason: "" })));
  }

  send(data) {
    if (this.closedWith !== null) return;
    const command = typeof data === "string" ? JSON.parse(data) : readBinary(data);
    this.received.push(command);
    const answer = command.op === "hello" ? (this.server.answers.hello ?? ((c) => this.server.hello(c))) : this.server.answers[command.op];
    if (answer === undefined || command.id === undefined) return;
    // As a network does: not within the call. What is sent behind an answer arrives with it.
    setImmediate(() => {
      const fields = answer(command, this);
      if (fields === undefined) return;
      this.push({ id: command.id, ok: fields.ok ?? true, ...fields });
      this.server.behind?.(command, this);
    });
  }

  close(code) {
    this.closedWith ??= code;
  }

  commands(op) {
    return this.received.filter((command) => command.op === op);
  }

  /** Send to the client: an object as text, a string or bytes as they are. */
  push(frame) {
    const data = typeof frame === "string" || frame instanceof Uint8Array ? frame : JSON.stringify(frame);
    this.onmessage?.({ data });
  }

  /** Close from the server's side; 1006 is a connection that was cut. */
  cut(code = 1006, reason = "") {
    this.closedWith ??= code;
    this.onclose?.({ code, reason });
  }
}

function readBinary(bytes) {
  const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(4, 4 + length)));
  return { ...header, payload: bytes.subarray(4 + length) };
}

/** A binary frame. */
export function binary(header, payload) {
  const head = new TextEncoder().encode(JSON.stringify(header));
  const frame = new Uint8Array(4 + head.length + payload.length);
  new DataView(frame.buffer).setUint32(0, head.length);
  frame.set(head, 4);
  frame.set(payload, 4 + head.length);
  return frame;
}

/** Let everything happen that waits for nothing outside. */
export async function settled(turns = 6) {
  for (let turn = 0; turn < turns; turn++) await new Promise((resolve) => setImmediate(resolve));
}

/** `count` messages of a partition, from `offset` on. */
export function messages(topic, partition, offset, count, more = {}) {
  return Array.from({ length: count }, (_, index) => ({
    topic, partition, offset: offset + index, timestamp: 1, store_timestamp: 2, value: offset + index,
    cursor: `${topic}:${partition}=${offset + index + 1}`, ...more,
  }));
}

/** A frame of messages for a subscription. */
export function frame(sub, seq, list) {
  return { op: "messages", sub, seq, messages: list, bytes: list.length * 10, credit: 0 };
}
