/**
 * Sending: records that are sent within `lingerMs` go together, in batches bounded by count and bytes; each caller gets
 * the receipts of its own records. What waits or is on its way is bounded: beyond that `send` rejects at once.
 *
 * A send whose answer was lost with the connection is repeated only if every record of it carries a `msgId` (or the
 * client is `idempotent`, which makes them): then the server knows what it has stored already. Any other is rejected
 * with ConnectionLost, because it may have been stored.
 */
import { MqError, Refused } from "./errors.js";
import type { Connection } from "./connection.js";
import { toBase64, utf8, type Fields } from "./frames.js";

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
  /** Groups with `fifo` hand out the messages of one message group one after the other. */
  messageGroup?: string;
  /** A second record of this id within the server's window (10 min) is not stored; its receipt says `duplicate`. */
  msgId?: string;
}

export interface Receipt {
  partition: number;
  /** null while the record is scheduled. */
  offset: number | null;
  scheduleId: string | null;
  /** Epoch ms, of a scheduled record. */
  deliverAt: number | null;
  duplicate: boolean;
}

export interface ProducerOptions {
  lingerMs: number;
  batchRecords: number;
  batchBytes: number;
  /** Records that may wait or be on their way. */
  recordsMax: number;
  bytesMax: number;
  idempotent: boolean;
  acks?: "flushed" | "written" | undefined;
}

export const PRODUCER_DEFAULTS: ProducerOptions = {
  lingerMs: 2,
  batchRecords: 1_000,
  batchBytes: 1024 * 1024,
  recordsMax: 100_000,
  bytesMax: 64 * 1024 * 1024,
  idempotent: false,
};

/** The records of one `send`, as they go on the wire. */
interface Call {
  records: Fields[];
  parts: Uint8Array[];
  bytes: number;
  repeatable: boolean;
  resolve: (receipts: Receipt[]) => void;
  reject: (error: Error) => void;
}

/** Calls that go together. */
interface Batch {
  topic: string;
  isBytes: boolean;
  calls: Call[];
  recordCount: number;
  bytes: number;
  timer: ReturnType<typeof setTimeout> | undefined;
}

export class Producer {
  private readonly filling = new Map<string, Batch>();
  private readonly onTheirWay = new Set<Promise<void>>();
  private waitingRecords = 0;
  private waitingBytes = 0;
  private readonly prefix = Math.random().toString(36).slice(2) + Date.now().toString(36);
  private nextMsgId = 1;

  constructor(
    private readonly connection: Connection,
    private readonly options: ProducerOptions,
    private readonly binary: boolean,
  ) {}

  /** Receipts in the order of the records, all from one command. Rejects with Refused, ConnectionLost, Closed, MqError. */
  send(topic: string, records: readonly ProduceRecord[]): Promise<Receipt[]> {
    const { recordsMax, bytesMax, batchRecords, batchBytes, lingerMs } = this.options;
    if (records.length === 0) return Promise.resolve([]);
    if (this.waitingRecords > 0 && (this.waitingRecords + records.length > recordsMax || this.waitingBytes > bytesMax)) {
      return Promise.reject(new MqError(`${this.waitingRecords} records wait to be sent; await what was sent before`));
    }
    const isBytes = records.some(({ key, value }) => key instanceof Uint8Array || value instanceof Uint8Array);
    const key = `${topic} ${isBytes}`;
    let batch = this.filling.get(key);
    if (batch !== undefined && batch.recordCount + records.length > batchRecords) {
      this.flush(key, batch);
      batch = undefined;
    }
    if (batch === undefined) {
      const made: Batch = { topic, isBytes, calls: [], recordCount: 0, bytes: 0, timer: undefined };
      made.timer = setTimeout(() => this.flush(key, made), lingerMs);
      this.filling.set(key, made);
      batch = made;
    }
    const mine = batch;
    const promise = new Promise<Receipt[]>((resolve, reject) => {
      const call: Call = { records: [], parts: [], bytes: 0, repeatable: true, resolve, reject };
      for (const record of records) this.add(call, record, isBytes);
      mine.calls.push(call);
      mine.recordCount += records.length;
      mine.bytes += call.bytes;
      this.waitingRecords += records.length;
      this.waitingBytes += call.bytes;
    });
    if (batch.recordCount >= batchRecords || batch.bytes >= batchBytes) this.flush(key, batch);
    return promise;
  }

  /** Send what waits for company now. */
  flushAll(): void {
    for (const [key, batch] of [...this.filling]) this.flush(key, batch);
  }

