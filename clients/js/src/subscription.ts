/**
 * One subscription over all connections: frames in, messages out, credit and commits back.
 *
 *     reader   no group. The place is kept here; after a lost session it goes on from there.
 *     stream   partitions of a group. What the consumer is done with is committed, every `commitIntervalMs` and before
 *              a partition is given up.
 *     queue    single messages on lease: `message.ack()`, `nack`, `reject`, `extend`.
 *
 * Credit bounds what waits here: at most `credit` messages are sent that the consumer has not taken. So a slow consumer
 * needs no more memory, and slows nobody else.
 *
 * A message is *given* when the iterator (or callback) hands it out and *done* when the consumer asks for the next one
 * (or says `ack()` itself, with `commit: "manual"`).
 */
import { Closed, ConnectionLost, Refused } from "./errors.js";
import type { Connection, Follower } from "./connection.js";
import { Places } from "./cursor.js";
import type { Fields, Frame } from "./frames.js";
import { Message, type Settler } from "./message.js";
import { decodeBatches, RawRecord, type Inflaters } from "./record_batch.js";

const CREDIT = 2_000;
const RECEIPTS_PER_COMMAND = 10_000;
const RETRY_MS = 1_000;

export type Mode = "reader" | "stream" | "queue";
export type Start = "earliest" | "latest" | { timestamp: number };
export type From = Start | string | Record<string, Record<number, number>>;
export type Partitions = Record<string, number[]>;

export interface SubscribeOptions<M = Message> {
  topics?: string | string[];
  /** A regular expression over whole topic names, instead of `topics`. */
  pattern?: string;
  group?: string;
  /** Default: `reader`, and `stream` with a group. */
  mode?: Mode;
  /** Stream: the member's name. With the same one a restarted program takes its own partitions again. */
  member?: string;
  /** Reader: where to begin. A string that is no word is a cursor. Default `latest`. */
  from?: From;
  /** Stream, queue: where a new group begins. Default `latest`. */
  start?: Start;
  /** Only messages with one of these tags. */
  tags?: string[];
  /** `batch`: raw batches, for speed; the messages are `RawRecord`s then. Default: what the connection speaks. */
  format?: "json" | "binary" | "batch";
  /** Messages that may wait here. Default 2,000. */
  credit?: number;
  creditBytes?: number;
  /** Messages of one frame at most. */
  batch?: number;
  /** Queue: how long a message is this consumer's. */
  invisibleMs?: number;
  /** Queue: messages are done as soon as they are sent. At most once. */
  autoAck?: boolean;
  /** Stream: `auto` (default) commits what the consumer is done with; `manual` what it acks or commits itself. */
  commit?: "auto" | "manual";
  commitIntervalMs?: number;
  signal?: AbortSignal;
  /**
   * Called with each message, one after the other. Queue mode: returning acks it, throwing gives it back. Other modes:
   * throwing ends the subscription. Without it, iterate over the subscription.
   */
  onMessage?: (message: M) => unknown;
  onAssigned?: (partitions: Partitions) => void;
  /** `lost`: another member has them already. */
  onRevoked?: (partitions: Partitions, lost: boolean) => void;
  /** Every partition has reached its end for the first time. */
  onCaughtUp?: () => void;
  /** The subscription is over; null when it was closed here. */
  onEnd?: (error: Error | null) => void;
}

interface Item {
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
}

/** A frame, and how much of it the consumer has taken. */
interface Held<M> {
  items: M[];
  at: number;
  bytes: number;
  /** What the frame cost of the credit. */
  count: number;
}

export class Subscription<M extends Item = Message> implements Follower, Settler, AsyncIterable<M> {
  /** The last frame taken in. @internal */
  seen = 0;
  readonly mode: Mode;
  /** Stream: the member's name, once subscribed. */
  member: string | null;
  /** Resolves once the server has accepted the subscription; rejects if it refuses. */
  readonly ready: Promise<void>;

  private readonly held: Held<M>[] = [];
  private waiter: (() => void) | null = null;
  private end: { error: Error | null } | null = null;
  private readonly places = new Places(); // reader: where to go on
  private epochs: unknown;
  private readonly given = new Places(); // stream: next offsets, of what the consumer has or had in hand
  private readonly done = new Places();
  private readonly committed = new Places();
  private readonly revoking = new Map<string, { topic: string; partition: number }>();
  private lastGiven: readonly M[] = [];
  private returned = { messages: 0, bytes: 0 };
  private arriving: Promise<void> | null = null; // of a compressed batch
  private committing: Promise<void> | null = null;
  private commitTimer: ReturnType<typeof setInterval> | undefined;
  private settling = new Map<string, { fields: Fields; receipts: string[]; waiters: Waiter[] }>();
  private accept!: () => void;
  private refuse!: (error: Error) => void;

