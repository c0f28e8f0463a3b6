/** What is asked over HTTP: topics, offsets, schedules, recurring ones, groups. One method a route of the server's native API. */
import { waitMs } from "./backoff.js";
import { ConnectionLost, Refused } from "./errors.js";
import type { Fields } from "./frames.js";
import type { TokenSource } from "./connection.js";

export interface HttpOptions {
  /** http(s) or ws(s), with or without a path. */
  url: string;
  token?: TokenSource | undefined;
  signal?: AbortSignal | undefined;
  fetch?: typeof fetch | undefined;
  /** How long a request is tried again that the server cannot answer for now. Default 30,000. */
  retryMs?: number | undefined;
}

const RETRY_MS = 30_000;
const PAUSE_MS_MAX = 3_000;

export interface TopicInfo extends Fields {
  topic: string;
  partitions: unknown;
}

export interface Schedule extends Fields {
  schedule_id: string;
  topic: string;
  deliver_at: number;
  state: string;
}

/** What is sent, and when: `every_ms` (from `anchor`, or from now) or `cron` (in time zone `tz`). */
export interface RecurringDefinition {
  topic: string;
  record: Fields;
  every_ms?: number;
  anchor?: number | string;
  cron?: string;
  tz?: string;
  /** When several due times have passed: one record that counts the others, or one each. */
  missed?: "once" | "all";
  paused?: boolean;
}

export interface Recurring extends Fields {
  name: string;
  topic: string;
  paused: boolean;
  next_at: number | null;
  last_at: number | null;
}

export class Http {
  readonly #origin: string;

  constructor(private readonly options: HttpOptions) {
    const url = new URL(options.url);
    url.protocol = url.protocol.replace("ws", "http");
    this.#origin = url.origin;
  }

  topics(): Promise<Fields> {
    return this.call("GET", "/mq/v1/topics");
  }
  topic(topic: string): Promise<TopicInfo> {
    return this.call("GET", path`/mq/v1/topics/${topic}`);
  }
  createTopic(topic: string, partitions?: number): Promise<TopicInfo> {
    return this.call("PUT", path`/mq/v1/topics/${topic}`, { partitions });
  }
  deleteTopic(topic: string): Promise<null> {
    return this.call("DELETE", path`/mq/v1/topics/${topic}`);
  }
  /** First and end offsets of each partition; with a time (epoch ms), also the first offset stored at or after it. */
  offsets(topic: string, timestamp?: number): Promise<Fields> {
    return this.call("GET", path`/mq/v1/topics/${topic}/offsets` + query({ timestamp }));
  }

  schedules(
    filter: { topic?: string; from?: number; to?: number; key?: string; limit?: number; cursor?: string } = {},
  ): Promise<{ schedules: Schedule[]; next_cursor: string | null; total: number }> {
    return this.call("GET", "/mq/v1/schedules" + query(filter));
  }
  /** With a topic, here and below, `id` is no schedule id but the `scheduleKey` of a schedule of that topic. */
  schedule(id: string, withValue = false, topic?: string): Promise<Schedule> {
    return this.call("GET", path`/mq/v1/schedules/${id}` + query({ include: withValue ? "value" : undefined, topic }));
  }
  /** Rejects with Refused 40950 when it was delivered already, 40450 when there is none. */
  cancelSchedule(id: string, topic?: string): Promise<null> {
    return this.call("DELETE", path`/mq/v1/schedules/${id}` + query({ topic }));
  }
  moveSchedule(
    id: string,
    to: { deliverAt: number | string } | { delayMs: number },
    topic?: string,
  ): Promise<Schedule> {
    const body = "delayMs" in to ? { delay_ms: to.delayMs } : { deliver_at: to.deliverAt };
    return this.call("PATCH", path`/mq/v1/schedules/${id}` + query({ topic }), body);
  }
  fireSchedule(id: string, topic?: string): Promise<Fields> {
    return this.call("POST", path`/mq/v1/schedules/${id}:fire` + query({ topic }));
  }

