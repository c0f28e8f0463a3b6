/**
 * One conversation with the server over as many sockets as it takes: connects, says hello, resumes the session, matches
 * answers to commands, notices a dead peer, and comes back after every close that allows it.
 *
 * Invariants
 *     K1  a command is settled exactly once: with its answer, with ConnectionLost, or with Closed
 *     K2  what was not answered when a connection went is sent again on the next one, unless the caller said that the
 *         command must not be repeated (then it is rejected with ConnectionLost)
 *     K3  subscriptions are told of every new connection before any other command is sent on it
 */
import { mayReconnect, waitMs } from "./backoff.js";
import { Closed, ConnectionLost, Refused, Undecodable } from "./errors.js";
import { binaryFrame, readFrame, type Fields, type Frame } from "./frames.js";
import type { Socket, SocketClass } from "./socket.js";

const HELLO_TIMEOUT_MS = 10_000;
const STABLE_MS = 5_000;
const SUBPROTOCOL = "mq.v1.json";

export type TokenSource = string | (() => string | Promise<string>);
export type ConnectionState = "connecting" | "open" | "waiting" | "closed";

export interface ConnectionOptions {
  url: string;
  token?: TokenSource | undefined;
  /** A name for the server's logs. */
  client?: string | undefined;
  /** Binary frames: values and keys as bytes, without base64. */
  binary: boolean;
  WebSocket: SocketClass;
  onState?: ((state: ConnectionState, reason: Error | null) => void) | undefined;
  random?: () => number;
}

/** Whoever follows a subscription over connections. @internal */
export interface Follower {
  readonly sub: string;
  /** The last frame taken in, for `hello.resume`. */
  readonly seen: number;
  /** A new connection: `state` is what the server kept of it; null: nothing, subscribe again. Returns when that is done. */
  connected(state: Fields | null, send: (fields: Fields) => Promise<Fields>): Promise<void>;
  push(frame: Frame): void;
  ended(error: Error): void;
}

interface Pending {
  fields: Fields;
  parts: readonly Uint8Array[] | null;
  repeatable: boolean;
  sent: boolean;
  resolve: (answer: Fields) => void;
  reject: (error: Error) => void;
}

export class Connection {
  readonly followers = new Map<string, Follower>();
  state: ConnectionState = "connecting";
  /** What the last hello was answered with: limits, ping_ms, … */
  welcome: Fields = {};

  private socket: Socket | null = null;
  private readonly pending = new Map<number, Pending>();
  private nextId = 1;
  private session: string | null = null;
  private failures = 0;
  private openedAt = 0;
  private reconnectAfterMs: number | null = null;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private watchdog: ReturnType<typeof setInterval> | undefined;
  private heardAt = 0;
  private settled = false; // hello is answered and the followers are told
  private closing: Error | null = null;
  private firstOpen: { resolve: () => void; reject: (error: Error) => void } | null = null;

  constructor(private readonly options: ConnectionOptions) {}

