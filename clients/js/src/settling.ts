/**
 * Acks, nacks, rejects and extends of queue mode. What is settled in the same way in one turn goes in one command; each
 * caller gets the result of its own receipt.
 */
import { Refused } from "./errors.js";
import { arrayOf, objectOf, type Fields } from "./frames.js";

const RECEIPTS_PER_COMMAND = 10_000;

/** Sends a command and resolves with its answer. */
type Ask = (fields: Fields) => Promise<Fields>;

interface Waiter {
  resolve: (newReceipt: string | null) => void;
  reject: (error: Error) => void;
}

interface Gathered {
  fields: Fields;
  receipts: string[];
  waiters: Waiter[];
}

export class Settling {
  readonly #gathering = new Map<string, Gathered>();

  constructor(private readonly ask: Ask) {}

  /** Resolves with the new receipt, if there is one. Rejects with Refused, or as the command itself. */
  settle(op: string, receipt: string, fields: Fields): Promise<string | null> {
    const key = op === "ack" ? op : op + JSON.stringify(fields);
    let gathered = this.#gathering.get(key);
    if (gathered === undefined || gathered.receipts.length >= RECEIPTS_PER_COMMAND) {
      const made: Gathered = { fields: { op, ...fields }, receipts: [], waiters: [] };
      this.#gathering.set(key, made);
      setTimeout(() => this.#send(key, made), 0);
      gathered = made;
    }
    const { receipts, waiters } = gathered;
    return new Promise((resolve, reject) => {
      receipts.push(receipt);
      waiters.push({ resolve, reject });
    });
  }

  /** Send what waits for company now. */
  flush(): void {
    for (const [key, gathered] of [...this.#gathering]) this.#send(key, gathered);
  }

  #send(key: string, gathered: Gathered): void {
    if (this.#gathering.get(key) === gathered) this.#gathering.delete(key);
    const { fields, receipts } = gathered;
    const waiters = gathered.waiters.splice(0); // nobody, the second time
    if (waiters.length === 0) return;
    this.ask({ ...fields, receipts }).then(
      (answer) => {
        const results = arrayOf(answer["results"]);
        waiters.forEach((waiter, index) => {
          const result = objectOf(results[index]);
          if (result["ok"] === true) waiter.resolve((result["new_receipt"] as string | undefined) ?? null);
          else waiter.reject(Refused.of(result));
        });
      },
    ).catch((error: unknown) => {
      for (const waiter of waiters) waiter.reject(error as Error); // those that are settled already do not care
    });
  }
}
