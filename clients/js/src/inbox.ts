/** Frames that wait for the consumer: a queue of queues, and who waits for something in it. */
import type { Place } from "./places.js";

/** A frame, and how much of it the consumer has taken. */
export interface Held<M> {
  items: readonly M[];
  /** How many of them are taken. */
  at: number;
  /** Reader and stream: all items are of this partition. */
  place: Place | null;
  bytes: number;
  /** What the frame cost of the credit: more than it has items when a raw batch was cut. */
  count: number;
}

export class Inbox<M> {
  #frames: Held<M>[] = [];
  #waiters: (() => void)[] = [];

  get first(): Held<M> | undefined {
    return this.#frames[0];
  }

  add(held: Held<M>): void {
    this.#frames.push(held);
    this.wake();
  }

  /** Take away the first frame. */
  shift(): Held<M> | undefined {
    return this.#frames.shift();
  }

  /** Take away what `isDropped` names; returns it. */
  drop(isDropped: (held: Held<M>) => boolean): Held<M>[] {
    const dropped = this.#frames.filter(isDropped);
    if (dropped.length > 0) this.#frames = this.#frames.filter((held) => !isDropped(held));
    return dropped;
  }

  /** Resolves when something has changed. */
  changed(): Promise<void> {
    return new Promise((resolve) => this.#waiters.push(resolve));
  }

  wake(): void {
    const waiters = this.#waiters;
    if (waiters.length === 0) return;
    this.#waiters = [];
    for (const waiter of waiters) waiter();
  }
}
