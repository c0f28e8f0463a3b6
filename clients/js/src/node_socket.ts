/**
 * A WebSocket client for Node (RFC 6455), as far as this protocol needs it: Node 20 has none of its own.
 *
 * Frames are masked as the standard demands of clients; pings are answered; messages may come in fragments. No extension
 * is offered. What breaks the standard ends the connection with 1002, as does text that is no UTF-8 with 1007.
 */
import { createHash, randomBytes } from "node:crypto";
import { request as httpRequest } from "node:http";
import { request as httpsRequest } from "node:https";
import type { Duplex } from "node:stream";
import type { Socket } from "./socket.js";

const GUID = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const MESSAGE_BYTES_MAX = 256 * 1024 * 1024;
const CLOSE_TIMEOUT_MS = 2_000;
const TEXT = 1;
const BINARY = 2;
const CLOSE = 8;
const PING = 9;
const PONG = 10;

/** What the protocol closes with for bad credentials: trying again would not help. */
const UNAUTHORIZED = 4501;
/** Refusals of the request for a socket that may pass: time-out, too early, too many. */
const PASSING = new Set([408, 425, 429]);

const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export class NodeSocket implements Socket {
  binaryType = "arraybuffer";
  onopen: ((event: any) => void) | null = null;
  onmessage: ((event: { data: any }) => void) | null = null;
  onclose: ((event: { code: number; reason: string }) => void) | null = null;
  onerror: ((event: any) => void) | null = null;

  #stream: Duplex | null = null;
  #received: Buffer[] = [];
  #receivedBytes = 0;
  #neededBytes = 2;
  #fragments: Buffer[] = [];
  #fragmentBytes = 0;
  #opcode = 0;
  #isOver = false;
  #sentClose = false;

  constructor(url: string, protocols: string[]) {
    const target = new URL(url);
    const key = randomBytes(16).toString("base64");
    const make = target.protocol === "wss:" ? httpsRequest : httpRequest;
    target.protocol = target.protocol.replace("ws", "http");
    const request = make(target, {
      headers: {
        Connection: "Upgrade",
        Upgrade: "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": key,
        "Sec-WebSocket-Protocol": protocols.join(", "),
      },
    });
    request.on("upgrade", (response, stream, head) => {
      const accept = createHash("sha1").update(key + GUID).digest("base64");
      if (response.headers["sec-websocket-accept"] !== accept) {
        stream.destroy();
        this.#over(1002, "the server's answer is not to this request");
        return;
      }
      if (this.#isOver) {
        stream.destroy();
        return;
      }
      this.#stream = stream;
      (stream as unknown as { setNoDelay?: (on: boolean) => void }).setNoDelay?.(true);
      stream.on("data", (chunk: Buffer) => this.#feed(chunk));
      stream.on("error", () => {});
      stream.on("close", () => this.#over(1006, ""));
      this.onopen?.({});
      if (head.length > 0) this.#feed(head);
    });
    request.on("response", (response) => {
      response.resume();
      // Browsers show 1006 for any of these, and so go on trying.
      const status = response.statusCode ?? 0;
      const isFinal = status >= 400 && status < 500 && !PASSING.has(status);
      this.#over(isFinal ? UNAUTHORIZED : 1006, `HTTP ${status} instead of a WebSocket`);
    });
    request.on("error", (error) => {
      this.onerror?.(error);
      this.#over(1006, error.message);
    });
    request.end();
    this.#abort = () => request.destroy();
  }

  readonly #abort: () => void;

  get bufferedAmount(): number {
    return this.#stream?.writableLength ?? 0;
  }

  send(data: string | Uint8Array): void {
    if (typeof data === "string") this.#write(TEXT, Buffer.from(data));
    else this.#write(BINARY, data);
  }

  close(code = 1000, reason = ""): void {
    if (this.#stream === null) {
      this.#abort();
      this.#over(1006, "");
      return;
    }
    this.#sendClose(code, reason);
    setTimeout(() => this.#stream?.destroy(), CLOSE_TIMEOUT_MS).unref();
  }

  #sendClose(code: number, reason: string): void {
    if (this.#sentClose) return;
    const body = Buffer.alloc(2 + Buffer.byteLength(reason));
    body.writeUInt16BE(code);
    body.write(reason, 2);
    this.#write(CLOSE, body);
    this.#sentClose = true;
  }

  #write(opcode: number, payload: Uint8Array): void {
    const stream = this.#stream;
    if (stream === null || this.#sentClose || stream.destroyed) return;
    const length = payload.length;
    const extra = length < 126 ? 0 : length < 65_536 ? 2 : 8;
    const frame = Buffer.allocUnsafe(6 + extra + length);
    frame[0] = 0x80 | opcode;
    frame[1] = 0x80 | (extra === 0 ? length : extra === 2 ? 126 : 127);
    if (extra === 2) frame.writeUInt16BE(length, 2);
    else if (extra === 8) frame.writeBigUInt64BE(BigInt(length), 2);
    const mask = randomBytes(4);
    frame.set(mask, 2 + extra);
    const body = frame.subarray(6 + extra);
    body.set(payload);
    masked(body, mask);
    stream.write(frame);
  }

  #feed(chunk: Buffer): void {
    this.#received.push(chunk);
    this.#receivedBytes += chunk.length;
    if (this.#receivedBytes < this.#neededBytes) return;
    let bytes = this.#received.length === 1 ? chunk : Buffer.concat(this.#received, this.#receivedBytes);
    let at = 0;
    while (!this.#isOver) {
      const left = bytes.length - at;
      this.#neededBytes = 2;
      if (left < 2) break;
      const first = bytes[at]!;
      const second = bytes[at + 1]!;
      let length = second & 0x7f;
      const extra = length === 126 ? 2 : length === 127 ? 8 : 0;
      this.#neededBytes = 2 + extra;
      if (left < this.#neededBytes) break;
      if (extra === 2) length = bytes.readUInt16BE(at + 2);
      else if (extra === 8) length = Number(bytes.readBigUInt64BE(at + 2));
      if (second & 0x80 || first & 0x70 || length > MESSAGE_BYTES_MAX) return this.#broken(1002, "a frame that is not legal");
      this.#neededBytes = 2 + extra + length;
      if (left < this.#neededBytes) break;
      const payload = bytes.subarray(at + 2 + extra, at + this.#neededBytes);
      at += this.#neededBytes;
      this.#frame(first & 0x0f, (first & 0x80) !== 0, payload);
    }
    bytes = bytes.subarray(at);
    this.#received = bytes.length > 0 ? [bytes] : [];
    this.#receivedBytes = bytes.length;
  }

  #frame(opcode: number, isFinal: boolean, payload: Buffer): void {
    if (opcode >= 8) {
      if (!isFinal || payload.length > 125) return this.#broken(1002, "a control frame that is not legal");
      if (opcode === PING) this.#write(PONG, payload);
      else if (opcode === CLOSE) {
        const code = payload.length >= 2 ? payload.readUInt16BE(0) : 1005;
        this.#sendClose(code === 1005 ? 1000 : code, "");
        this.#stream?.end();
        this.#over(code, payload.subarray(2).toString());
      } else if (opcode !== PONG) this.#broken(1002, "an unknown control frame");
      return;
    }
    if ((opcode === 0) === (this.#opcode === 0) || opcode > BINARY) return this.#broken(1002, "a fragment out of place");
    if (opcode !== 0) this.#opcode = opcode;
    if (isFinal && this.#fragments.length === 0) return this.#message(payload);
    this.#fragments.push(Buffer.from(payload)); // a copy: the chunk it lies in is let go
    this.#fragmentBytes += payload.length;
    if (this.#fragmentBytes > MESSAGE_BYTES_MAX) return this.#broken(1009, "a message that is too large");
    if (isFinal) {
      const whole = Buffer.concat(this.#fragments, this.#fragmentBytes);
      this.#fragments = [];
      this.#fragmentBytes = 0;
      this.#message(whole);
    }
  }

  #message(payload: Buffer): void {
    const isText = this.#opcode === TEXT;
    this.#opcode = 0;
    if (!isText) {
      this.onmessage?.({ data: new Uint8Array(payload.buffer, payload.byteOffset, payload.length) });
      return;
    }
    let plain: string;
    try {
      plain = decoder.decode(payload);
    } catch {
      return this.#broken(1007, "text that is no UTF-8");
    }
    this.onmessage?.({ data: plain });
  }

  #broken(code: number, reason: string): void {
    this.#sendClose(code, reason);
    this.#stream?.end();
    this.#over(code, reason);
  }

  #over(code: number, reason: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.onclose?.({ code, reason });
  }
}

/** Mask bytes in place, four at a time where they lie so. */
function masked(bytes: Buffer, mask: Buffer): void {
  const { length } = bytes;
  let at = 0;
  for (; at < length && (bytes.byteOffset + at) % 4 !== 0; at++) bytes[at]! ^= mask[at & 3]!;
  const wordCount = (length - at) >> 2;
  if (wordCount > 0) {
    const words = new Uint32Array(bytes.buffer, bytes.byteOffset + at, wordCount);
    const turned = Uint8Array.from({ length: 4 }, (_, index) => mask[(at + index) & 3]!);
    const word = new Uint32Array(turned.buffer)[0]!;
    for (let index = 0; index < wordCount; index++) words[index]! ^= word;
    at += wordCount * 4;
  }
  for (; at < length; at++) bytes[at]! ^= mask[at & 3]!;
}
