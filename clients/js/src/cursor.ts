/** Places in partitions: the table behind a cursor `orders:0=101;orders:1=88`, which names next offsets. */

export class Places {
  private readonly offsets = new Map<string, number>();

  get size(): number {
    return this.offsets.size;
  }

  get(topic: string, partition: number): number | undefined {
    return this.offsets.get(`${topic}:${partition}`);
  }

  set(topic: string, partition: number, nextOffset: number): void {
    this.offsets.set(`${topic}:${partition}`, nextOffset);
  }

  delete(topic: string, partition: number): void {
    this.offsets.delete(`${topic}:${partition}`);
  }

  clear(): void {
    this.offsets.clear();
  }

  /** Take over the places of a cursor. */
  merge(cursor: string): void {
    for (const place of cursor.split(";")) {
      const at = place.lastIndexOf("=");
      if (at > 0) this.offsets.set(place.slice(0, at), Number(place.slice(at + 1)));
    }
  }

  /** The places that `other` has not, or has with another offset. */
  without(other: Places): Places {
    const rest = new Places();
    for (const [place, offset] of this.offsets) if (other.offsets.get(place) !== offset) rest.offsets.set(place, offset);
    return rest;
  }

  toString(): string {
    return [...this.offsets].map(([place, offset]) => `${place}=${offset}`).join(";");
  }
}
