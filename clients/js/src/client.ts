/** The client: one connection that carries any number of sends and subscriptions. */
import { Connection, type ConnectionState, type TokenSource } from "./connection.js";
import { Closed, MqError } from "./errors.js";
import { Http } from "./http.js";
import type { Message } from "./message.js";
import { Producer, PRODUCER_DEFAULTS, type ProduceRecord, type ProducerOptions, type Receipt } from "./producer.js";
import type { Inflaters, RawRecord } from "./record_batch.js";
import type { SocketClass } from "./socket.js";
import { Subscription, type SubscribeOptions } from "./subscription.js";

export interface ConnectOptions extends Partial<ProducerOptions> {
  /** A token, or a function that gets one; the latter is asked again before it expires and at each connection. */
  token?: TokenSource;
  /** A name for the server's logs. */
  client?: string;
  /** Bytes instead of JSON and base64 on the wire. Default false. */
  binary?: boolean;
  /** Stop trying to connect for the first time; afterwards it closes the client. */
  signal?: AbortSignal;
  onState?: (state: ConnectionState, reason: Error | null) => void;
  /** For raw batches that clients stored compressed. */
  inflaters?: Inflaters;
  /** Another WebSocket than the platform's. */
  WebSocket?: SocketClass;
}

export class Client {
  /** Topics, offsets, schedules and groups, over HTTP. */
  readonly http: Http;
  private readonly connection: Connection;
  private readonly producer: Producer;
  private nextSub = 1;

  /** @internal */
  constructor(
    url: string,
    private readonly options: ConnectOptions,
    socketClass: SocketClass,
  ) {
    const { token, client, binary = false, signal, onState } = options;
    this.http = new Http({ url, token, signal });
    this.connection = new Connection({ url: socketUrl(url), token, client, binary, WebSocket: socketClass, onState });
    const given = Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
    this.producer = new Producer(this.connection, { ...PRODUCER_DEFAULTS, ...given }, binary);
    signal?.addEventListener("abort", () => this.connection.close(new Closed("aborted")), { once: true });
  }

  /** @internal */
  async open(): Promise<this> {
    if (this.options.signal?.aborted) this.connection.close(new Closed("aborted"));
    else await this.connection.open();
    return this;
  }

  get state(): ConnectionState {
    return this.connection.state;
  }

  /** Send one record, or several. Resolves when the server has them as safe as `acks` says: on disk, unless told otherwise. */
  produce(topic: string, record: ProduceRecord): Promise<Receipt>;
  produce(topic: string, records: readonly ProduceRecord[]): Promise<Receipt[]>;
  async produce(topic: string, records: ProduceRecord | readonly ProduceRecord[]): Promise<Receipt | Receipt[]> {
    if (Array.isArray(records)) return this.producer.send(topic, records);
    const [receipt] = await this.producer.send(topic, [records as ProduceRecord]);
    return receipt!;
  }

  /** Consume. Iterate over what is returned, or give `onMessage`. */
  subscribe(options: SubscribeOptions<RawRecord> & { format: "batch" }): Subscription<RawRecord>;
  subscribe(options: SubscribeOptions<Message>): Subscription<Message>;
  subscribe(options: SubscribeOptions<any>): Subscription<any> {
    if (options.format === "batch" && !this.options.binary) {
      throw new MqError("raw batches need connect(url, { binary: true })");
    }
    const subscription = new Subscription<any>(this.connection, `s${this.nextSub++}`, options, this.options.inflaters ?? {});
    if (options.signal?.aborted) subscription.ended(new Closed("aborted"));
    else this.connection.follow(subscription);
    return subscription;
  }

  /** Send what waits, commit and give back what subscriptions have, then close. */
  async close(): Promise<void> {
    this.producer.flushAll();
    await Promise.all([...this.connection.followers.values()].map((one) => (one as Subscription<any>).close()));
    if (this.connection.state === "open") await this.producer.idle();
    this.connection.close();
  }
}

function socketUrl(given: string): string {
  const url = new URL(given);
  url.protocol = url.protocol.replace("http", "ws");
  if (url.pathname === "/") url.pathname = "/ws/v1";
  return url.href;
}
