/**
 * Sending: records that are sent within `lingerMs` go together, in batches bounded by count and bytes; each caller gets
 * the receipts of its own records. What waits or is on its way is bounded: beyond that `send` rejects at once.
 *
 * A record is encoded when it is sent: it may be changed afterwards, and what JSON cannot say is told to its sender alone.
 *
 * Invariants
 *     P1  the records of one `send` travel in one command: all of them are stored, or none
 *     P2  nothing is stored twice. What may have been stored is sent again only if every record of it carries a `msgId`
 *         (or the client is `idempotent`, which makes them): then the server knows what it has. Any other is rejected
 *         with ConnectionLost
 *     P3  sends to one topic are stored in the order they were made, but for those that are refused and sent again
 */
import { MqError, QueueFull, Refused, Undecodable } from "./errors.js";
import type { Connection } from "./connection.js";
import { arrayOf, binaryFrame, objectOf, toBase64, utf8, type Fields } from "./frames.js";

/** Room in a frame for what is not records. */
const COMMAND_BYTES = 4096;
const FRAME_BYTES_MAX = 1024 * 1024;
const RETRY_MS = 500;
/** The store has stopped: what was sent may have been stored. */
const READ_ONLY = 50350;
/** Refusals that are about the whole command: no such topic, no such right. */
const OF_ALL = new Set([401, 403, 404, 40101, 40301, 40401]);

export interface ProduceRecord {
  /** JSON, or bytes. */
  key?: unknown;
  /** JSON, or bytes; null is a tombstone. */
  value: unknown;
  partition?: number;
  headers?: Record<string, string | Uint8Array | null>;
  /** Event time, epoch ms. */
  timestamp?: number;
  tag?: string;
  /** Deliver so long after the server took it; excludes `deliverAt`. */
  delayMs?: number;
  /** Deliver at a time: epoch ms, a Date, or RFC 3339. */
  deliverAt?: number | Date | string;
  /** A name for the schedule of a delayed record, unique in its topic while it is pending. */
  scheduleKey?: string;
  /** Groups with `fifo` hand out the messages of one message group one after the other. */
  messageGroup?: string;
  /** Light queues that it is in as well: inboxes, rooms. */
  queues?: string[];
  /** A second record of this id within the server's window is not stored; its receipt says `duplicate`. */
  msgId?: string;
}

export interface Receipt {
  partition: number;
  /** null while the record is scheduled. */
  offset: number | null;
  /** Of a delayed record: what `http.cancelSchedule` and its like take. */
  scheduleId: string | null;
  /** Of a delayed record, epoch ms. */
  deliverAt: number | null;
  duplicate: boolean;
  /** How safe the record is: the level that was reached. */
  acks: "flushed" | "written";
}

export interface ProducerOptions {
  /** How long a record waits for company. Default 2. */
  lingerMs: number;
  /** Records of a command that has several sends. Default 1,000. */
  batchRecords: number;
  /** The same in bytes. Default 1 MiB. */
  batchBytes: number;
  /** Records that may wait or be on their way. Default 20,000. */
  recordsMax: number;
  /** The same in bytes. Default 64 MiB. */
  bytesMax: number;
  /** Give each record an id, so that a send is safe to repeat when its answer was lost. Default false. */
  idempotent: boolean;
  /** How long a send that the server could not take for now (full disk, overload, rate limit) is tried again. Default 30,000. */
  retryMs: number;
  /** What a receipt promises: `flushed` (on disk, the default) or `written`. */
  acks?: "flushed" | "written" | undefined;
}

export const PRODUCER_DEFAULTS: ProducerOptions = {
  lingerMs: 2,
  batchRecords: 1_000,
  batchBytes: 1024 * 1024,
  recordsMax: 20_000,
  bytesMax: 64 * 1024 * 1024,
  idempotent: false,
  retryMs: 30_000,
};

/** Fields that go as they are, and what the protocol calls them. */
const NAMES = [
  ["partition", "partition"],
  ["timestamp", "timestamp"],
  ["tag", "tag"],
  ["delayMs", "delay_ms"],
  ["messageGroup", "message_group"],
  ["queues", "queues"],
  ["scheduleKey", "schedule_key"],
  ["msgId", "msg_id"],
] as const;

/** The records of one `send`, as they go on the wire. */
interface Call {
  /** JSON objects with commas between them. */
  text: string;
  parts: Uint8Array[];
  count: number;
  bytes: number;
  repeatable: boolean;
  /** Its receipts are those from `at` on. */
  resolve: (receipts: readonly Receipt[], at: number) => void;
  reject: (error: Error) => void;
}

/** Calls that go together. `form`: how values are written. Another form begins another batch (P3). */
interface Batch {
  topic: string;
  form: Form;
  calls: Call[];
  count: number;
  bytes: number;
  timer: ReturnType<typeof setTimeout> | undefined;
}

type Form = "json" | "payload";

export class Producer {
  readonly #filling = new Map<string, Batch>(); // by topic
  readonly #onTheirWay = new Set<Promise<void>>();
  #waitingRecords = 0;
  #waitingBytes = 0;
  #roomWaiters: (() => void)[] = [];
  readonly #prefix = [...crypto.getRandomValues(new Uint8Array(9))].map((byte) => byte.toString(36)).join("");
  #nextMsgId = 1;

