/** One message of a text or binary `messages` frame, and how its consumer says what became of it. */
import { fromBase64, text, type Fields } from "./frames.js";
import type { Header } from "./record_batch.js";

/** What a message needs of its subscription. @internal */
export interface Settler {
  settle(op: "ack" | "nack" | "reject" | "extend", receipt: string, fields: Fields): Promise<string | null>;
  markDone(message: Message): void;
}

export class Message {
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  /** Event time, epoch ms. */
  readonly timestamp: number;
  readonly storeTimestamp: number;
  readonly tag: string | null;
  /** Deliveries so far, this one included; 1 outside of queue mode. */
  readonly attempt: number;
  /** Queue mode: until when (epoch ms) the message is this consumer's. */
  readonly visibleUntil: number | null;
  readonly messageGroup: string | null;
  /** A delayed message: when it was due (epoch ms), and the schedule it came from. */
  readonly deliverAt: number | null;
  readonly scheduleId: string | null;

  /** @internal */
  constructor(
    private readonly settler: Settler,
    /** The message as it was sent. */
    readonly raw: Fields,
    private readonly keyBytes: Uint8Array | null | undefined,
    private readonly valueBytes: Uint8Array | null | undefined,
  ) {
    this.topic = raw["topic"] as string;
    this.partition = raw["partition"] as number;
    this.offset = raw["offset"] as number;
    this.timestamp = raw["timestamp"] as number;
    this.storeTimestamp = raw["store_timestamp"] as number;
    this.tag = (raw["tag"] as string | undefined) ?? null;
    this.attempt = (raw["attempt"] as number | undefined) ?? 1;
    this.visibleUntil = (raw["visible_until"] as number | undefined) ?? null;
    this.messageGroup = (raw["message_group"] as string | undefined) ?? null;
    this.deliverAt = (raw["deliver_at"] as number | undefined) ?? null;
    this.scheduleId = (raw["schedule_id"] as string | undefined) ?? null;
  }

  /** The key: JSON where it is, else text, else bytes; null where there is none. */
  get key(): any {
    return part(this.raw, "key", this.keyBytes);
  }

  /** The value: JSON where it is, else text, else bytes; null for a tombstone. */
  get value(): any {
    return part(this.raw, "value", this.valueBytes);
  }

  /** The value's bytes, as they were sent where the subscription is binary. */
  get bytes(): Uint8Array | null {
    if (this.valueBytes !== undefined) return this.valueBytes;
    const encoded = this.raw["value_b64"];
    if (typeof encoded === "string") return fromBase64(encoded);
    const plain = this.raw["value_text"] ?? (this.raw["value"] == null ? null : JSON.stringify(this.raw["value"]));
    return plain === null ? null : new TextEncoder().encode(plain as string);
  }

  get headers(): Header[] {
    const written = (this.raw["headers"] as { key: string; value: string | null }[] | undefined) ?? [];
    return written.map(({ key, value }) => ({ key, value: value === null ? null : fromBase64(value) }));
  }

  /**
   * Done with it. Queue mode: resolves when that is durable; rejects with Refused 40951 when the lease was over. Stream
   * mode: the next commit covers everything up to this message (see `Subscription.commit` to wait for it).
   */
  async ack(): Promise<void> {
    const receipt = this.receipt;
    if (receipt === null) this.settler.markDone(this);
    else await this.settler.settle("ack", receipt, {});
  }

  /** Queue mode: not done; hand it out again after `delayMs`, or after the group's back-off. */
  async nack(options: { delayMs?: number; reason?: string } = {}): Promise<void> {
    await this.settler.settle("nack", this.leased(), { delay_ms: options.delayMs, reason: options.reason });
  }

  /** Queue mode: never again; on to the group's dead letters. */
  async reject(reason?: string): Promise<void> {
    await this.settler.settle("reject", this.leased(), { reason });
  }

  /** Queue mode: keep it for `invisibleMs` from now. */
  async extend(invisibleMs: number): Promise<void> {
    const receipt = await this.settler.settle("extend", this.leased(), { invisible_ms: invisibleMs });
    if (receipt !== null) this.raw["receipt"] = receipt;
  }

  get receipt(): string | null {
    return (this.raw["receipt"] as string | undefined) ?? null;
  }

  private leased(): string {
    const receipt = this.receipt;
    if (receipt === null) throw new TypeError("only messages of queue mode are given back, rejected or extended");
    return receipt;
  }
}

function part(raw: Fields, name: string, bytes: Uint8Array | null | undefined): unknown {
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
  try {
    return JSON.parse(plain);
  } catch {
    return plain;
  }
}