  /** @internal */
  constructor(
    private readonly connection: Connection,
    readonly sub: string,
    private readonly options: SubscribeOptions<M>,
    private readonly inflaters: Inflaters,
  ) {
    this.mode = options.mode ?? (options.group === undefined ? "reader" : "stream");
    this.member = options.member ?? null;
    this.ready = new Promise((resolve, reject) => {
      this.accept = resolve;
      this.refuse = reject;
    });
    this.ready.catch(() => {}); // whoever iterates gets the error there
    options.signal?.addEventListener("abort", () => void this.close(), { once: true });
    if (this.mode === "stream" && !options.autoAck) {
      this.commitTimer = setInterval(() => void this.commit().catch(() => {}), options.commitIntervalMs ?? 1_000);
      (this.commitTimer as { unref?: () => void }).unref?.();
    }
    if (options.onMessage) void this.consume(options.onMessage);
  }

  /** Reader: where it goes on, as a cursor. */
  get cursor(): string {
    return this.places.toString();
  }

  // -------------------------------------------------------------------------------------------- for the consumer

  async *[Symbol.asyncIterator](): AsyncGenerator<M, void, void> {
    try {
      for (;;) {
        const message = this.takeOne() ?? (await this.waitOne());
        if (message === null) return;
        yield message;
      }
    } finally {
      await this.close();
    }
  }

  /** The messages as they come, a frame at a time: less work for each than one by one. */
  async *batches(): AsyncGenerator<readonly M[], void, void> {
    try {
      for (;;) {
        this.finishGiven();
        while (this.held.length === 0) if (!(await this.wait())) return;
        const held = this.held.shift()!;
        const items = held.at === 0 ? held.items : held.items.slice(held.at);
        this.give(items);
        this.giveBack(held.count - held.at, held.bytes);
        yield items;
      }
    } finally {
      await this.close();
    }
  }

  /** Stream: commit what is done; resolves when that is durable. */
  async commit(): Promise<void> {
    while (this.committing !== null) await this.committing;
    const changed = this.done.without(this.committed);
    if (changed.size === 0 || this.end !== null) return;
    this.committing = this.sendCommit(changed).finally(() => {
      this.committing = null;
    });
    await this.committing;
  }

  /** Go on from another place. Messages that wait here are dropped. */
  async seek(to: From): Promise<void> {
    await this.ready;
    const answer = await this.connection.request({ op: "seek", sub: this.sub, to });
    this.dropHeld(() => true);
    this.places.merge(String(answer["cursor"] ?? ""));
    for (const table of [this.given, this.done, this.committed]) table.clear();
  }

  async pause(): Promise<void> {
    await this.connection.request({ op: "pause", sub: this.sub });
  }

  async resume(): Promise<void> {
    await this.connection.request({ op: "resume", sub: this.sub });
  }

  /** Commit what is done, give back what is not, and end. */
  async close(): Promise<void> {
    if (this.end !== null) return;
    try {
      this.finishGiven();
      if (this.mode === "stream" && this.connection.state === "open") await this.commit();
    } catch {
      // those who come after get it again
    }
    if (this.end !== null) return;
    const open = this.connection.state === "open";
    this.connection.followers.delete(this.sub);
    this.finish(null);
    if (open) await this.connection.request({ op: "unsubscribe", sub: this.sub }, null, false).catch(() => {});
  }

  // ------------------------------------------------------------------------------------------ for the connection

  /** @internal */
  async connected(state: Fields | null, send: (fields: Fields) => Promise<Fields>): Promise<void> {
    if (state !== null) {
      this.kept(state);
      return;
    }
    this.seen = 0;
    if (this.mode !== "reader") this.dropHeld(() => true); // leases and partitions begin anew
    try {
      const answer = await send(this.command());
      this.member = (answer["member"] as string | undefined) ?? this.member;
      this.epochs = answer["epochs"];
      if (typeof answer["cursor"] === "string") {
        this.places.merge(answer["cursor"]);
        for (const table of [this.given, this.done, this.committed]) table.clear();
      }
      this.accept();
      if (this.mode === "stream") this.options.onAssigned?.(answer["partitions"] as Partitions);
    } catch (error) {
      if (error instanceof ConnectionLost) throw error;
      if (error instanceof Refused && error.retriable) {
        setTimeout(() => {
          if (this.end === null && this.connection.state === "open") {
            this.connected(null, (fields) => this.connection.request(fields, null, false)).catch(() => {});
          }
        }, error.retryAfterMs ?? RETRY_MS);
        return;
      }
      this.connection.followers.delete(this.sub);
      this.ended(error as Error);
    }
  }