  constructor(
    private readonly connection: Connection,
    private readonly options: ProducerOptions,
    private readonly binary: boolean,
  ) {}

  /** Receipts in the order of the records. Rejects with Refused, ConnectionLost, QueueFull, Closed, MqError. */
  send(topic: string, records: readonly ProduceRecord[]): Promise<Receipt[]> {
    if (records.length === 0) return Promise.resolve([]);
    return new Promise((resolve, reject) => {
      this.#take(topic, records, (receipts, at) => resolve(receipts.slice(at, at + records.length)), reject);
    });
  }

  /** The same for one record. */
  sendOne(topic: string, record: ProduceRecord): Promise<Receipt> {
    return new Promise((resolve, reject) => {
      this.#take(topic, [record], (receipts, at) => resolve(receipts[at]!), reject);
    });
  }

  /** Raises what is wrong with the records, or that there is no room for them. */
  #take(topic: string, records: readonly ProduceRecord[], resolve: Call["resolve"], reject: Call["reject"]): void {
    const isBytes = records.some(({ key, value }) => key instanceof Uint8Array || value instanceof Uint8Array);
    const form = isBytes && this.binary ? "payload" : "json";
    const call: Call = { text: "", parts: [], count: records.length, bytes: 0, repeatable: true, resolve, reject };
    for (const record of records) this.#add(call, record, form);
    call.bytes = call.text.length;
    for (const part of call.parts) call.bytes += part.length;
    this.#checkSize(call);
    this.#checkRoom(call);
    this.#waitingRecords += call.count;
    this.#waitingBytes += call.bytes;
    this.#join(topic, form, call);
  }

  /** Resolves when another send would be taken. */
  async room(): Promise<void> {
    while (this.isFull) await new Promise<void>((resolve) => this.#roomWaiters.push(resolve));
  }

  get isFull(): boolean {
    return this.#waitingRecords >= this.options.recordsMax || this.#waitingBytes >= this.options.bytesMax;
  }

  /** Send what waits for company, and resolve when everything is answered. */
  async flush(): Promise<void> {
    for (const batch of [...this.#filling.values()]) this.#depart(batch);
    while (this.#onTheirWay.size > 0) await Promise.allSettled(this.#onTheirWay);
  }

  #add(call: Call, record: ProduceRecord, form: Form): void {
    const { key, value, headers, deliverAt } = record;
    const fields: Fields = {};
    // A key that is no bytes stays JSON: how it is stored is a setting of the topic.
    if (!(key instanceof Uint8Array) && key != null) fields["key"] = key;
    if (form === "json") {
      if (key instanceof Uint8Array) fields["key_b64"] = toBase64(key);
      if (value instanceof Uint8Array) fields["value_b64"] = toBase64(value);
      else fields["value"] = value ?? null;
    } else {
      const parts = [key instanceof Uint8Array ? key : null, bytesOf(value)];
      [fields["key_len"], fields["value_len"]] = parts.map((part) => part && part.length);
      for (const part of parts) if (part !== null) call.parts.push(part);
    }
    for (const [name, written] of NAMES) if (record[name] !== undefined) fields[written] = record[name];
    if (headers !== undefined) fields["headers"] = headersOf(headers);
    if (deliverAt !== undefined) fields["deliver_at"] = deliverAt instanceof Date ? deliverAt.getTime() : deliverAt;
    if (record.msgId === undefined && this.options.idempotent) fields["msg_id"] = `${this.#prefix}-${this.#nextMsgId++}`;
    if (fields["msg_id"] === undefined) call.repeatable = false;
    const text = JSON.stringify(fields);
    call.text = call.text === "" ? text : `${call.text},${text}`;
  }

  /** A frame that is too large would end the connection, and that of everything else on it. */
  #checkSize(call: Call): void {
    const limit = this.#frameBytesMax - COMMAND_BYTES;
    let { bytes } = call;
    if (bytes * 3 > limit) bytes += utf8(call.text).length - call.text.length; // a character has up to three bytes
    if (bytes > limit) throw new MqError(`${bytes} bytes in one send; the server takes ${limit}`);
  }

  #checkRoom(call: Call): void {
    const { recordsMax, bytesMax } = this.options;
    if (this.#waitingRecords === 0) return;
    if (this.#waitingRecords + call.count <= recordsMax && this.#waitingBytes + call.bytes <= bytesMax) return;
    throw new QueueFull(`${this.#waitingRecords} records (${this.#waitingBytes} bytes) wait to be sent: await client.room()`);
  }

  get #frameBytesMax(): number {
    return Number(this.connection.limits["max_frame"] ?? FRAME_BYTES_MAX);
  }

  #join(topic: string, form: Form, call: Call): void {
    const { batchRecords, lingerMs } = this.options;
    const batchBytes = Math.min(this.options.batchBytes, (this.#frameBytesMax - COMMAND_BYTES) / 3);
    let batch = this.#filling.get(topic);
    const isLarger = batch && (batch.count + call.count > batchRecords || batch.bytes + call.bytes > batchBytes);
    if (batch !== undefined && (isLarger || batch.form !== form)) {
      this.#depart(batch);
      batch = undefined;
    }
    if (batch === undefined) {
      const made: Batch = { topic, form, calls: [], count: 0, bytes: 0, timer: undefined };
      made.timer = setTimeout(() => this.#depart(made), lingerMs);
      this.#filling.set(topic, made);
      batch = made;
    }
    batch.calls.push(call);
    batch.count += call.count;
    batch.bytes += call.bytes;
    if (batch.count >= batchRecords || batch.bytes >= batchBytes) this.#depart(batch);
  }

  #depart(batch: Batch): void {
    if (this.#filling.get(batch.topic) === batch) this.#filling.delete(batch.topic);
    clearTimeout(batch.timer);
    const sending = this.#transmit(batch.topic, batch.form, batch.calls, Date.now() + this.options.retryMs);
    this.#onTheirWay.add(sending);
    void sending.then(() => this.#onTheirWay.delete(sending));
  }

  /** Send, until all calls are settled. Never rejects. */
  async #transmit(topic: string, form: Form, calls: readonly Call[], until: number): Promise<void> {
    try {
      const answer = await this.connection.send({
        encode: (id) => this.#frame(id, topic, form, calls),
        repeatable: calls.every((call) => call.repeatable),
      });
      const offsets = arrayOf(answer["offsets"]).map((written) => receiptOf(written, answer["acks"]));
      const count = calls.reduce((sum, call) => sum + call.count, 0);
      if (offsets.length !== count) throw new Undecodable(`${offsets.length} receipts for ${count} records`);
      let at = 0;
      for (const call of calls) {
        call.resolve(offsets, at);
        at += call.count;
      }
    } catch (error) {
      const again = this.#afterwards(error as Error, calls, until);
      if (again.length > 0) {
        if (error instanceof Refused && error.retriable) await sleep(error.retryAfterMs ?? RETRY_MS);
        for (const some of again) await this.#transmit(topic, form, some, until);
        const kept = new Set(again.flat());
        calls = calls.filter((call) => !kept.has(call));
      }
      for (const call of calls) call.reject(error as Error);
    }
    for (const call of calls) {
      this.#waitingRecords -= call.count;
      this.#waitingBytes -= call.bytes;
    }
    if (!this.isFull) for (const waiter of this.#roomWaiters.splice(0)) waiter();
  }

  /** After a command was refused, and nothing of it was stored: which of its calls are to be sent again, and how. */
  #afterwards(error: Error, calls: readonly Call[], until: number): Call[][] {
    if (!(error instanceof Refused)) return [];
    if (error.retriable) {
      const isSafe = error.code !== READ_ONLY || calls.every((call) => call.repeatable);
      return isSafe && Date.now() < until ? [[...calls]] : [];
    }
    // One bad record refuses all that travelled with it: the others go without it, or each for itself.
    if (calls.length === 1 || OF_ALL.has(error.code)) return [];
    const guilty = guiltyOf(error, calls);
    return guilty.size === 0 ? calls.map((call) => [call]) : [calls.filter((call) => !guilty.has(call))];
  }

  #frame(id: number, topic: string, form: Form, calls: readonly Call[]): string | Uint8Array {
    const command: Fields = { id, op: "produce", topic, acks: this.options.acks };
    const texts = calls.map((call) => call.text).join(",");
    const text = `${JSON.stringify(command).slice(0, -1)},"records":[${texts}]}`;
    return form === "payload" ? binaryFrame(text, calls.flatMap((call) => call.parts)) : text;
  }
}

/** The calls whose records the refusal names (`records[3]: …`). */
function guiltyOf(error: Refused, calls: readonly Call[]): Set<Call> {
  const numbers = error.validationErrors.map((rule) => Number(/^records\[(\d+)\]/.exec(rule)?.[1] ?? NaN));
  const guilty = new Set<Call>();
  for (const number of numbers) {
    let left = number;
    const call = calls.find(({ count }) => (left -= count) < 0);
    if (call !== undefined) guilty.add(call);
  }
  return guilty;
}

function receiptOf(written: unknown, acks: unknown): Receipt {
  const offset = objectOf(written);
  return {
    partition: offset["partition"] as number,
    offset: (offset["offset"] as number | null | undefined) ?? null,
    scheduleId: (offset["schedule_id"] as string | undefined) ?? null,
    deliverAt: (offset["deliver_at"] as number | undefined) ?? null,
    duplicate: offset["duplicate"] === true,
    acks: acks as Receipt["acks"],
  };
}

function bytesOf(part: unknown): Uint8Array | null {
  if (part === undefined || part === null) return null;
  return part instanceof Uint8Array ? part : utf8(JSON.stringify(part));
}

function headersOf(headers: Record<string, string | Uint8Array | null>): Fields[] {
  return Object.entries(headers).map(([key, value]) =>
    typeof value === "string" ? { key, text: value } : { key, value: value === null ? null : toBase64(value) },
  );
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}
