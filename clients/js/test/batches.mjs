/** RecordBatches v2 written here, for tests and benchmarks: the format as Kafka documents it, without the checksum. */
import { gzipSync } from "node:zlib";

const encoder = new TextEncoder();

function varint(out, value) {
  let zigzag = value >= 0 ? BigInt(value) * 2n : BigInt(-value) * 2n - 1n;
  while (zigzag >= 0x80n) {
    out.push(Number(zigzag & 0x7fn) | 0x80);
    zigzag >>= 7n;
  }
  out.push(Number(zigzag));
}

function bytes(out, part) {
  if (part === null || part === undefined) return varint(out, -1);
  const written = typeof part === "string" ? encoder.encode(part) : part;
  varint(out, written.length);
  for (const byte of written) out.push(byte);
}

/** `records`: `{ key, value, timestamp, headers: [[name, value]] }`. */
export function batch(baseOffset, records, { compression = null, isAppendTime = false, count = records.length } = {}) {
  const baseTime = records[0]?.timestamp ?? 0;
  const body = [];
  records.forEach((record, index) => {
    const out = [0];
    varint(out, (record.timestamp ?? 0) - baseTime);
    varint(out, index);
    bytes(out, record.key);
    bytes(out, record.value);
    varint(out, record.headers?.length ?? 0);
    for (const [name, value] of record.headers ?? []) {
      bytes(out, name);
      bytes(out, value);
    }
    varint(body, out.length);
    for (const byte of out) body.push(byte);
  });
  const packed = compression === "gzip" ? gzipSync(new Uint8Array(body)) : new Uint8Array(body);
  const whole = new Uint8Array(61 + packed.length);
  const view = new DataView(whole.buffer);
  const codes = { gzip: 1, snappy: 2, lz4: 3, zstd: 4 };
  view.setBigInt64(0, BigInt(baseOffset));
  view.setInt32(8, whole.length - 12);
  view.setInt8(16, 2);
  view.setInt16(21, (codes[compression] ?? 0) | (isAppendTime ? 8 : 0));
  view.setInt32(23, count - 1);
  view.setBigInt64(27, BigInt(baseTime));
  view.setBigInt64(35, BigInt(records.at(-1)?.timestamp ?? 0));
  view.setBigInt64(43, -1n);
  view.setInt16(51, -1);
  view.setInt32(53, -1);
  view.setInt32(57, count);
  whole.set(packed, 61);
  return whole;
}

export function joined(...parts) {
  const whole = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