  /** @internal */
  push(frame: Frame): void {
    const { fields, payload } = frame;
    switch (fields["op"]) {
      case "messages":
        this.seen = fields["seq"] as number;
        this.takeIn(this.messagesOf(fields, payload), Number(fields["bytes"] ?? 0));
        break;
      case "batch":
        this.seen = fields["seq"] as number;
        this.takeInBatch(fields, payload!);
        break;
      case "assigned":
        this.places.merge(String(fields["cursor"] ?? ""));
        this.forget(fields["partitions"] as Partitions);
        this.options.onAssigned?.(fields["partitions"] as Partitions);
        break;
      case "revoked":
        this.revoked(fields["partitions"] as Partitions, fields["lost"] === true);
        break;
      case "caught_up":
        this.options.onCaughtUp?.();
        break;
    }
  }

  /** @internal */
  ended(error: Error): void {
    this.finish(error);
  }

  /** @internal */
  settle(op: "ack" | "nack" | "reject" | "extend", receipt: string, fields: Fields): Promise<string | null> {
    if (this.end !== null) return Promise.reject(this.end.error ?? new Closed("the subscription is closed"));
    const key = op + JSON.stringify(fields);
    let batch = this.settling.get(key);
    if (batch === undefined || batch.receipts.length >= RECEIPTS_PER_COMMAND) {
      batch = { fields: { op, sub: this.sub, ...fields }, receipts: [], waiters: [] };
      this.settling.set(key, batch);
      const mine = batch;
      setTimeout(() => void this.sendSettled(key, mine), 0); // what is settled in one turn goes in one command
    }
    const { receipts, waiters } = batch;
    return new Promise((resolve, reject) => {
      receipts.push(receipt);
      waiters.push({ resolve, reject });
    });
  }

  /** @internal */
  markDone(message: Item): void {
    this.markOne(message);
    this.releaseDrained();
  }

  // ----------------------------------------------------------------------------------------------------- inside

  private command(): Fields {
    const { options } = this;
    const command: Fields = {
      op: "subscribe",
      sub: this.sub,
      mode: this.mode,
      topics: typeof options.topics === "string" ? [options.topics] : options.topics,
      pattern: options.pattern,
      group: options.group,
      member: this.mode === "stream" ? (this.member ?? undefined) : undefined,
      filter: options.tags === undefined ? undefined : `tag:${options.tags.join("||")}`,
      format: options.format,
      credit: Math.max(0, this.window - this.heldCount()),
      credit_bytes: options.creditBytes,
      auto_credit: this.mode === "queue",
      auto_ack: options.autoAck,
      invisible_ms: options.invisibleMs,
      batch: options.batch,
    };
    if (this.mode !== "reader") command["start"] = options.start;
    else if (this.places.size > 0) {
      command["from"] = this.cursor;
      if (options.pattern === undefined) command["epochs"] = this.epochs;
    } else command["from"] = options.from;
    return command;
  }

  private get window(): number {
    return this.options.credit ?? CREDIT;
  }

  private heldCount(): number {
    let count = 0;
    for (const held of this.held) count += held.count - held.at;
    return count;
  }

  /** The session was resumed: compare what the server has with what is here. */
  private kept(state: Fields): void {
    if (this.mode === "stream") {
      const mine = state["partitions"] as Partitions;
      this.dropHeld(({ topic, partition }) => !(mine[topic] ?? []).includes(partition));
    }
    if (this.mode !== "queue") {
      this.returned = { messages: 0, bytes: 0 }; // a permit may have been lost on its way
      const missing = this.window - this.heldCount() - Number(state["credit"] ?? 0);
      if (missing > 0) this.returned.messages = missing;
      if (this.options.creditBytes !== undefined) {
        const bytes = this.held.reduce((sum, held) => sum + held.bytes, 0);
        this.returned.bytes = Math.max(0, this.options.creditBytes - bytes - Number(state["credit_bytes"] ?? 0));
      }
      setTimeout(() => this.permit(), 0); // once the connection is open for all
    }
    this.accept();
  }

