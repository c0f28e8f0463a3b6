/** Records as the server shows them in its native form, and what people want to see of them. Text only: nothing of a record is ever markup. */

export interface Shown {
  key?: unknown;
  key_text?: string;
  key_b64?: string;
  value?: unknown;
  value_text?: string;
  value_b64?: string;
  value_truncated?: boolean;
  value_size?: number;
  headers?: { key: string; value: string | null }[];
}

export interface Rec extends Shown {
  topic: string;
  partition: number;
  offset: number;
  message_id?: string;
  tag?: string | null;
  timestamp: number;
  store_timestamp?: number;
  deliver_at?: number;
  schedule_id?: string;
}

/** Of a value, at most so much is put on the page. */
const PREVIEW_BYTES_MAX = 64 * 1024;
const LINE_CHARS_MAX = 300;

function fromBase64(text: string): Uint8Array {
  return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
}

export function hasValue(record: Shown): boolean {
  return record.value_text !== undefined || record.value_b64 !== undefined || (record.value !== undefined && record.value !== null);
}

function part(record: Shown, name: "key" | "value"): { json?: unknown; text?: string; bytes?: Uint8Array } | null {
  const encoded = record[`${name}_b64`];
  if (encoded !== undefined) return { bytes: fromBase64(encoded) };
  const text = record[`${name}_text`];
  if (text !== undefined) return { text };
  const json = record[name];
  if (json === undefined || json === null) return null;
  return name === "key" && typeof json === "string" ? { text: json } : { json };
}

/** One line of a key or value, for a row. */
export function line(record: Shown, name: "key" | "value"): string {
  const found = part(record, name);
  if (found === null) return "";
  if (found.bytes !== undefined) return `0x${hexOf(found.bytes.subarray(0, 40)).replaceAll(" ", "")}${found.bytes.length > 40 ? "…" : ""}`;
  const text = found.text ?? JSON.stringify(found.json);
  return text.length > LINE_CHARS_MAX ? `${text.slice(0, LINE_CHARS_MAX)}…` : text;
}

export type View = "json" | "text" | "hex";

/** Which views there are of a key or value, the best one first. */
export function views(record: Shown, name: "key" | "value"): View[] {
  const found = part(record, name);
  if (found === null) return [];
  if (found.bytes !== undefined) return ["hex", "text"];
  return found.json !== undefined ? ["json", "text", "hex"] : ["text", "hex"];
}

export function decoded(record: Shown, name: "key" | "value", view: View): { text: string; isCut: boolean } {
  const found = part(record, name);
  if (found === null) return { text: "", isCut: false };
  if (view === "json") return cut(JSON.stringify(found.json, null, 2));
  const text = found.text ?? (found.json === undefined ? null : JSON.stringify(found.json));
  if (view === "text") return cut(text ?? new TextDecoder().decode(found.bytes));
  const bytes = found.bytes ?? new TextEncoder().encode(text ?? "");
  const isCut = bytes.length > PREVIEW_BYTES_MAX / 4;
  return { text: dump(bytes.subarray(0, PREVIEW_BYTES_MAX / 4)), isCut };
}

function cut(text: string): { text: string; isCut: boolean } {
  return text.length > PREVIEW_BYTES_MAX ? { text: text.slice(0, PREVIEW_BYTES_MAX), isCut: true } : { text, isCut: false };
}

function hexOf(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join(" ");
}

/** As hexdump -C has it. */
function dump(bytes: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < bytes.length; at += 16) {
    const row = bytes.subarray(at, at + 16);
    const letters = Array.from(row, (byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hexOf(row).padEnd(47)}  ${letters}`);
  }
  return lines.join("\n");
}

/** A header's value: text where it is, else hex. */
export function headerText(value: string | null): string {
  if (value === null) return "null";
  const bytes = fromBase64(value);
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return `0x${hexOf(bytes).replaceAll(" ", "")}`;
  }
}

/** Bytes in a value, as near as its shown form tells. */
export function sizeOf(record: Shown): number {
  if (record.value_size !== undefined) return record.value_size;
  const found = part(record, "value");
  if (found === null) return 0;
  return found.bytes?.length ?? new TextEncoder().encode(found.text ?? JSON.stringify(found.json)).length;
}
