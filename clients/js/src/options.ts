/** What a subscription can be asked for. */
import type { Message } from "./message.js";
import type { Partitions } from "./places.js";

export type Mode = "reader" | "stream" | "queue";
export type Start = "earliest" | "latest" | { timestamp: number };
export type From = Start | string | Record<string, Record<number, number>>;

export interface SubscribeOptions<M = Message> {
  topics?: string | string[];
  /** A regular expression over whole topic names, instead of `topics`. */
  pattern?: string;
  /** A light queue of the topics, as an inbox; `room/*`: all whose names begin so. See `Client.inbox`. */
  queue?: string;
  group?: string;
  /** Default: `reader`, and `stream` with a group. */
  mode?: Mode;
  /** Stream: the member's name. With the same one a restarted program takes its own partitions again. */
  member?: string;
  /** Stream: the machine room that this member stands in, for a group that is shared out by rooms. */
  room?: string;
  /** Reader: where to begin. A string that is no word is a cursor. Default `latest`. */
  from?: From;
  /** Stream, queue: where a new group begins. Default `latest` in stream mode, `earliest` in queue mode. */
  start?: Start;
  /** Only messages with one of these tags. */
  tags?: string[];
  /** `batch`: raw batches, for speed; the messages are `RawRecord`s then. Default: what the connection speaks. */
  format?: "json" | "binary" | "batch";
  /**
   * Messages that may wait here. Default 2,000; raw batches 10,000; queue mode 200, because each that waits is on lease.
   */
  credit?: number;
  creditBytes?: number;
  /** Messages of one frame at most. */
  batch?: number;
  /** Queue: how long a message is this consumer's. */
  invisibleMs?: number;
  /** Messages are done as soon as they are sent: at most once. Not for readers. */
  autoAck?: boolean;
  /** Stream: `auto` (default) commits what the consumer is done with; `manual` what it acks. */
  commit?: "auto" | "manual";
  /** Stream: how often what is done is committed. Default 1,000. */
  commitIntervalMs?: number;
  /** Closes the subscription. */
  signal?: AbortSignal;
  /**
   * Called with each message; waited for before the next. Queue mode: returning acks, throwing gives back. Other modes:
   * throwing ends the subscription. Without it, iterate over the subscription.
   */
  onMessage?: (message: M) => unknown;
  /** Queue: how many calls of `onMessage` may run at a time. Default 1. */
  concurrency?: number;
  /** Stream: messages of these partitions follow. Reader: partitions that came later. */
  onAssigned?: (partitions: Partitions) => void;
  /** Stream: no message of these partitions follows; `lost`: another member has them already, and acks are refused. */
  onRevoked?: (partitions: Partitions, lost: boolean) => void;
  /** Not in queue mode: every partition has reached its end for the first time (and again after a seek). */
  onCaughtUp?: () => void;
  /**
   * The subscription is over; null when it was closed here. With `onMessage` but without this, an error that ends the
   * subscription is an uncaught error.
   */
  onEnd?: (error: Error | null) => void;
}