  private messagesOf(fields: Fields, payload: Uint8Array | null): M[] {
    const raws = fields["messages"] as Fields[];
    const messages = new Array<M>(raws.length);
    let at = 0;
    const take = (length: unknown): Uint8Array | null => {
      if (typeof length !== "number") return null;
      at += length;
      return payload!.subarray(at - length, at);
    };
    for (let index = 0; index < raws.length; index++) {
      const raw = raws[index]!;
      const key = payload === null ? undefined : take(raw["key_len"]);
      const value = payload === null ? undefined : take(raw["value_len"]);
      messages[index] = new Message(this, raw, key, value) as unknown as M;
    }
    return messages;
  }

  private takeInBatch(fields: Fields, payload: Uint8Array): void {
    const count = fields["count"] as number;
    const bytes = Number(fields["bytes"] ?? 0);
    const topic = fields["topic"] as string;
    const partition = fields["partition"] as number;
    const next = fields["next_offset"] as number;
    const add = (records: RawRecord[]): void => this.takeIn(records as unknown as M[], bytes, count, [topic, partition, next]);
    const records = decodeBatches(payload, topic, partition, fields["offset"] as number, this.inflaters);
    if (this.arriving === null && Array.isArray(records)) {
      add(records);
      return;
    }
    const before: Promise<void> = this.arriving ?? Promise.resolve();
    const mine = before
      .then(async () => add(await records))
      .catch((error: unknown) => this.fail(error as Error))
      .finally(() => {
        if (this.arriving === mine) this.arriving = null;
      });
    this.arriving = mine;
  }

  private takeIn(items: M[], bytes: number, count = items.length, place?: [string, number, number]): void {
    if (this.end !== null) return;
    const last = items.at(-1);
    if (place !== undefined) this.places.set(...place);
    else if (this.mode === "reader" && last !== undefined) this.places.set(last.topic, last.partition, last.offset + 1);
    if (last === undefined) this.giveBack(count, bytes); // a batch of which nothing is left
    else this.held.push({ items, at: 0, bytes, count });
    this.waiter?.();
  }

  private takeOne(): M | undefined {
    this.finishGiven();
    const held = this.held[0];
    if (held === undefined) return undefined;
    const item = held.items[held.at++]!;
    this.give([item]);
    const isLast = held.at === held.items.length;
    if (isLast) this.held.shift();
    this.giveBack(isLast ? held.count - held.items.length + 1 : 1, isLast ? held.bytes : 0);
    return item;
  }

  private async waitOne(): Promise<M | null> {
    for (;;) {
      if (!(await this.wait())) return null;
      const item = this.takeOne();
      if (item !== undefined) return item;
    }
  }

  /** Wait for a frame; false when none will come. Raises what ended the subscription. */
  private async wait(): Promise<boolean> {
    if (this.held.length > 0) return true;
    if (this.end === null) await new Promise<void>((resolve) => (this.waiter = resolve));
    this.waiter = null;
    if (this.held.length > 0) return true;
    if (this.end?.error) throw this.end.error;
    return this.end === null;
  }

  private give(items: readonly M[]): void {
    this.lastGiven = items;
    if (this.mode === "stream") for (const item of lastOfEach(items)) this.given.set(item.topic, item.partition, item.offset + 1);
  }

  /** The consumer has asked for more: it is done with what it had. */
  private finishGiven(): void {
    if (this.mode !== "stream" || this.lastGiven.length === 0) return;
    if (this.options.commit !== "manual") for (const item of lastOfEach(this.lastGiven)) this.markOne(item);
    this.lastGiven = [];
    this.releaseDrained();
  }

  private markOne(item: Item): void {
    if ((this.done.get(item.topic, item.partition) ?? 0) <= item.offset) {
      this.done.set(item.topic, item.partition, item.offset + 1);
    }
  }

  private giveBack(messages: number, bytes: number): void {
    if (this.mode === "queue") return; // settling returns the credit
    this.returned.messages += messages;
    this.returned.bytes += bytes;
    if (this.returned.messages * 2 >= this.window || this.held.length === 0) this.permit();
  }

  private permit(): void {
    const { messages, bytes } = this.returned;
    if ((messages === 0 && bytes === 0) || this.connection.state !== "open") return;
    this.returned = { messages: 0, bytes: 0 };
    const command: Fields = { op: "permit", sub: this.sub, messages };
    if (this.options.creditBytes !== undefined) command["bytes"] = bytes;
    this.connection.tell(command);
  }

  private dropHeld(isDropped: (item: Item) => boolean): void {
    for (let index = this.held.length - 1; index >= 0; index--) {
      const held = this.held[index]!;
      if (isDropped(held.items[held.at]!)) {
        this.held.splice(index, 1);
        this.giveBack(held.count - held.at, held.bytes);
      }
    }
  }

