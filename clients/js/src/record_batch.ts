/**
 * Kafka RecordBatch v2, read: whole batches as the server stores them, without a step through JSON. Big-endian:
 *
 *     base offset i64 | length i32 | epoch i32 | magic i8 = 2 | crc u32 | attributes i16 | last offset delta i32 |
 *     base time i64 | max time i64 | producer i64, i16, i32 | count i32 | records
 *
 * A record: length, attributes i8, time delta, offset delta, key length and key, value length and value, header count and
 * headers; the numbers are zigzag varints. The low three bits of the attributes name the compression, bit 3 says that
 * all records have the max time. Checksums are left to the connection: the server checks what it reads from disk.
 *
 * A record keeps where its key and value are in the frame and makes views of them when asked: a consumer that looks at
 * values alone does not pay for keys.
 */
import { text } from "./frames.js";
import { Undecodable } from "./errors.js";

const HEADER_BYTES = 61;
const TAG = "mq-tag";
const COMPRESSIONS = ["none", "gzip", "snappy", "lz4", "zstd"];

/** Inflates the records of a batch. Browsers have gzip; others can be given to `connect`. */
export type Inflate = (bytes: Uint8Array) => Uint8Array | Promise<Uint8Array>;
export type Inflaters = Partial<Record<"gzip" | "snappy" | "lz4" | "zstd", Inflate>>;

export interface Header {
  key: string;
  /** Raw bytes; null where the header has no value. */
  value: Uint8Array | null;
}

/** One record of a raw batch. */
export class RawRecord {
  constructor(
    readonly topic: string,
    readonly partition: number,
    readonly offset: number,
    /** Event time, epoch ms. */
    readonly timestamp: number,
    private readonly bytes: Uint8Array,
    private readonly keyAt: number,
    private readonly keyLength: number,
    private readonly valueAt: number,
    private readonly valueLength: number,
    private readonly headersAt: number,
  ) {}

  /** A view into the received frame; null where there is none. */
  get key(): Uint8Array | null {
    return this.keyLength < 0 ? null : this.bytes.subarray(this.keyAt, this.keyAt + this.keyLength);
  }

  get value(): Uint8Array | null {
    return this.valueLength < 0 ? null : this.bytes.subarray(this.valueAt, this.valueAt + this.valueLength);
  }

  get keyText(): string | null {
    const key = this.key;
    return key === null ? null : text(key);
  }

  get valueText(): string | null {
    const value = this.value;
    return value === null ? null : text(value);
  }

  /** The value as JSON; null for a tombstone. Raises SyntaxError for anything else. */
  json(): any {
    const value = this.valueText;
    return value === null ? null : JSON.parse(value);
  }

  get headers(): Header[] {
    const reader = new Reader(this.bytes, this.headersAt);
    const headers: Header[] = [];
    for (let left = reader.varint(); left > 0; left--) {
      const key = text(reader.take(reader.varint()) ?? new Uint8Array());
      headers.push({ key, value: reader.take(reader.varint()) });
    }
    return headers;
  }

  get tag(): string | null {
    const value = this.headers.find((header) => header.key === TAG)?.value;
    return value == null ? null : text(value);
  }
}

class Reader {
  constructor(
    private readonly bytes: Uint8Array,
    public at: number,
  ) {}

  /** A zigzag varint. Times and offsets within a batch fit a double exactly; what does not fit is refused. */
  varint(): number {
    const bytes = this.bytes;
    let byte = bytes[this.at++]!;
    if (byte < 0x80) return (byte >>> 1) ^ -(byte & 1); // most are this short
    let result = byte & 0x7f;
    let scale = 128;
    do {
      byte = bytes[this.at++]!;
      result += (byte & 0x7f) * scale;
      scale *= 128;
    } while (byte >= 0x80 && scale < 2 ** 63);
    if (!(result <= Number.MAX_SAFE_INTEGER) || byte === undefined) throw new Undecodable("a number that is out of range");
    return result % 2 === 0 ? result / 2 : -(result + 1) / 2;
  }

  take(length: number): Uint8Array | null {
    if (length < 0) return null;
    this.at += length;
    if (this.at > this.bytes.length) throw new Undecodable("a record that ends too early");
    return this.bytes.subarray(this.at - length, this.at);
  }
}

