/**
 * Frames of the protocol `mq.v1.json`: text is JSON; a binary frame is a JSON header and raw bytes:
 *
 *     header_len u32 big-endian | header (JSON, UTF-8) | payload
 */
import { Undecodable } from "./errors.js";

/** A JSON object. */
export type Fields = Record<string, unknown>;

/** One frame: its JSON object, and what follows it in a binary frame. */
export interface Frame {
  fields: Fields;
  payload: Uint8Array | null;
}

const encoder = new TextEncoder();
const decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });

export function utf8(text: string): Uint8Array {
  return encoder.encode(text);
}

/** Raises TypeError for bytes that are no UTF-8. */
export function text(bytes: Uint8Array): string {
  return decoder.decode(bytes);
}

/** Read what a socket received. Raises Undecodable. */
export function readFrame(data: unknown): Frame {
  try {
    if (typeof data === "string") return { fields: objectOf(JSON.parse(data)), payload: null };
    const bytes = data instanceof Uint8Array ? data : new Uint8Array(data as ArrayBuffer);
    if (bytes.length < 4) throw new Undecodable("a binary frame without header");
    const length = new DataView(bytes.buffer, bytes.byteOffset).getUint32(0);
    if (length > bytes.length - 4) throw new Undecodable("a binary frame that ends within its header");
    const header = JSON.parse(text(bytes.subarray(4, 4 + length)));
    return { fields: objectOf(header), payload: bytes.subarray(4 + length) };
  } catch (error) {
    if (error instanceof Undecodable) throw error;
    throw new Undecodable(`a frame that is not understood: ${String(error)}`);
  }
}

/** Raises Undecodable for what is no JSON object. */
export function objectOf(value: unknown): Fields {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Undecodable("something that should be a JSON object is none");
  }
  return value as Fields;
}

/** Raises Undecodable for what is no array. */
export function arrayOf(value: unknown): unknown[] {
  if (!Array.isArray(value)) throw new Undecodable("something that should be an array is none");
  return value;
}

/** Raises Undecodable for what is no count or offset. */
export function countOf(value: unknown): number {
  if (!Number.isSafeInteger(value) || (value as number) < 0) throw new Undecodable(`${String(value)} is no count`);
  return value as number;
}

/** A time in ms that a timer can take; `otherwise` for anything else. */
export function msOf(value: unknown, otherwise: number): number {
  return typeof value === "number" && value >= 0 && value < 2 ** 31 ? value : otherwise;
}

/** A binary frame; `parts` follow the header end to end. */
export function binaryFrame(header: string, parts: readonly Uint8Array[]): Uint8Array {
  const head = encoder.encode(header);
  let size = 4 + head.length;
  for (const part of parts) size += part.length;
  const frame = new Uint8Array(size);
  new DataView(frame.buffer).setUint32(0, head.length);
  frame.set(head, 4);
  let at = 4 + head.length;
  for (const part of parts) {
    frame.set(part, at);
    at += part.length;
  }
  return frame;
}

export function toBase64(bytes: Uint8Array): string {
  let binary = "";
  for (let at = 0; at < bytes.length; at += 0x8000) {
    binary += String.fromCharCode(...bytes.subarray(at, at + 0x8000));
  }
  return btoa(binary);
}

export function fromBase64(written: string): Uint8Array {
  const binary = atob(written);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at++) bytes[at] = binary.charCodeAt(at);
  return bytes;
}
