/** One message of a text or binary `messages` frame, and how its consumer says what became of it. */
import { Undecodable } from "./errors.js";
import { countOf, fromBase64, objectOf, text, utf8, type Fields } from "./frames.js";
import type { Header } from "./record_batch.js";

/** What a message needs of its subscription. */
export interface Settler {
  settle(op: "ack" | "nack" | "reject" | "extend", receipt: string, fields: Fields): Promise<string | null>;
  ackPlace(message: Message): void;
}

type Part = Uint8Array | null | undefined;

export class Message {
  /** The message as the server sent it. */
  readonly raw: Fields;
  readonly #settler: Settler;
  readonly #key: Part;
  readonly #value: Part;

  /** @internal */
  constructor(settler: Settler, raw: Fields, key: Part, value: Part) {
    this.raw = raw;
    this.#settler = settler;
    this.#key = key;
    this.#value = value;
  }

  get topic(): string {
    return this.raw["topic"] as string;
  }

  get partition(): number {
    return this.raw["partition"] as number;
  }

  get offset(): number {
    return this.raw["offset"] as number;
  }

  /** Of an inbox: the light queue it came from. */
  get queue(): string | null {
    return (this.raw["queue"] as string | undefined) ?? null;
  }

  /** Of an inbox: its offset there; `offset` is the partition's. */
  get queueOffset(): number | null {
    return (this.raw["queue_offset"] as number | undefined) ?? null;
  }

  /** Of `room/*`: the light queues it is in whose names match. */
  get queues(): string[] {
    return (this.raw["queues"] as string[] | undefined) ?? [];
  }

  /** Event time, epoch ms. */
  get timestamp(): number {
    return this.raw["timestamp"] as number;
  }

  /** When the server stored it, epoch ms. */
  get storeTimestamp(): number {
    return this.raw["store_timestamp"] as number;
  }

  get tag(): string | null {
    return (this.raw["tag"] as string | undefined) ?? null;
  }

  /** Which delivery this is; 1 the first time, and always outside of queue mode. */
  get attempt(): number {
    return (this.raw["attempt"] as number | undefined) ?? 1;
  }

  /** Queue mode: until when (epoch ms, the server's clock) the message is this consumer's. */
  get visibleUntil(): number | null {
    return (this.raw["visible_until"] as number | undefined) ?? null;
  }

  get messageGroup(): string | null {
    return (this.raw["message_group"] as string | undefined) ?? null;
  }

  /** A delayed message: when it was due, epoch ms. */
  get deliverAt(): number | null {
    return (this.raw["deliver_at"] as number | undefined) ?? null;
  }

  /** A delayed message: the schedule it came from. */
  get scheduleId(): string | null {
    return (this.raw["schedule_id"] as string | undefined) ?? null;
  }

  /** A delayed message: its sender's name for the schedule. */
  get scheduleKey(): string | null {
    return (this.raw["schedule_key"] as string | undefined) ?? null;
  }

  /** Queue mode: what settles this delivery. */
  get receipt(): string | null {
    return (this.raw["receipt"] as string | undefined) ?? null;
  }

  /** The key: a string, else bytes; null where there is none. In a topic with JSON keys: JSON where it is. */
  get key(): any {
    return part(this.raw, "key", this.#key, this.raw["raw_key"] === true);
  }

  /** The value: JSON where it is, else text, else bytes; null for a tombstone. */
  get value(): any {
    return part(this.raw, "value", this.#value);
  }

  /** The value's bytes; as they were sent where the subscription is binary, else JSON is written anew. */
  get bytes(): Uint8Array | null {
    if (this.#value !== undefined) return this.#value;
    const { value, value_text: plain, value_b64: encoded } = this.raw;
    if (typeof encoded === "string") return fromBase64(encoded);
    if (typeof plain === "string") return utf8(plain);
    return value == null ? null : utf8(JSON.stringify(value));
  }

  get headers(): Header[] {
    const written = (this.raw["headers"] as { key: string; value: string | null }[] | undefined) ?? [];
    return written.map(({ key, value }) => ({ key, value: value === null ? null : fromBase64(value) }));
  }

  /**
   * Done with it. Queue mode: resolves when that is durable; rejects with Refused 40951 when the lease was over (who does
   * not wait for the promise need not care: the message comes again). Stream mode with `commit: "manual"`: the next
   * commit covers everything of the partition up to this message; `Subscription.commit()` waits for it.
   */
  ack(): Promise<void> {
    if (this.receipt !== null) return this.#settle("ack", {});
    this.#settler.ackPlace(this);
    return Promise.resolve();
  }

  /** Queue mode: not done; hand it out again after `delayMs`, or after the group's back-off. */
  nack(options: { delayMs?: number; reason?: string } = {}): Promise<void> {
    return this.#settle("nack", { delay_ms: options.delayMs, reason: options.reason });
  }

  /** Queue mode: never again; on to the group's dead letters. */
  reject(reason?: string): Promise<void> {
    return this.#settle("reject", { reason });
  }

  /** Queue mode: keep it for `invisibleMs` from now. */
  extend(invisibleMs: number): Promise<void> {
    return this.#settle("extend", { invisible_ms: invisibleMs });
  }

  #settle(op: "ack" | "nack" | "reject" | "extend", fields: Fields): Promise<void> {
    const receipt = this.receipt;
    if (receipt === null) return Promise.reject(new TypeError(`${op}: only messages of queue mode have a receipt`));
    const settled = this.#settler.settle(op, receipt, fields).then((newReceipt) => {
      if (newReceipt !== null) this.raw["receipt"] = newReceipt;
    });
    settled.catch(() => {});
    return settled;
  }
}

/** The messages of a frame. Raises Undecodable. */
export function readMessages(settler: Settler, list: readonly unknown[], payload: Uint8Array | null): Message[] {
  const messages = new Array<Message>(list.length);
  let at = 0;
  const take = (length: unknown): Uint8Array | null => {
    if (length === null) return null;
    const from = at;
    at += countOf(length);
    return payload!.subarray(from, at);
  };
  for (let index = 0; index < list.length; index++) {
    const raw = objectOf(list[index]);
    countOf(raw["offset"]);
    const key = payload === null ? undefined : take(raw["key_len"]);
    const value = payload === null ? undefined : take(raw["value_len"]);
    messages[index] = new Message(settler, raw, key, value);
  }
  if (payload !== null && payload.length !== at) throw new Undecodable("a payload that is not as long as its parts");
  return messages;
}

function part(raw: Fields, name: string, bytes: Part, isRaw = false): unknown {
  if (bytes === undefined) {
    if (name in raw) return raw[name];
    const plain = raw[`${name}_text`];
    if (plain !== undefined) return plain;
    const encoded = raw[`${name}_b64`];
    return encoded === undefined ? null : fromBase64(encoded as string);
  }
  if (bytes === null) return null;
  let plain: string;
  try {
    plain = text(bytes);
  } catch {
    return bytes;
  }
  if (isRaw) return plain;
  try {
    return JSON.parse(plain);
  } catch {
    return plain;
  }
}