  /** Resolves when nothing waits to be sent or answered. */
  async idle(): Promise<void> {
    while (this.onTheirWay.size > 0) await Promise.allSettled(this.onTheirWay);
  }

  private add(call: Call, record: ProduceRecord, isBytes: boolean): void {
    const fields: Fields = {};
    if (isBytes && this.binary) {
      const key = bytesOf(record.key);
      const value = bytesOf(record.value);
      fields["key_len"] = key === null ? null : key.length;
      fields["value_len"] = value === null ? null : value.length;
      if (key !== null) call.parts.push(key);
      if (value !== null) call.parts.push(value);
      call.bytes += 64 + (key?.length ?? 0) + (value?.length ?? 0);
    } else {
      fields["key"] = isBytes ? base64Of(record.key) : (record.key ?? undefined);
      fields["value"] = isBytes ? base64Of(record.value) : record.value;
      call.bytes += 64 + roughBytes(fields["value"]);
    }
    if (record.partition !== undefined) fields["partition"] = record.partition;
    if (record.headers !== undefined) fields["headers"] = headersOf(record.headers);
    if (record.timestamp !== undefined) fields["timestamp"] = record.timestamp;
    if (record.tag !== undefined) fields["tag"] = record.tag;
    if (record.delayMs !== undefined) fields["delay_ms"] = record.delayMs;
    if (record.deliverAt !== undefined) {
      fields["deliver_at"] = record.deliverAt instanceof Date ? record.deliverAt.getTime() : record.deliverAt;
    }
    if (record.messageGroup !== undefined) fields["message_group"] = record.messageGroup;
    const msgId = record.msgId ?? (this.options.idempotent ? `${this.prefix}-${this.nextMsgId++}` : undefined);
    if (msgId === undefined) call.repeatable = false;
    else fields["msg_id"] = msgId;
    call.records.push(fields);
  }

  private flush(key: string, batch: Batch): void {
    if (this.filling.get(key) === batch) this.filling.delete(key);
    clearTimeout(batch.timer);
    const sending = this.transmit(batch.topic, batch.isBytes, batch.calls);
    this.onTheirWay.add(sending);
    void sending.then(() => this.onTheirWay.delete(sending));
  }

  private async transmit(topic: string, isBytes: boolean, calls: Call[]): Promise<void> {
    const records = calls.flatMap((call) => call.records);
    const command: Fields = { op: "produce", topic, records };
    if (isBytes && !this.binary) command["format"] = "binary";
    if (this.options.acks !== undefined) command["acks"] = this.options.acks;
    const parts = isBytes && this.binary ? calls.flatMap((call) => call.parts) : null;
    const repeatable = calls.every((call) => call.repeatable);
    try {
      const answer = await this.connection.request(command, parts, repeatable);
      const offsets = answer["offsets"] as Fields[];
      let at = 0;
      for (const call of calls) call.resolve(offsets.slice(at, (at += call.records.length)).map(receiptOf));
    } catch (error) {
      if (error instanceof Refused && !error.retriable && calls.length > 1) {
        // One bad record refuses all that travelled with it, and nothing was stored: let each answer for itself.
        await Promise.all(calls.map((call) => this.transmit(topic, isBytes, [call])));
        return;
      }
      for (const call of calls) call.reject(error as Error);
    }
    this.waitingRecords -= records.length;
    for (const call of calls) this.waitingBytes -= call.bytes;
  }
}

function receiptOf(offset: Fields): Receipt {
  return {
    partition: offset["partition"] as number,
    offset: (offset["offset"] as number | null) ?? null,
    scheduleId: (offset["schedule_id"] as string | undefined) ?? null,
    deliverAt: (offset["deliver_at"] as number | undefined) ?? null,
    duplicate: offset["duplicate"] === true,
  };
}

function bytesOf(part: unknown): Uint8Array | null {
  if (part === undefined || part === null) return null;
  return part instanceof Uint8Array ? part : utf8(JSON.stringify(part));
}

function base64Of(part: unknown): string | null {
  const bytes = bytesOf(part);
  return bytes === null ? null : toBase64(bytes);
}

function headersOf(headers: Record<string, string | Uint8Array | null>): Fields[] {
  return Object.entries(headers).map(([key, value]) =>
    typeof value === "string" ? { key, text: value } : { key, value: value === null ? null : toBase64(value) },
  );
}

/** Good enough to bound memory, without a second encoding. */
function roughBytes(value: unknown): number {
  if (typeof value === "string") return value.length;
  if (typeof value !== "object" || value === null) return 8;
  let size = 2;
  for (const name in value) size += name.length + 4 + roughBytes((value as Fields)[name]);
  return size;
}
