/**
 * One subscription over all connections: frames in, messages out, credit and commits back.
 *
 *     reader   no group. The place is kept here; after a lost session it goes on from there.
 *     stream   partitions of a group. What the consumer is done with is committed, every `commitIntervalMs` and before
 *              a partition is given up.
 *     queue    single messages on lease: `message.ack()`, `nack`, `reject`, `extend`.
 *
 * A message is *given* when the iterator (or callback) hands it out, and *done* when the consumer asks for the next one,
 * or with `commit: "manual"` when it acks.
 *
 * Invariants
 *     S1  a slow consumer has at most `credit` messages waiting here (`window.ts`), and slows nobody else
 *     S2  reader, stream: a message is given at most once, as long as its partition stays here: over lost connections,
 *         lost sessions and restarts of the server
 *     S3  stream: what is committed is done
 */
import { Closed, ConnectionLost, Refused, Undecodable } from "./errors.js";
import type { Connection, Follower } from "./connection.js";
import { arrayOf, countOf, msOf, objectOf, type Fields, type Frame } from "./frames.js";
import { call, uncaught } from "./hooks.js";
import { Inbox, type Held } from "./inbox.js";
import { readMessages, type Message, type Settler } from "./message.js";
import type { From, Mode, SubscribeOptions } from "./options.js";
import { partitionsOf, Places, readCursor, readPartitions, type Partitions, type Place } from "./places.js";
import { decodeBatches, type Inflaters, type RawRecord } from "./record_batch.js";
import { Settling } from "./settling.js";
import { Window } from "./window.js";

const CREDIT = 2_000;
const CREDIT_BATCH = 10_000;
const CREDIT_QUEUE = 200;
const COMMIT_INTERVAL_MS = 1_000;
const RETRY_MS = 1_000;
const EPOCH_CHANGED = 40953;
const DRAIN_MS = 10_000;
/** How long `close` waits for calls of `onMessage`: one that waits for `close` itself would wait for ever. */
const CLOSE_TIMEOUT_MS = 5_000;

/** What a message or a raw record is known by. */
export interface Item {
  readonly topic: string;
  readonly partition: number;
  readonly offset: number;
  /** Of an inbox: its offset in the light queue. */
  readonly queueOffset?: number | null;
}

/** What counts for its subscription: its offset in what is read. */
function placeOf(item: Item): number {
  return item.queueOffset ?? item.offset;
}

export class Subscription<M extends Item = Message> implements AsyncIterable<M> {
  readonly mode: Mode;
  /** Stream: the member's name. */
  readonly member: string;
  /** Resolves once the server has accepted the subscription; rejects if it never does. */
  readonly ready: Promise<void>;

  /** The connection's view of this. @internal */
  readonly follower: Follower & { seen: number };

  readonly #inbox = new Inbox<M>();
  readonly #places = new Places();
  readonly #settling: Settling;
  readonly #messages: Window;
  readonly #bytes: Window | null;
  /** Credit returns by itself (queue mode: when a message is settled), not by permits. */
  readonly #autoCredit: boolean;
  #epochs: Fields = {}; // of topics whose places are those of the last subscribe
  #isPaused = false;
  #isCaughtUp = false;
  #isAccepted = false;
  #isAttached = false; // this connection knows the subscription
  #attempt = 0;
  #inHand: Place | null = null;
  #era = 0; // frames that are still being inflated belong to one
  #inflating: Promise<void> | null = null;
  #committing: Promise<void> | null = null;
  #commitTimer: ReturnType<typeof setInterval> | undefined;
  #closing: Promise<void> | null = null;
  #workers: Promise<void> | null = null; // calls of onMessage
  #end: { error: Error | null } | null = null;
  readonly #aborted = (): void => void this.close();
  #accept!: () => void;
  #refuse!: (error: Error) => void;