  /** Records that the server sends by a rule, by name; with `include: "record"`, what they are. */
  recurring(
    filter: { topic?: string; limit?: number; cursor?: string; include?: "record" } = {},
  ): Promise<{ recurring: Recurring[]; next_cursor: string | null }> {
    return this.call("GET", "/mq/v1/recurring" + query(filter));
  }
  /** Rejects, as the next ones do, with Refused 40452 when there is none of this name. */
  recurringSchedule(name: string): Promise<Recurring> {
    return this.call("GET", path`/mq/v1/recurring/${name}`);
  }
  /** Creates or replaces; the same again changes nothing. */
  putRecurring(name: string, definition: RecurringDefinition): Promise<Recurring> {
    return this.call("PUT", path`/mq/v1/recurring/${name}`, definition);
  }
  pauseRecurring(name: string): Promise<Recurring> {
    return this.call("POST", path`/mq/v1/recurring/${name}:pause`);
  }
  resumeRecurring(name: string): Promise<Recurring> {
    return this.call("POST", path`/mq/v1/recurring/${name}:resume`);
  }
  deleteRecurring(name: string): Promise<null> {
    return this.call("DELETE", path`/mq/v1/recurring/${name}`);
  }

  groups(): Promise<Fields> {
    return this.call("GET", "/mq/v1/groups");
  }
  group(group: string): Promise<Fields> {
    return this.call("GET", path`/mq/v1/groups/${group}`);
  }
  lag(group: string): Promise<Fields> {
    return this.call("GET", path`/mq/v1/groups/${group}/lag`);
  }
  configureGroup(group: string, changes: Fields): Promise<Fields> {
    return this.call("PATCH", path`/mq/v1/groups/${group}`, changes);
  }
  resetOffsets(
    group: string,
    reset: {
      topic: string;
      to: "earliest" | "latest" | number | { timestamp: number };
      partitions?: number[];
      dry_run?: boolean;
      force?: boolean;
    },
  ): Promise<unknown> {
    return this.call("POST", path`/mq/v1/groups/${group}/offsets:reset`, reset);
  }
  deleteGroup(group: string): Promise<null> {
    return this.call("DELETE", path`/mq/v1/groups/${group}`);
  }
  redrive(group: string, maxMessages?: number): Promise<Fields> {
    return this.call("POST", path`/mq/v1/groups/${group}/dlq:redrive`, { max_messages: maxMessages });
  }

  /** Any other route. Rejects with Refused for every status from 400 on, and with ConnectionLost without an answer. */
  /**
   * Any route; its answer's JSON, null without one. What the server did not do because it could not for now, and what
   * nobody has answered and may be asked twice, is asked again for `retryMs`.
   */
  async call<T>(method: string, target: string, body?: unknown): Promise<T> {
    const until = Date.now() + (this.options.retryMs ?? RETRY_MS);
    for (let failures = 1; ; failures++) {
      try {
        return await this.#once<T>(method, target, body);
      } catch (error) {
        const pause = Math.max(Math.min(waitMs(failures), PAUSE_MS_MAX), (error as Refused).retryAfterMs ?? 0);
        if (!mayRepeat(method, error) || Date.now() + pause > until) throw error;
        await new Promise((resolve) => setTimeout(resolve, pause));
      }
    }
  }

  async #once<T>(method: string, target: string, body: unknown): Promise<T> {
    const { token, signal } = this.options;
    const headers: Record<string, string> = {};
    const bearer = typeof token === "function" ? await token() : token;
    if (bearer !== undefined) headers["Authorization"] = `Bearer ${bearer}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const request = { method, headers, body: JSON.stringify(body), signal } as RequestInit;
    let answer: Response;
    let text: string;
    try {
      answer = await (this.options.fetch ?? fetch)(this.#origin + target, request);
      text = await answer.text();
    } catch (error) {
      if (signal?.aborted === true) throw error;
      throw new ConnectionLost(`${method} ${target}: ${String((error as Error).cause ?? error)}`);
    }
    let parsed: unknown = null;
    try {
      parsed = text === "" ? null : JSON.parse(text);
    } catch {
      parsed = { message: text.slice(0, 200) }; // of something between us and the server
    }
    if (!answer.ok) {
      const retry_after_ms = Number(answer.headers.get("Retry-After")) * 1000;
      throw Refused.of({ error_code: answer.status, retry_after_ms, ...(parsed as Fields) });
    }
    return parsed as T;
  }
}

/** Whether the same may be asked again: nothing was done, or it only looks. */
function mayRepeat(method: string, error: unknown): boolean {
  if (error instanceof Refused) return error.retriable && /^503/.test(String(error.code));
  return error instanceof ConnectionLost && method === "GET";
}

function path(strings: TemplateStringsArray, ...names: string[]): string {
  return strings.reduce((whole, piece, index) => whole + encodeURIComponent(names[index - 1]!) + piece);
}

function query(parameters: Record<string, unknown>): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined) as [string, string][];
  const text = new URLSearchParams(given).toString();
  return text && "?" + text;
}