  private revoked(partitions: Partitions, lost: boolean): void {
    const gone = ({ topic, partition }: { topic: string; partition: number }): boolean =>
      (partitions[topic] ?? []).includes(partition);
    this.dropHeld(gone);
    if (lost) this.forget(partitions);
    else if (this.mode === "stream") {
      for (const [topic, numbers] of Object.entries(partitions)) {
        for (const partition of numbers) this.revoking.set(`${topic}:${partition}`, { topic, partition });
      }
    }
    this.options.onRevoked?.(partitions, lost);
    this.releaseDrained();
  }

  private forget(partitions: Partitions): void {
    for (const [topic, numbers] of Object.entries(partitions)) {
      for (const partition of numbers) {
        for (const table of [this.given, this.done, this.committed]) table.delete(topic, partition);
        this.revoking.delete(`${topic}:${partition}`);
      }
    }
  }

  /** Give up revoked partitions of which the consumer has nothing in hand. */
  private releaseDrained(): void {
    if (this.revoking.size === 0) return;
    const drained: Partitions = {};
    for (const [key, { topic, partition }] of this.revoking) {
      if ((this.given.get(topic, partition) ?? 0) > (this.done.get(topic, partition) ?? 0)) continue;
      (drained[topic] ??= []).push(partition);
      this.revoking.delete(key);
    }
    if (Object.keys(drained).length === 0) return;
    void this.commit()
      .catch(() => {}) // then the next owner gets them again
      .then(() => this.connection.request({ op: "release", sub: this.sub, partitions: drained }, null, false))
      .then(() => this.forget(drained))
      .catch(() => {}); // a lost connection: the server says again what it wants back
  }

  private async sendCommit(changed: Places): Promise<void> {
    const cursor = changed.toString();
    const answer = await this.connection.request({ op: "ack", sub: this.sub, cursor });
    const results = (answer["results"] ?? []) as Fields[];
    const refused = results.find((result) => result["ok"] === false);
    for (const result of results) {
      const topic = result["topic"] as string;
      const partition = result["partition"] as number;
      const offset = changed.get(topic, partition);
      if (result["ok"] !== false && offset !== undefined) this.committed.set(topic, partition, offset);
      else this.forget({ [topic]: [partition] });
    }
    if (refused !== undefined) throw Refused.of(refused);
  }

  private async sendSettled(key: string, batch: { fields: Fields; receipts: string[]; waiters: Waiter[] }): Promise<void> {
    if (this.settling.get(key) === batch) this.settling.delete(key);
    const { fields, receipts, waiters } = batch;
    try {
      const answer = await this.connection.request({ ...fields, receipts });
      const results = answer["results"] as Fields[];
      waiters.forEach((waiter, index) => {
        const result = results[index]!;
        if (result["ok"] === true) waiter.resolve((result["new_receipt"] as string | undefined) ?? null);
        else waiter.reject(Refused.of(result));
      });
    } catch (error) {
      for (const waiter of waiters) waiter.reject(error as Error);
    }
  }

  private async consume(onMessage: (message: M) => unknown): Promise<void> {
    try {
      for await (const message of this) {
        try {
          await onMessage(message);
        } catch (error) {
          if (this.mode !== "queue" || this.options.autoAck) throw error;
          await (message as unknown as Message).nack({ reason: String(error) }).catch(() => {});
          continue;
        }
        if (this.mode === "queue" && !this.options.autoAck) {
          await (message as unknown as Message).ack().catch(() => {}); // its lease was over: it comes again
        }
      }
    } catch (error) {
      this.fail(error as Error);
    }
  }

  private fail(error: Error): void {
    if (this.end !== null) return;
    this.connection.followers.delete(this.sub);
    this.connection.tell({ op: "unsubscribe", sub: this.sub });
    this.finish(error);
  }

  private finish(error: Error | null): void {
    if (this.end !== null) return;
    this.end = { error };
    if (error === null) this.held.length = 0; // closed here: nobody wants them
    clearInterval(this.commitTimer);
    this.refuse(error ?? new Closed("the subscription is closed"));
    this.waiter?.();
    this.options.onEnd?.(error);
  }
}

interface Waiter {
  resolve: (receipt: string | null) => void;
  reject: (error: Error) => void;
}

/** The last item of each partition; the items of a frame are nearly always of one. */
function lastOfEach<M extends Item>(items: readonly M[]): Iterable<M> {
  const last = items.at(-1);
  if (last === undefined) return [];
  if (items[0]!.topic === last.topic && items[0]!.partition === last.partition) return [last];
  const found = new Map<string, M>();
  for (const item of items) found.set(`${item.topic}:${item.partition}`, item);
  return found.values();
}