  /** Resolves with the first answered hello; rejects when the server refuses for good. */
  open(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.firstOpen = { resolve, reject };
      void this.dial();
    });
  }

  /** Send a command and wait for its answer. With `parts` it goes as a binary frame. */
  request(fields: Fields, parts: readonly Uint8Array[] | null = null, repeatable = true): Promise<Fields> {
    if (this.closing !== null) return Promise.reject(this.closing);
    return new Promise((resolve, reject) => {
      const id = this.nextId++;
      const pending: Pending = { fields: { id, ...fields }, parts, repeatable, sent: false, resolve, reject };
      this.pending.set(id, pending);
      if (this.settled) this.transmit(pending);
    });
  }

  /** Send a command that needs no answer; dropped when there is no connection. */
  tell(fields: Fields): void {
    if (this.settled) this.socket?.send(JSON.stringify(fields));
  }

  /** Begin to follow: now, or with the next connection. */
  follow(follower: Follower): void {
    if (this.closing !== null) {
      follower.ended(this.closing);
      return;
    }
    this.followers.set(follower.sub, follower);
    if (this.settled) follower.connected(null, (fields) => this.request(fields, null, false)).catch(() => {});
  }

  /** Send now, before other commands, while a new connection is being settled. */
  private first(fields: Fields): Promise<Fields> {
    return new Promise((resolve, reject) => {
      const id = this.nextId++;
      const pending: Pending = { fields: { id, ...fields }, parts: null, repeatable: false, sent: false, resolve, reject };
      this.pending.set(id, pending);
      this.transmit(pending);
    });
  }

  get bufferedBytes(): number {
    return this.socket?.bufferedAmount ?? 0;
  }

  /** End for good: nothing is sent any more, and every unanswered command is rejected. */
  close(error: Error = new Closed("the client was closed"), code = 1000): void {
    if (this.closing !== null) return;
    this.closing = error;
    clearTimeout(this.timer);
    this.drop(code);
    for (const pending of this.pending.values()) pending.reject(error);
    this.pending.clear();
    for (const follower of [...this.followers.values()]) follower.ended(error);
    this.followers.clear();
    this.firstOpen?.reject(error);
    this.firstOpen = null;
    this.become("closed", code === 1000 ? null : error);
  }

  // ------------------------------------------------------------------------------------------------- connecting

  private async dial(): Promise<void> {
    this.become("connecting", null);
    let token: string | undefined;
    try {
      token = typeof this.options.token === "function" ? await this.options.token() : this.options.token;
    } catch (error) {
      this.lost(new ConnectionLost(`no token could be had: ${String(error)}`));
      return;
    }
    if (this.closing !== null) return;
    let socket: Socket;
    try {
      socket = new this.options.WebSocket(this.options.url, [SUBPROTOCOL]);
    } catch (error) {
      this.close(error as Error); // an impossible URL stays one
      return;
    }
    this.socket = socket;
    socket.binaryType = "arraybuffer";
    this.timer = setTimeout(() => this.lost(new ConnectionLost("the server did not answer")), HELLO_TIMEOUT_MS);
    socket.onopen = () => void this.settle(socket, token);
    socket.onmessage = (event) => {
      if (this.socket === socket) this.received(event.data);
    };
    socket.onerror = () => {}; // a close follows, and says more
    socket.onclose = (event) => {
      if (this.socket === socket) this.closed(event.code, event.reason);
    };
  }

  private async settle(socket: Socket, token: string | undefined): Promise<void> {
    if (this.socket !== socket) return;
    const hello: Fields = { op: "hello", binary: this.options.binary };
    if (token !== undefined) hello["token"] = token;
    if (this.options.client !== undefined) hello["client"] = this.options.client;
    if (this.session !== null) {
      hello["resume"] = this.session;
      hello["seen"] = Object.fromEntries([...this.followers.values()].map(({ sub, seen }) => [sub, seen]));
    }
    try {
      const welcome = await this.first(hello);
      this.welcome = welcome;
      this.session = welcome["session"] as string;
      clearTimeout(this.timer);
      const kept = welcome["resumed"] === true ? ((welcome["subs"] ?? {}) as Record<string, Fields>) : {};
      await Promise.all([...this.followers.values()].map((one) => one.connected(kept[one.sub] ?? null, (fields) => this.first(fields))));
    } catch (error) {
      if (this.socket !== socket) return;
      if (error instanceof Refused && !error.retriable) this.close(error);
      else if (!(error instanceof ConnectionLost)) this.lost(error as Error);
      return;
    }
    if (this.socket !== socket) return;
    this.settled = true;
    this.openedAt = Date.now();
    for (const pending of [...this.pending.values()]) if (!pending.sent) this.transmit(pending);
    this.watch();
    this.become("open", null);
    this.firstOpen?.resolve();
    this.firstOpen = null;
  }

  /** A peer that died without a word shows by silence; browsers do not show the server's pings. */
  private watch(): void {
    const pingMs = Number(this.welcome["ping_ms"] ?? 25_000);
    this.heardAt = Date.now();
    this.watchdog = setInterval(() => {
      const silentMs = Date.now() - this.heardAt;
      if (silentMs > 2 * pingMs) this.lost(new ConnectionLost(`nothing was heard for ${silentMs} ms`));
      else if (silentMs > pingMs / 2) this.tell({ op: "ping" });
    }, pingMs / 2);
    (this.watchdog as { unref?: () => void }).unref?.();
  }

  private closed(code: number, reason: string): void {
    const error = new ConnectionLost(`the connection was closed with ${code}${reason ? ` (${reason})` : ""}`);
    if (mayReconnect(code)) this.lost(error);
    else this.close(new Closed(`the server closed the connection with ${code}${reason ? `: ${reason}` : ""}`, code), code);
  }

  private lost(error: Error): void {
    if (this.closing !== null) return;
    this.drop(4000);
    for (const [id, pending] of this.pending) {
      if (pending.sent && !pending.repeatable) {
        this.pending.delete(id);
        pending.reject(error instanceof ConnectionLost ? error : new ConnectionLost(String(error)));
      }
      pending.sent = false;
    }
    this.failures = this.openedAt > 0 && Date.now() - this.openedAt > STABLE_MS ? 0 : this.failures + 1;
    this.openedAt = 0;
    const wait = waitMs(this.failures, this.options.random) + (this.reconnectAfterMs ?? 0);
    this.reconnectAfterMs = null;
    this.become("waiting", error);
    this.timer = setTimeout(() => void this.dial(), wait);
  }

  /** Let go of the socket; nothing of it is heard any more. */
  private drop(code: number): void {
    clearTimeout(this.timer);
    clearInterval(this.watchdog);
    this.settled = false;
    const socket = this.socket;
    this.socket = null;
    if (socket === null) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    try {
      socket.close(code);
    } catch {
      // still connecting, or closed already
    }
  }

  private become(state: ConnectionState, reason: Error | null): void {
    if (state === this.state && reason === null) return;
    this.state = state;
    this.options.onState?.(state, reason);
  }

  // ---------------------------------------------------------------------------------------------------- frames

  private transmit(pending: Pending): void {
    const socket = this.socket;
    if (socket === null) return;
    pending.sent = true;
    socket.send(pending.parts === null ? JSON.stringify(pending.fields) : binaryFrame(pending.fields, pending.parts));
  }

  private received(data: unknown): void {
    this.heardAt = Date.now();
    try {
      const frame = readFrame(data);
      const { id, op, sub } = frame.fields;
      if (typeof id === "number") this.answered(id, frame.fields);
      else if (typeof sub === "string") this.pushed(sub, op, frame);
      else this.told(op, frame.fields);
    } catch (error) {
      if (!(error instanceof Undecodable)) throw error;
      this.close(error, 4500); // what we do not understand we must not guess at
    }
  }

  private answered(id: number, fields: Fields): void {
    const pending = this.pending.get(id);
    if (pending === undefined) return;
    this.pending.delete(id);
    if (fields["ok"] === false) pending.reject(Refused.of(fields));
    else pending.resolve(fields);
  }

  private pushed(sub: string, op: unknown, frame: Frame): void {
    const follower = this.followers.get(sub);
    if (follower === undefined) return; // of a subscription that was given up
    if (op === "error") {
      this.followers.delete(sub);
      follower.ended(Refused.of(frame.fields));
    } else follower.push(frame);
  }

  private told(op: unknown, fields: Fields): void {
    if (op === "goaway") this.reconnectAfterMs = Number(fields["reconnect_after_ms"] ?? 0);
    else if (op === "auth_expiring") void this.refresh();
    // "pong" has been heard; errors of commands without an id are of `tell`, whose effect nobody waits for
  }

  private async refresh(): Promise<void> {
    if (typeof this.options.token !== "function") return; // the same token would expire again
    try {
      await this.request({ op: "auth", token: await this.options.token() });
    } catch {
      // the server closes with 4005 when the old one ends; the next connection asks for a token again
    }
  }
}
