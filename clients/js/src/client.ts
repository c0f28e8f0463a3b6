/** The client: one connection that carries any number of sends and subscriptions. */
import { Connection, type ConnectionState, type TokenSource } from "./connection.js";
import { Closed, MqError } from "./errors.js";
import { Http } from "./http.js";
import type { Message } from "./message.js";
import type { SubscribeOptions } from "./options.js";
import { Producer, PRODUCER_DEFAULTS, type ProduceRecord, type ProducerOptions, type Receipt } from "./producer.js";
import type { Inflaters, RawRecord } from "./record_batch.js";
import type { SocketClass } from "./socket.js";
import { Subscription } from "./subscription.js";

/** How long `close` waits for what is on its way. */
const CLOSE_TIMEOUT_MS = 10_000;

export interface ConnectOptions extends Partial<ProducerOptions> {
  /** A token, or a function that gets one; the latter is asked again before it expires and at each connection. */
  token?: TokenSource;
  /** A name for the server's logs. */
  client?: string;
  /** Bytes instead of JSON and base64 on the wire. Default false. */
  binary?: boolean;
  /** Stops trying to connect; afterwards it closes the client. */
  signal?: AbortSignal;
  /** The connection has changed its state; `reason` says why it was lost or closed. */
  onState?: (state: ConnectionState, reason: Error | null) => void;
  /** For raw batches that their senders compressed; Node has gzip by itself, and zstd from 22.15 on; browsers have gzip. */
  inflaters?: Inflaters;
  /** Another WebSocket than the platform's. */
  WebSocket?: SocketClass;
}

export class Client {
  /** Topics, offsets, schedules and groups, over HTTP. */
  readonly http: Http;
  readonly #connection: Connection;
  readonly #producer: Producer;
  readonly #subscriptions = new Set<Subscription<any>>();
  #nextSub = 1;
  #closing: Promise<void> | null = null;
  #isFlushed = false;

  /** @internal */
  constructor(
    url: string,
    private readonly options: ConnectOptions,
    socketClass: SocketClass,
  ) {
    const { token, client, binary = false, signal, onState } = options;
    this.http = new Http({ url, token, signal, retryMs: options.retryMs });
    this.#connection = new Connection({ url: socketUrl(url), token, client, binary, WebSocket: socketClass, onState });
    const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
    this.#producer = new Producer(this.#connection, { ...PRODUCER_DEFAULTS, ...given }, binary);
    signal?.addEventListener("abort", () => this.#abort(), { once: true });
  }

  /** @internal */
  async open(): Promise<this> {
    const opened = this.#connection.open();
    if (this.options.signal?.aborted === true) this.#abort();
    await opened;
    return this;
  }

  get state(): ConnectionState {
    return this.#connection.state;
  }

  /** Send one record, or several that are stored together. Resolves when the server has them as safe as `acks` says. */
  produce(topic: string, record: ProduceRecord): Promise<Receipt>;
  produce(topic: string, records: readonly ProduceRecord[]): Promise<Receipt[]>;
  produce(topic: string, records: ProduceRecord | readonly ProduceRecord[]): Promise<Receipt | Receipt[]> {
    if (this.#isFlushed) return Promise.reject(new Closed("the client is being closed"));
    if (Array.isArray(records)) return this.#producer.send(topic, records);
    return this.#producer.sendOne(topic, records as ProduceRecord);
  }

  /** Resolves when another `produce` would be taken: for those who send without waiting for each receipt. */
  room(): Promise<void> {
    return this.#producer.room();
  }

  /** Whether `produce` would reject with QueueFull. */
  get isFull(): boolean {
    return this.#producer.isFull;
  }

  /** Send what waits for company, and resolve when everything is answered. */
  flush(): Promise<void> {
    return this.#producer.flush();
  }

  /** Consume. Iterate over what is returned, or give `onMessage`. */
  subscribe(options: SubscribeOptions<RawRecord> & { format: "batch" }): Subscription<RawRecord>;
  subscribe(options: SubscribeOptions<Message>): Subscription<Message>;
  subscribe(options: SubscribeOptions<any>): Subscription<any> {
    if (this.#closing !== null) throw new Closed("the client is being closed");
    if (options.format === "batch" && this.options.binary !== true) {
      throw new MqError("raw batches need connect(url, { binary: true })");
    }
    const name = `s${this.#nextSub++}`;
    const subscription = new Subscription<any>(this.#connection, name, options, this.options.inflaters ?? {}, () =>
      this.#subscriptions.delete(subscription),
    );
    this.#subscriptions.add(subscription);
    if (options.signal?.aborted === true) void subscription.close();
    else this.#connection.follow(subscription.follower);
    return subscription;
  }

  /**
   * The messages of a light queue of a topic: an inbox, a room, or `room/*`, all whose names begin so. It begins at `from`
   * (default `latest`). With a `group`, which is one device, it goes on where that was, and commits as a stream does;
   * with `mode: "queue"` the group's messages are on lease, and are settled one by one.
   */
  inbox(topic: string, queue: string, options: Omit<SubscribeOptions, "topics" | "pattern" | "queue"> = {}): Subscription {
    return this.subscribe({ ...options, topics: topic, queue });
  }

  /**
   * Close the subscriptions (what their callbacks still send is sent), wait for the receipts of what was sent, then close
   * the connection. What takes longer than 10 s is given up.
   */
  close(): Promise<void> {
    this.#closing ??= this.#shut();
    return this.#closing;
  }

  async #shut(): Promise<void> {
    let timer: ReturnType<typeof setTimeout> | undefined;
    const late = new Promise<void>((resolve) => (timer = setTimeout(resolve, CLOSE_TIMEOUT_MS)));
    await Promise.race([late, Promise.all([...this.#subscriptions].map((subscription) => subscription.close()))]);
    this.#isFlushed = true;
    if (this.#connection.state === "open") await Promise.race([late, this.#producer.flush()]);
    clearTimeout(timer);
    this.#connection.close();
  }

  #abort(): void {
    this.#connection.close(new Closed("aborted"));
  }
}

function socketUrl(given: string): string {
  const url = new URL(given);
  url.protocol = url.protocol.replace("http", "ws");
  if (url.pathname === "/") url.pathname = "/ws/v1";
  return url.href;
}
