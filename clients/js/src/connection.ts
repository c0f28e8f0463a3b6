/**
 * One conversation with the server over as many sockets as it takes: connects, says hello, resumes the session, matches
 * answers to commands, notices a dead peer, and comes back after every close that allows it.
 *
 *     connecting ── hello answered ──> open ── lost ──> waiting ── after a while ──> connecting
 *         └── refused, closed for good, or close() ──> closed
 *
 * Invariants
 *     K1  a command is settled exactly once: with its answer, with ConnectionLost, or with what closed the connection
 *     K2  what was not answered when a connection went is sent again on the next one, unless its sender said that it
 *         must not be repeated: then it is rejected with ConnectionLost
 *     K3  on a new connection, subscriptions are attached before any other command is sent
 *     K4  an answer is dealt with before the next frame is looked at (`Command.answered`): what follows a `subscribe` or
 *         `seek` often comes in the same packet
 */
import { mayReconnect, waitMs } from "./backoff.js";
import { Closed, ConnectionLost, Refused, Undecodable } from "./errors.js";
import { msOf, objectOf, readFrame, type Fields, type Frame } from "./frames.js";
import { call } from "./hooks.js";
import type { Socket, SocketClass } from "./socket.js";

const HELLO_TIMEOUT_MS = 10_000;
const STABLE_MS = 5_000;
const PING_MS = 25_000;
const PING_MS_MIN = 100;
const GRACE_MS = 15_000;
const TAKEN_OVER = 4009;
/** The session goes on, but this subscription begins anew. */
const CANNOT_RESUME = 40961;
const SUBPROTOCOL = "mq.v1.json";

/** A token, or what gets one. */
export type TokenSource = string | (() => string | Promise<string>);
export type ConnectionState = "connecting" | "open" | "waiting" | "closed";

export interface ConnectionOptions {
  url: string;
  token?: TokenSource | undefined;
  client?: string | undefined;
  binary: boolean;
  WebSocket: SocketClass;
  onState?: ((state: ConnectionState, reason: Error | null) => void) | undefined;
}

/** Whoever follows a subscription over connections. */
export interface Follower {
  readonly sub: string;
  /** The last frame taken in, for `hello.resume`. */
  readonly seen: number;
  /** A new connection: `state` is what the server kept of it; null: nothing, subscribe again. */
  attach(state: Fields | null): void;
  push(frame: Frame): void;
  ended(error: Error): void;
}

/** How a command is sent. */
export interface Command<T> {
  /** The frame, given the command's id. */
  encode(id: number): string | Uint8Array;
  /** Whether it may be sent again when its answer was lost. Default true. */
  repeatable?: boolean;
  /** Called with the answer before the next frame is looked at (K4). Default: the answer itself. */
  answered?: (answer: Fields) => T;
}

interface Pending {
  encode(id: number): string | Uint8Array;
  repeatable: boolean;
  sent: boolean;
  answered: (answer: Fields) => void;
  reject: (error: Error) => void;
}

export class Connection {
  readonly followers = new Map<string, Follower>();
  #left: Follower[] = []; // that ended while there was no connection: the session still has them, and what they had seen
  state: ConnectionState = "connecting";
  /** When the last connection was lost, epoch ms. */
  lostAt = 0;
  graceMs = GRACE_MS;
  /** The server's clock less ours, as far as pongs tell. */
  clockAheadMs = 0;
  /** `limits` of the last hello's answer. */
  limits: Fields = {};

  #socket: Socket | null = null;
  readonly #pending = new Map<number, Pending>();
  #nextId = 1;
  #session: string | null = null;
  #failures = 0;
  #openedAt = 0;
  #reconnectAfterMs = 0;
  #isLeaving = false; // the server has said goaway: nothing more is sent on this connection
  #pingMs = PING_MS;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #watchdog: ReturnType<typeof setInterval> | undefined;
  #heardAt = 0;
  #closing: Error | null = null;
  #opening: { resolve: () => void; reject: (error: Error) => void } | null = null;

  constructor(private readonly options: ConnectionOptions) {}