  /** @internal */
  constructor(
    private readonly connection: Connection,
    sub: string,
    private readonly options: SubscribeOptions<M>,
    private readonly inflaters: Inflaters,
    private readonly onOver: () => void,
  ) {
    this.mode = options.mode ?? (options.group === undefined ? "reader" : "stream");
    this.member = options.member ?? `js-${randomName()}`;
    this.follower = {
      sub,
      seen: 0,
      attach: (state) => this.#attach(state),
      push: (frame) => this.#push(frame),
      ended: (error) => this.#finish(error instanceof Closed && error.code === 1000 ? null : error),
    };
    this.#settling = new Settling((fields) => this.#ask(fields));
    this.#messages = new Window(options.credit ?? this.#creditDefault());
    this.#bytes = options.creditBytes === undefined ? null : new Window(options.creditBytes);
    this.#autoCredit = this.mode === "queue" && options.autoAck !== true;
    this.ready = new Promise((resolve, reject) => {
      this.#accept = resolve;
      this.#refuse = reject;
    });
    this.ready.catch(() => {}); // whoever iterates gets the error there
    options.signal?.addEventListener("abort", this.#aborted, { once: true });
    if (this.mode === "stream" && options.autoAck !== true) {
      const everyMs = options.commitIntervalMs ?? COMMIT_INTERVAL_MS;
      this.#commitTimer = setInterval(() => void this.commit().catch(() => {}), everyMs);
    }
    if (options.onMessage !== undefined) this.#workers = this.#consume(options.onMessage);
  }

  /** Reader: where it goes on, as a cursor for `from`: behind the last message given. */
  get cursor(): string {
    return this.#places.cursor((place) => place.given);
  }

  // -------------------------------------------------------------------------------------------- for the consumer

  /**
   * The messages, one by one. Leaving the loop, by `break` or an exception, closes the subscription; the message in hand
   * then counts as not done, unless it was acked.
   */
  async *[Symbol.asyncIterator](): AsyncGenerator<M, void, void> {
    try {
      for (;;) {
        const message = this.#takeOne() ?? (await this.#nextOne());
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
        this.#finishInHand();
        const held = this.#inbox.first;
        if (held === undefined) {
          if (!(await this.#more())) return;
          continue;
        }
        const items = held.at === 0 ? held.items : held.items.slice(held.at);
        this.#give(held.place, items.at(-1)!);
        this.#inbox.shift();
        this.#release(held);
        yield items;
      }
    } finally {
      await this.close();
    }
  }

  /** Stream: everything of the partition up to this message is done. */
  ack(message: Item): void {
    const place = this.#places.get(message.topic, message.partition);
    const at = placeOf(message);
    if (place === undefined || at < place.done || at >= place.given) return;
    place.done = at + 1;
    this.#releaseDrained();
  }

  /** Stream: commit what is done; resolves when that is durable. */
  async commit(): Promise<void> {
    while (this.#committing !== null) await this.#committing;
    if (this.#end !== null || !this.#isAccepted) return;
    this.#committing = this.#sendCommit([...this.#places]).finally(() => {
      this.#committing = null;
    });
    await this.#committing;
  }

  /** Go on from another place; messages that wait here are dropped. Stream: the next commit tells the group. */
  async seek(to: From): Promise<void> {
    await this.ready;
    await this.connection.request<void>(
      { op: "seek", sub: this.follower.sub, to },
      {
        answered: (answer) => {
          this.#era++;
          this.#inHand = null;
          this.#isCaughtUp = false;
          this.#forget(() => true);
          for (const { topic, partition, offset } of readCursor(answer["cursor"])) {
            this.#places.get(topic, partition)?.seek(offset, true);
          }
        },
      },
    );
  }

  /** Receive no more messages until `resume`; what is on its way still comes. */
  async pause(): Promise<void> {
    this.#isPaused = true;
    await this.#ask({ op: "pause" });
  }

  async resume(): Promise<void> {
    this.#isPaused = false;
    await this.#ask({ op: "resume" });
  }

  /** Wait for the calls of `onMessage` that are running, commit what is done, give back what is not, and end. */
  close(): Promise<void> {
    this.#closing ??= this.#shut();
    return this.#closing;
  }

  // ------------------------------------------------------------------------------------------ for the connection

  #attach(state: Fields | null): void {
    this.#attempt++;
    this.#isAttached = false;
    if (state !== null) this.#kept(state);
    else {
      this.connection
        .request<void>(this.#command(), { repeatable: false, answered: (answer) => this.#subscribed(answer) })
        .catch((error: unknown) => this.#notSubscribed(error as Error));
    }
  }

  #push({ fields, payload }: Frame): void {
    switch (fields["op"]) {
      case "messages":
        if (this.#isNext(fields["seq"])) this.#takeIn(fields, payload);
        break;
      case "batch":
        if (this.#isNext(fields["seq"])) this.#takeInBatch(fields, payload);
        break;
      case "assigned":
        this.#goOn(readCursor(fields["cursor"]), false);
        call(this.options.onAssigned, readPartitions(fields["partitions"]));
        break;
      case "revoked":
        this.#revoked(readPartitions(fields["partitions"]), fields["lost"] === true ? null : msOf(fields["drain_ms"], DRAIN_MS));
        break;
      case "caught_up":
        if (!this.#isCaughtUp) call(this.options.onCaughtUp);
        this.#isCaughtUp = true;
        break;
    }
  }

  /** Frames are numbered; one that is missing is not to be passed over in silence. */
  #isNext(seq: unknown): boolean {
    const { follower } = this;
    if (countOf(seq) <= follower.seen) return false;
    if (seq !== follower.seen + 1) throw new Undecodable(`frame ${String(seq)} after frame ${follower.seen}`);
    follower.seen++;
    return true;
  }

  #command(): Fields {
    const { options, mode } = this;
    const isKnown = this.#isAccepted;
    this.follower.seen = 0;
    if (mode === "stream") {
      this.#era++;
      this.#forget(() => true); // it comes again, from what is committed on
      for (const place of this.#places) place.next = place.given;
    }
    // Leases of a session that is over went back to the group; those of a server that was restarted are still ours.
    if (mode === "queue" && Date.now() - this.connection.lostAt > this.connection.graceMs) this.#forget(() => true);
    return {
      op: "subscribe",
      sub: this.follower.sub,
      mode,
      topics: typeof options.topics === "string" ? [options.topics] : options.topics,
      pattern: options.pattern,
      queue: options.queue,
      group: options.group,
      member: mode === "stream" && options.queue === undefined ? this.member : undefined,
      room: options.room,
      // What has come since to a pattern that had matched nothing begins with its first record too.
      from: mode !== "reader" ? undefined : isKnown ? this.#places.cursor((place) => place.next) || "earliest" : options.from,
      epochs: mode === "reader" && isKnown ? this.#epochs : undefined,
      start: mode === "reader" ? undefined : options.start,
      filter: options.tags === undefined ? undefined : `tag:${options.tags.join("||")}`,
      format: options.format,
      credit: this.#autoCredit ? this.#messages.size : this.#messages.opened(),
      credit_bytes: this.#autoCredit ? this.#bytes?.size : this.#bytes?.opened(),
      auto_credit: this.#autoCredit,
      auto_ack: options.autoAck,
      invisible_ms: options.invisibleMs,
      batch: options.batch,
    };
  }

  #subscribed(answer: Fields): void {
    this.#isAttached = true;
    if (this.#isPaused) this.connection.tell({ op: "pause", sub: this.follower.sub });
    this.#goesOn(answer, true);
    this.#epochs = objectOf(answer["epochs"] ?? {});
  }

  #notSubscribed(error: Error): void {
    if (error instanceof ConnectionLost || this.#end !== null) return; // the next connection attaches again
    if (error instanceof Refused && error.retriable) {
      const attempt = this.#attempt;
      setTimeout(() => {
        // Else the next connection attaches again, or has done so.
        if (this.#end === null && attempt === this.#attempt && this.connection.state === "open") this.#attach(null);
      }, error.retryAfterMs ?? RETRY_MS);
      return;
    }
    if (error instanceof Refused && error.code === EPOCH_CHANGED && this.options.pattern !== undefined) {
      const { topic } = objectOf(error.details ?? {}); // made again: the pattern goes on, with the first record of the new one
      const lost = [...this.#places].filter((place) => place.topic === topic);
      this.#lose(lost);
      if (lost.length > 0) return this.#attach(null);
    }
    this.connection.followers.delete(this.follower.sub);
    this.#finish(error);
  }

  /** The session was resumed: `state` is what the server has of this subscription. */
  #kept(state: Fields): void {
    this.#isAttached = true;
    if (!this.#autoCredit) {
      this.#messages.resumed(Number(state["credit"] ?? 0));
      this.#bytes?.resumed(Number(state["credit_bytes"] ?? 0));
      this.#permit();
    }
    if ((state["paused"] === true) !== this.#isPaused) {
      this.connection.tell({ op: this.#isPaused ? "pause" : "resume", sub: this.follower.sub });
    }
    this.#goesOn(state, false);
  }

  /** What `subscribe` and `hello` answer alike: the partitions there are now, and where they go on. */
  #goesOn(state: Fields, isFresh: boolean): void {
    if (this.mode !== "queue") {
      const partitions = readPartitions(state["partitions"]);
      const isHere = ({ topic, partition }: Place): boolean => (partitions[topic] ?? []).includes(partition);
      // One that is being given up is not named; the session still has it, and says so again.
      const lost = [...this.#places].filter((place) => !isHere(place) && (isFresh || !place.isRevoked));
      if (!isFresh) void this.#sendCommit(lost).catch(() => {}); // its revocation may have begun meanwhile
      this.#lose(lost);
      const news = this.#goOn(readCursor(state["cursor"]), isFresh);
      if (this.mode === "stream") {
        const told = lost.filter((place) => !place.isRevoked);
        if (told.length > 0) call(this.options.onRevoked, partitionsOf(told), true);
        if (news.length > 0 || !this.#isAccepted) call(this.options.onAssigned, partitionsOf(news));
      }
    }
    this.#isAccepted = true;
    this.#accept();
  }

  /**
   * Messages of these partitions follow; returns those that were not here. To a fresh subscription the cursor says what
   * is committed, to one that goes on what was sent.
   */
  #goOn(cursor: ReturnType<typeof readCursor>, isFresh: boolean): Place[] {
    const news: Place[] = [];
    for (const { topic, partition, offset } of cursor) {
      const place = this.#places.get(topic, partition);
      if (place === undefined) news.push(this.#places.set(topic, partition, offset));
      else if (this.mode === "stream") {
        place.isRevoked = false;
        if (!isFresh && offset >= place.next) place.next = offset; // more where a filter leaves records out
        else {
          this.#forget((held) => held.place === place);
          place.rejoin(offset);
        }
      }
    }
    return news;
  }

  /** `drainMs` null: another member has them already. */
  #revoked(partitions: Partitions, drainMs: number | null): void {
    const concerned = [...this.#places].filter(({ topic, partition }) => (partitions[topic] ?? []).includes(partition));
    const told = concerned.filter((place) => !place.isRevoked);
    if (drainMs === null) this.#lose(concerned);
    else {
      const by = Date.now() + drainMs;
      for (const place of told) Object.assign(place, { isRevoked: true, drainBy: by });
      void sleep(drainMs).then(() => this.#drained(told.filter((place) => place.drainBy === by)));
      if (concerned.length === 0) void this.#ask({ op: "release", partitions }, false).catch(() => {}); // given up already
    }
    if (told.length > 0) call(this.options.onRevoked, partitionsOf(told), drainMs === null);
    this.#releaseDrained();
  }

  /** The time to finish revoked partitions is over: the server has taken those that are left. */
  #drained(places: readonly Place[]): void {
    const late = places.filter((place) => place.isRevoked && !place.isGone);
    if (late.length === 0 || this.#end !== null) return;
    this.#lose(late);
    call(this.options.onRevoked, partitionsOf(late), true);
  }

  #lose(places: readonly Place[]): void {
    for (const place of places) {
      this.#places.drop(place);
      delete this.#epochs[place.topic];
    }
    if (places.length > 0) this.#forget((held) => held.place !== null && held.place.isGone);
  }

  // ------------------------------------------------------------------------------------------------- frames, credit

  #takeIn(fields: Fields, payload: Uint8Array | null): void {
    const messages = readMessages(this, arrayOf(fields["messages"]), payload);
    const bytes = countOf(fields["bytes"]);
    const last = messages.at(-1);
    if (last === undefined) return;
    const next = this.mode === "queue" ? null : placeOf(last) + 1;
    const held = this.#arrived(last.topic, last.partition, next, messages.length, bytes);
    this.#hold(held, messages as unknown as M[]);
  }

  #takeInBatch(fields: Fields, payload: Uint8Array | null): void {
    const from = countOf(fields["offset"]);
    const next = countOf(fields["next_offset"]);
    const topic = String(fields["topic"]);
    const partition = countOf(fields["partition"]);
    if (payload === null || next < from) throw new Undecodable("a batch without its records");
    const records = decodeBatches(payload, topic, partition, from, this.inflaters);
    const held = this.#arrived(topic, partition, next, countOf(fields["count"]), countOf(fields["bytes"]));
    if (this.#inflating === null && Array.isArray(records)) {
      this.#hold(held, records as unknown as M[]);
      return;
    }
    const era = this.#era;
    const before: Promise<void> = this.#inflating ?? Promise.resolve();
    const mine = before
      .then(async () => {
        const inflated = await records;
        this.#hold(held, era === this.#era ? (inflated as unknown as M[]) : []);
      })
      .catch((error: unknown) => this.#fail(error as Error))
      .finally(() => {
        if (this.#inflating === mine) this.#inflating = null;
      });
    this.#inflating = mine;
  }

  /** Book a frame. `next`: the offset behind it; null in queue mode, where a frame is of any partitions. */
  #arrived(topic: string, partition: number, next: number | null, count: number, bytes: number): Held<M> {
    this.#messages.received(count);
    this.#bytes?.received(bytes);
    const place = next === null ? null : (this.#places.get(topic, partition) ?? null);
    if (place !== null) {
      place.next = next!;
      place.frames++;
    }
    return { items: [], at: 0, place, count, bytes };
  }

  /** Keep what a frame has that is to be given; nothing of a partition that is not ours, or that was given before. */
  #hold(held: Held<M>, items: readonly M[]): void {
    const { place } = held;
    if (this.#end !== null || place?.isGone === true || (place === null && this.mode !== "queue")) items = [];
    else if (place !== null && items.length > 0 && placeOf(items[0]!) < place.given) {
      items = items.filter((item) => placeOf(item) >= place.given);
    }
    held.items = items;
    if (items.length > 0) this.#inbox.add(held);
    else this.#release(held);
  }

  /** A frame is taken, or dropped: return what is left of its credit. */
  #release(held: Held<M>): void {
    if (held.place !== null) held.place.frames--;
    this.#giveBack(held.count - held.at, held.bytes);
  }

  #giveBack(messages: number, bytes: number): void {
    if (this.#autoCredit) return;
    this.#messages.taken(messages);
    this.#bytes?.taken(bytes);
    if (this.#messages.isDue || this.#bytes?.isDue === true) this.#permit();
  }

  #permit(): void {
    if (!this.#isAttached || this.connection.state !== "open") return; // the next connection compares accounts
    const command: Fields = { op: "permit", sub: this.follower.sub, messages: this.#messages.returned() };
    if (this.#bytes !== null) command["bytes"] = this.#bytes.returned();
    if (command["messages"] !== 0 || command["bytes"]) this.connection.tell(command);
  }

  /** Drop frames that wait here. */
  #forget(isDropped: (held: Held<M>) => boolean): void {
    for (const held of this.#inbox.drop(isDropped)) this.#release(held);
  }

  // ------------------------------------------------------------------------------------------------------ consuming

  #takeOne(): M | null {
    this.#finishInHand();
    for (;;) {
      const held = this.#inbox.first;
      if (held === undefined || this.#closing !== null) return null;
      const item = held.items[held.at]!;
      const isGiven = this.mode !== "queue" || !this.#isOver(item);
      if (isGiven) this.#give(held.place, item);
      if (held.at + 1 === held.items.length) {
        this.#inbox.shift();
        this.#release(held);
      } else {
        held.at++;
        this.#giveBack(1, 0);
      }
      if (isGiven) return item;
    }
  }

  async #nextOne(): Promise<M | null> {
    while (await this.#more()) {
      const item = this.#takeOne();
      if (item !== null) return item;
    }
    return null;
  }

  /** Wait for a frame; false when none will come. Raises what ended the subscription. */
  async #more(): Promise<boolean> {
    while (this.#inbox.first === undefined || this.#closing !== null) {
      if (this.#end?.error) throw this.#end.error;
      if (this.#end !== null || this.#closing !== null) return false;
      await this.#inbox.changed();
    }
    return true;
  }

  /** Queue: the lease is over: the message comes again, here or elsewhere. */
  #isOver(item: M): boolean {
    const until = (item as unknown as Message).visibleUntil;
    return until !== null && until <= Date.now() + this.connection.clockAheadMs;
  }

  #give(place: Place | null, last: M): void {
    if (place === null) return;
    place.given = placeOf(last) + 1;
    this.#inHand = place;
  }

  /** The consumer has asked for more: it is done with what it had. */
  #finishInHand(): void {
    const place = this.#inHand;
    if (place === null) return;
    this.#inHand = null;
    if (this.options.commit === "manual") return;
    place.done = place.given;
    if (place.isRevoked) this.#releaseDrained();
  }

  async #consume(onMessage: (message: M) => unknown): Promise<void> {
    const count = this.mode === "queue" ? (this.options.concurrency ?? 1) : 1;
    const workers = Array.from({ length: count }, async () => {
      for (;;) {
        const message = this.#takeOne() ?? (await this.#nextOne());
        if (message === null) return;
        if (this.mode === "queue" && this.options.autoAck !== true) await this.#work(message as unknown as Message, onMessage);
        else await onMessage(message);
      }
    });
    try {
      await Promise.all(workers);
    } catch (error) {
      this.#inHand = null; // it is not done
      this.#fail(error as Error);
      if (this.options.onEnd === undefined) uncaught(error);
    }
  }

  /** Queue: what becomes of a message is what becomes of the call. Credit bounds the acks on their way. */
  async #work(message: Message, onMessage: (message: M) => unknown): Promise<void> {
    try {
      await onMessage(message as unknown as M);
      void message.ack();
    } catch (error) {
      void message.nack({ reason: String(error).slice(0, 200) });
    }
  }

  // ------------------------------------------------------------------------------------------------------- settling

  /** @internal */
  settle(op: "ack" | "nack" | "reject" | "extend", receipt: string, fields: Fields): Promise<string | null> {
    if (this.#end !== null) return Promise.reject(this.#end.error ?? new Closed("the subscription is closed"));
    return this.#settling.settle(op, receipt, fields);
  }

  /** @internal */
  ackPlace(message: Item): void {
    this.ack(message);
  }

  #ask(fields: Fields, repeatable = true): Promise<Fields> {
    const { op, ...rest } = fields;
    return this.connection.request({ op, sub: this.follower.sub, ...rest }, { repeatable });
  }

  /** Commit what is new of these. Rejects with Refused. */
  async #sendCommit(given: readonly Place[]): Promise<void> {
    const places = given.filter((place) => place.done !== place.committed);
    if (places.length === 0 || this.mode !== "stream" || this.options.autoAck === true) return;
    const offsets = new Map(places.map((place) => [place, place.done]));
    const cursor = places.map((place) => `${place.topic}:${place.partition}=${place.done}`).join(";");
    // While the subscription is being closed nobody waits for another connection.
    const answer = await this.#ask({ op: "ack", cursor }, this.#closing === null);
    const results = arrayOf(answer["results"]).map(objectOf);
    let refused: Fields | null = null;
    places.forEach((place, index) => {
      const result = objectOf(results[index]);
      if (result["ok"] === true) place.committed = offsets.get(place)!;
      else refused = result;
    });
    if (refused !== null) throw Refused.of(refused);
  }

  /** Give up revoked partitions of which the consumer has nothing in hand. */
  #releaseDrained(): void {
    const drained = [...this.#places].filter((place) => place.isRevoked && place.frames === 0 && place.given <= place.done);
    if (drained.length === 0) return;
    const partitions = partitionsOf(drained);
    for (const place of drained) this.#places.drop(place);
    void this.#sendCommit(drained)
      .catch(() => {}) // then the next owner gets them again
      .then(() => this.#ask({ op: "release", partitions }, false))
      .catch(() => {}); // a lost connection: the server says again what it wants back
  }

  // ------------------------------------------------------------------------------------------------------------ end

  async #shut(): Promise<void> {
    if (this.#end !== null) return;
    const { connection, follower } = this;
    this.#inbox.wake();
    if (this.#workers === null) this.#inHand = null; // not done: nobody can say whether the loop was left because of it
    else await Promise.race([this.#workers, sleep(CLOSE_TIMEOUT_MS)]);
    if (connection.state === "open") {
      this.#settling.flush();
      if (this.mode === "stream") await this.commit().catch(() => {}); // else those who come after get it again
    }
    if (this.#end !== null) return;
    connection.leave(follower);
    const isOpen = connection.state === "open";
    this.#finish(null);
    if (isOpen) await this.#ask({ op: "unsubscribe" }, false).catch(() => {});
  }

  #fail(error: Error): void {
    if (this.#end !== null) return;
    this.connection.followers.delete(this.follower.sub);
    this.connection.tell({ op: "unsubscribe", sub: this.follower.sub });
    this.#finish(error);
  }

  #finish(error: Error | null): void {
    if (this.#end !== null) return;
    this.#end = { error };
    // A reader may still have what has come; the others could not settle it, and after close() nobody wants it.
    if (error === null || this.mode !== "reader") this.#inbox.drop(() => true);
    clearInterval(this.#commitTimer);
    this.options.signal?.removeEventListener("abort", this.#aborted); // it may live longer, and hold this
    this.#refuse(error ?? new Closed("the subscription is closed"));
    this.#inbox.wake();
    this.onOver();
    call(this.options.onEnd, error);
  }

  #creditDefault(): number {
    const wanted = this.mode === "queue" ? CREDIT_QUEUE : this.options.format === "batch" ? CREDIT_BATCH : CREDIT;
    return Math.min(wanted, Number(this.connection.limits["max_credit"] ?? wanted));
  }
}

function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => {
    const timer: unknown = setTimeout(resolve, ms);
    (timer as { unref?: () => void }).unref?.();
  });
}

function randomName(): string {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
