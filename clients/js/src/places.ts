/**
 * How far a subscription is in each of its partitions. Pure.
 *
 *     committed <= done <= given <= next        offsets of the next record in question, so all of them count upwards
 *
 *     next        records below it have been received (reader: where to go on)
 *     given       … handed to the consumer
 *     done        … worked off by it
 *     committed   … known to be committed (stream)
 *
 * A seek is the only way back.
 */
import { Undecodable } from "./errors.js";
import { arrayOf, countOf, objectOf } from "./frames.js";

/** Topic -> partitions. */
export type Partitions = Record<string, number[]>;

export class Place {
  given: number;
  done: number;
  committed: number;
  /** Frames of it that wait here. */
  frames = 0;
  /** To be given up as soon as all that has come is done. */
  isRevoked = false;
  /** Until when that may take, epoch ms. */
  drainBy = 0;
  /** Another member's, or deleted: nothing of it is to be committed. */
  isGone = false;

  constructor(
    readonly topic: string,
    readonly partition: number,
    public next: number,
  ) {
    this.given = this.done = this.committed = next;
  }

  /** Begin at another offset; with `commits`, the next commit says so to the group. */
  seek(next: number, commits: boolean): void {
    this.next = this.given = this.done = next;
    this.committed = commits ? -1 : next;
  }

  /**
   * The group goes on at `offset` after this client was away. What it was not told any more is given here already,
   * unless the group was set back behind what it had committed.
   */
  rejoin(offset: number): void {
    if (offset < this.committed || offset > this.given) this.seek(offset, false);
    else {
      this.next = offset;
      this.committed = offset;
      this.done = Math.max(this.done, offset);
    }
    this.isRevoked = false;
  }
}

export class Places {
  readonly #places = new Map<string, Place>();

  get(topic: string, partition: number): Place | undefined {
    return this.#places.get(`${topic}:${partition}`);
  }

  set(topic: string, partition: number, next: number): Place {
    const place = new Place(topic, partition, next);
    this.#places.set(`${topic}:${partition}`, place);
    return place;
  }

  /** Forget a partition for good. */
  drop(place: Place): void {
    place.isGone = true;
    this.#places.delete(`${place.topic}:${place.partition}`);
  }

  [Symbol.iterator](): IterableIterator<Place> {
    return this.#places.values();
  }

  /** `orders:0=101;orders:1=88`, of the offsets that `of` picks; null leaves a partition out. */
  cursor(of: (place: Place) => number | null): string {
    const written: string[] = [];
    for (const place of this) {
      const offset = of(place);
      if (offset !== null) written.push(`${place.topic}:${place.partition}=${offset}`);
    }
    return written.join(";");
  }
}

/** What a cursor of the server says. Raises Undecodable. */
export function readCursor(cursor: unknown): { topic: string; partition: number; offset: number }[] {
  if (cursor === undefined || cursor === "") return [];
  return String(cursor)
    .split(";")
    .map((written) => {
      const match = /^([^:;=]+):(\d+)=(\d+)$/.exec(written);
      if (match === null) throw new Undecodable(`${written} is no place of a cursor`);
      return { topic: match[1]!, partition: Number(match[2]), offset: countOf(Number(match[3])) };
    });
}

/** What a frame says about partitions. Raises Undecodable. */
export function readPartitions(value: unknown): Partitions {
  for (const numbers of Object.values(objectOf(value))) for (const number of arrayOf(numbers)) countOf(number);
  return value as Partitions;
}

export function partitionsOf(places: Iterable<{ topic: string; partition: number }>): Partitions {
  const partitions: Partitions = {};
  for (const { topic, partition } of places) (partitions[topic] ??= []).push(partition);
  return partitions;
}
