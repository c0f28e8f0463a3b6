/**
 * Credit that this side returns: how much the server may send ahead of the consumer. Pure.
 *
 *     size    what may be here or on its way: the credit that was granted at first
 *     held    received, and not yet taken by the consumer
 *     free    taken, and not yet returned to the server
 *
 * Invariant: what the server has left + what is on its way + held + free = size. So no credit is lost, and none is
 * granted twice, whatever happens to connections.
 */
export class Window {
  #held = 0;
  #free = 0;

  constructor(readonly size: number) {}

  received(amount: number): void {
    this.#held += amount;
  }

  taken(amount: number): void {
    this.#held -= amount;
    this.#free += amount;
  }

  /** Worth a command of its own: half of it is free, or the server may have nothing left. */
  get isDue(): boolean {
    return this.#free * 2 >= this.size || (this.#held === 0 && this.#free > 0);
  }

  /** What to return now. */
  returned(): number {
    const free = this.#free;
    this.#free = 0;
    return free;
  }

  /** A new subscription: what to grant it. Whole batches may exceed what was granted. */
  opened(): number {
    this.#free = 0;
    return Math.max(0, this.size - this.#held);
  }

  /** The subscription goes on, with so much left at the server. What was returned on the lost connection may not have come. */
  resumed(left: number): void {
    this.#free = Math.max(0, this.size - this.#held - left);
  }
}