/** The records from `fromOffset` on, of batches laid end to end. A promise only if one is compressed. Raises Undecodable. */
export function decodeBatches(
  payload: Uint8Array,
  topic: string,
  partition: number,
  fromOffset: number,
  inflaters: Inflaters,
): RawRecord[] | Promise<RawRecord[]> {
  const records: RawRecord[] = [];
  const view = new DataView(payload.buffer, payload.byteOffset, payload.byteLength);
  let later: Promise<void> | null = null;
  for (let at = 0; at < payload.length; ) {
    if (payload.length - at < HEADER_BYTES) throw new Undecodable("a batch that ends within its header");
    const end = at + 12 + view.getInt32(at + 8);
    if (view.getInt8(at + 16) !== 2) throw new Undecodable(`batch format ${view.getInt8(at + 16)} is not known`);
    if (end > payload.length || end < at + HEADER_BYTES) throw new Undecodable("a batch whose length is wrong");
    const attributes = view.getInt16(at + 21);
    const place: Place = {
      topic,
      partition,
      fromOffset,
      baseOffset: Number(view.getBigInt64(at)),
      baseTime: Number(view.getBigInt64(at + 27)),
      fixedTime: attributes & 8 ? Number(view.getBigInt64(at + 35)) : null,
      count: view.getInt32(at + 57),
    };
    const body = payload.subarray(at + HEADER_BYTES, end);
    const compression = COMPRESSIONS[attributes & 7] ?? String(attributes & 7);
    if (compression === "none" && later === null) {
      decodeRecords(body, place, records);
    } else {
      const before: Promise<void> = later ?? Promise.resolve();
      later = before.then(async () => {
        decodeRecords(compression === "none" ? body : await inflate(body, compression, inflaters), place, records);
      });
      later.catch(() => {}); // nobody waits for it when a batch behind it is wrong
    }
    at = end;
  }
  if (later === null) return records;
  const all = later.then(() => records);
  all.catch(() => {}); // nor for this one when the frame around it is wrong; whoever does hears of it
  return all;
}

interface Place {
  topic: string;
  partition: number;
  fromOffset: number;
  baseOffset: number;
  baseTime: number;
  fixedTime: number | null;
  count: number;
}

function decodeRecords(bytes: Uint8Array, place: Place, records: RawRecord[]): void {
  const { topic, partition, fromOffset, baseOffset, baseTime, fixedTime } = place;
  const reader = new Reader(bytes, 0);
  for (let left = place.count; left > 0; left--) {
    const length = reader.varint();
    const end = reader.at + length;
    if (length < 0 || end > bytes.length) throw new Undecodable("a record that is longer than its batch");
    reader.at++;
    const timestamp = fixedTime ?? baseTime + reader.varint();
    if (fixedTime !== null) reader.varint();
    const offset = baseOffset + reader.varint();
    const keyLength = reader.varint();
    const keyAt = reader.at;
    if (keyLength > 0) reader.at += keyLength;
    const valueLength = reader.varint();
    const valueAt = reader.at;
    if (valueLength > 0) reader.at += valueLength;
    if (reader.at > end) throw new Undecodable("a record whose key or value is longer than the record");
    if (offset >= fromOffset) {
      records.push(
        new RawRecord(topic, partition, offset, timestamp, bytes, keyAt, keyLength, valueAt, valueLength, reader.at),
      );
    }
    reader.at = end;
  }
}

async function inflate(bytes: Uint8Array, compression: string, inflaters: Inflaters): Promise<Uint8Array> {
  const own = inflaters[compression as keyof Inflaters];
  try {
    if (own !== undefined) return await own(bytes);
    if (compression === "gzip" && typeof DecompressionStream !== "undefined") {
      const stream = new Blob([bytes as BlobPart]).stream().pipeThrough(new DecompressionStream("gzip"));
      return new Uint8Array(await new Response(stream).arrayBuffer());
    }
  } catch (error) {
    throw new Undecodable(`a batch that is no ${compression}: ${String(error)}`);
  }
  throw new Undecodable(
    `a batch is compressed with ${compression}: give connect() an inflater for it, or subscribe with another format`,
  );
}