  /** Resolves with the first answered hello; rejects when the server refuses for good. */
  open(): Promise<void> {
    globalThis.addEventListener?.("online", this.#online);
    return new Promise((resolve, reject) => {
      this.#opening = { resolve, reject };
      void this.#dial();
    });
  }

  /** Send a command, now or when there is a connection, and wait for its answer. */
  send<T = Fields>(command: Command<T>): Promise<T> {
    if (this.#closing !== null) return Promise.reject(this.#closing);
    const { promise, id } = this.#enqueue(command);
    if (this.state === "open" && !this.#isLeaving) this.#transmit(id);
    return promise;
  }

  /** Send a command of these fields. See `send`. */
  request<T = Fields>(fields: Fields, how: Omit<Command<T>, "encode"> = {}): Promise<T> {
    return this.send({ ...how, encode: (id) => JSON.stringify({ id, ...fields }) });
  }

  /** Send a command that needs no answer; dropped when there is no connection. */
  tell(fields: Fields): void {
    if (this.state === "open") this.#socket!.send(JSON.stringify(fields));
  }

  /** End a subscription here; without a connection, the next one tells the server. */
  leave(follower: Follower): void {
    this.followers.delete(follower.sub);
    if (this.state !== "open") this.#left.push(follower);
  }

  /** Begin to follow: now, or with the next connection. */
  follow(follower: Follower): void {
    if (this.#closing !== null) {
      follower.ended(this.#closing);
      return;
    }
    this.followers.set(follower.sub, follower);
    if (this.state === "open" && !this.#isLeaving) follower.attach(null);
  }

  /** End for good: nothing is sent any more, and every unanswered command is rejected. */
  close(error: Error = new Closed("the client was closed"), code = 1000): void {
    if (this.#closing !== null) return;
    this.#closing = error;
    globalThis.removeEventListener?.("online", this.#online);
    this.#drop(code);
    for (const pending of this.#pending.values()) pending.reject(error);
    this.#pending.clear();
    const followers = [...this.followers.values()];
    this.followers.clear();
    for (const follower of followers) follower.ended(error);
    this.#opening?.reject(error);
    this.#opening = null;
    this.#become("closed", code === 1000 ? null : error);
  }

  // ------------------------------------------------------------------------------------------------- connecting

  async #dial(): Promise<void> {
    this.#become("connecting", null);
    let token: string | undefined;
    try {
      token = typeof this.options.token === "function" ? await this.options.token() : this.options.token;
    } catch (error) {
      this.#lost(new ConnectionLost(`no token could be had: ${String(error)}`));
      return;
    }
    if (this.#closing !== null) return;
    let socket: Socket;
    try {
      socket = new this.options.WebSocket(this.options.url, [SUBPROTOCOL]);
    } catch (error) {
      this.close(error as Error, 4500); // an impossible URL stays one
      return;
    }
    this.#socket = socket;
    socket.binaryType = "arraybuffer";
    this.#timer = setTimeout(() => this.#lost(new ConnectionLost("the server did not answer")), HELLO_TIMEOUT_MS);
    socket.onopen = () => this.#greet(token);
    socket.onmessage = (event) => this.#received(event.data);
    socket.onerror = () => {}; // a close follows, and says more
    socket.onclose = (event) => this.#closed(event.code, event.reason);
  }

  #greet(token: string | undefined): void {
    const { binary, client } = this.options;
    const hello: Fields = { op: "hello", binary, token, client };
    if (this.#session !== null) {
      hello["resume"] = this.#session;
      hello["seen"] = Object.fromEntries([...this.#left, ...this.followers.values()].map(({ sub, seen }) => [sub, seen]));
    }
    const { promise, id } = this.#enqueue({
      encode: (id) => JSON.stringify({ id, ...hello }),
      repeatable: false,
      answered: (welcome) => this.#welcomed(welcome),
    });
    this.#transmit(id);
    promise.catch((error: unknown) => {
      if (error instanceof Refused) error.retriable ? this.#lost(error) : this.close(error, 4500);
    });
  }

  #welcomed(welcome: Fields): void {
    if (typeof welcome["session"] !== "string") throw new Undecodable("an answer to hello without a session");
    this.#session = welcome["session"];
    this.limits = objectOf(welcome["limits"] ?? {});
    this.#pingMs = Math.max(PING_MS_MIN, msOf(welcome["ping_ms"], PING_MS));
    this.graceMs = msOf(welcome["grace_ms"], GRACE_MS);
    clearTimeout(this.#timer);
    this.#watch();
    this.#openedAt = Date.now();
    this.#isLeaving = false;
    this.state = "open"; // told to the application when all is sent
    const kept = welcome["resumed"] === true ? objectOf(welcome["subs"] ?? {}) : {};
    const ended = welcome["resumed"] === true ? objectOf(welcome["ended"] ?? {}) : {};
    for (const [sub, follower] of [...this.followers]) {
      const error = ended[sub] === undefined ? null : Refused.of(objectOf(ended[sub]));
      if (error === null || error.code === CANNOT_RESUME) follower.attach(kept[sub] === undefined ? null : objectOf(kept[sub]));
      else this.#end(sub, follower, error);
    }
    for (const [id, pending] of [...this.#pending]) if (!pending.sent) this.#transmit(id);
    for (const sub of Object.keys(kept)) if (!this.followers.has(sub)) this.tell({ op: "unsubscribe", sub }); // behind its acks
    this.#left = [];
    this.tell({ op: "ping" });
    call(this.options.onState, "open", null);
    this.#opening?.resolve();
    this.#opening = null;
  }

  /** A peer that died without a word shows by silence; browsers do not show the server's pings. */
  #watch(): void {
    this.#heardAt = Date.now();
    this.#watchdog = setInterval(() => {
      const silentMs = Date.now() - this.#heardAt;
      if (silentMs > 2 * this.#pingMs) this.#lost(new ConnectionLost(`nothing was heard for ${silentMs} ms`));
      else if (silentMs > this.#pingMs / 2) this.tell({ op: "ping" });
    }, this.#pingMs / 2);
  }

  #closed(code: number, reason: string): void {
    const told = `${code}${reason ? ` (${reason})` : ""}`;
    if (code === TAKEN_OVER) this.#session = null; // two that resume one session would throw each other out for ever
    if (mayReconnect(code)) this.#lost(new ConnectionLost(`the connection was closed with ${told}`));
    else this.close(new Closed(`the server closed the connection with ${told}`, code), code);
  }

  #lost(error: Error): void {
    if (this.#closing !== null) return;
    this.#drop(4000);
    if (this.state === "open") this.lostAt = Date.now();
    for (const [id, pending] of this.#pending) {
      if (pending.sent && !pending.repeatable) {
        this.#pending.delete(id);
        pending.reject(error instanceof ConnectionLost ? error : new ConnectionLost(error.message));
      }
      pending.sent = false;
    }
    const wasStable = this.#openedAt > 0 && Date.now() - this.#openedAt > STABLE_MS;
    this.#failures = wasStable ? 1 : this.#failures + 1;
    this.#openedAt = 0;
    const wait = waitMs(this.#failures) + this.#reconnectAfterMs;
    this.#reconnectAfterMs = 0;
    this.#become("waiting", error);
    if (this.#closing === null) this.#timer = setTimeout(() => void this.#dial(), wait); // the application may have closed
  }

  /** The network is back: no need to wait any longer. */
  readonly #online = (): void => {
    if (this.state !== "waiting") return;
    clearTimeout(this.#timer);
    void this.#dial();
  };

  /** Let go of the socket; nothing of it is heard any more. */
  #drop(code: number): void {
    clearTimeout(this.#timer);
    clearInterval(this.#watchdog);
    const socket = this.#socket;
    this.#socket = null;
    if (socket === null) return;
    socket.onopen = socket.onmessage = socket.onclose = null;
    try {
      socket.close(code);
    } catch {
      // still connecting, or closed already
    }
  }

  #become(state: ConnectionState, reason: Error | null): void {
    if (state === this.state && reason === null) return;
    this.state = state;
    call(this.options.onState, state, reason);
  }

  // ---------------------------------------------------------------------------------------------------- frames

  #enqueue<T>(command: Command<T>): { promise: Promise<T>; id: number } {
    const id = this.#nextId++;
    const promise = new Promise<T>((resolve, reject) => {
      const { answered = (answer: Fields) => answer as T } = command;
      this.#pending.set(id, {
        encode: command.encode,
        repeatable: command.repeatable ?? true,
        sent: false,
        answered: (answer) => resolve(answered(answer)),
        reject,
      });
    });
    return { promise, id };
  }

  #transmit(id: number): void {
    const pending = this.#pending.get(id)!;
    let frame: string | Uint8Array;
    try {
      frame = pending.encode(id);
    } catch (error) {
      this.#pending.delete(id);
      pending.reject(error as Error); // something that JSON cannot say
      return;
    }
    pending.sent = true;
    this.#socket!.send(frame);
  }

  #received(data: unknown): void {
    this.#heardAt = Date.now();
    try {
      const frame = readFrame(data);
      const { id, op, sub } = frame.fields;
      if (typeof id === "number") this.#answered(id, frame.fields);
      else if (typeof sub === "string") this.#pushed(sub, op, frame);
      else this.#told(op, frame.fields);
    } catch (error) {
      // What we do not understand we must not guess at.
      const cause = error instanceof Undecodable ? error : new Undecodable(`a frame that is not understood: ${String(error)}`);
      this.close(cause, 4500);
    }
  }

  #answered(id: number, fields: Fields): void {
    const pending = this.#pending.get(id);
    if (pending === undefined) return;
    this.#pending.delete(id);
    if (fields["ok"] !== true) {
      pending.reject(Refused.of(fields));
      return;
    }
    try {
      pending.answered(fields);
    } catch (error) {
      pending.reject(error as Error);
      throw error;
    }
  }

  #pushed(sub: string, op: unknown, frame: Frame): void {
    const follower = this.followers.get(sub);
    if (follower === undefined) return; // of a subscription that was given up
    if (op === "error") this.#end(sub, follower, Refused.of(frame.fields));
    else follower.push(frame);
  }

  #end(sub: string, follower: Follower, error: Error): void {
    this.followers.delete(sub);
    follower.ended(error);
  }

  #told(op: unknown, fields: Fields): void {
    if (op === "goaway") {
      this.#isLeaving = true;
      this.#reconnectAfterMs = msOf(fields["reconnect_after_ms"], 0);
    } else if (op === "auth_expiring") void this.#renew();
    else if (op === "pong") this.clockAheadMs = Number(fields["ts"]) - Date.now() || 0;
    // errors of commands without an id are of `tell`, whose effect nobody waits for
  }

  async #renew(): Promise<void> {
    if (typeof this.options.token !== "function") return; // the same token would expire again
    try {
      await this.request({ op: "auth", token: await this.options.token() }, { repeatable: false });
    } catch {
      // the server closes with 4005 when the old one ends; the next connection asks for a token again
    }
  }
}
