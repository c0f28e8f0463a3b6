/** The server's figures: what there was, once, then each second by its stream. */
import { useEffect, useState } from "preact/hooks";
import { ApiError, address, get, token } from "./api.js";
import { returns } from "./session.js";

export interface Now {
  in_records_s: number; in_bytes_s: number; out_records_s: number; out_bytes_s: number;
  lag: number | null; pending: number; topics: number; partitions: number; groups: number;
  disk_free_bytes: number | null; disk_total_bytes: number | null; log_bytes: number | null; rss_bytes: number | null;
  loop_p99_ms: number | null; connections: number; sockets: number; requests_s: number;
}

export type SeriesName = "in_records_s" | "in_bytes_s" | "out_records_s" | "out_bytes_s" | "lag" | "pending" | "disk_free_bytes" | "rss_bytes" | "loop_p99_ms" | "connections" | "requests_s";

export interface Alarm {
  code: string;
  severity: "error" | "warning";
  since_ms: number;
  message: string;
  help: string;
  group: string | null;
}

export interface Stats {
  time_ms: number;
  now: Now;
  step_ms: number;
  end_ms: number;
  series: Record<SeriesName, (number | null)[]>;
  alarms: Alarm[];
}

export type Points = "seconds" | "minutes";
const KEPT: Record<Points, number> = { seconds: 900, minutes: 1440 };
const AGAIN_MS = 2000;

export interface Shown {
  data: Stats | null;
  error: ApiError | null;
  reload: () => void;
}

export function useStats(points: Points): Shown {
  const [data, setData] = useState<Stats | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [round, setRound] = useState(0);
  const came = returns.value;
  useEffect(() => {
    const stopping = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const run = async () => {
      try {
        const first = await get<Stats>(`mq/v1/stats?points=${points}`, stopping.signal);
        if (stopping.signal.aborted) return;
        setData(first);
        setError(null);
        await follow(stopping.signal, (told) => setData((before) => (before === null ? before : after(before, told, points))));
      } catch (caught) {
        if (stopping.signal.aborted) return;
        const told = caught instanceof ApiError ? caught : new ApiError("The server does not answer.", 0, 0, "");
        setError(told);
        if (!told.isUnreachable) return;
      }
      if (!stopping.signal.aborted) timer = setTimeout(() => void run(), AGAIN_MS);
    };
    void run();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
  }, [points, round, came]);
  return { data, error, reload: () => setRound(round + 1) };
}

type Told = Pick<Stats, "time_ms" | "now" | "alarms">;

function after(before: Stats, told: Told, points: Points): Stats {
  const isDue = told.time_ms - before.end_ms >= before.step_ms;
  if (!isDue) return { ...before, ...told };
  const series = Object.fromEntries(Object.entries(before.series).map(([name, values]) => [name, [...values, told.now[name as keyof Now] ?? null].slice(-KEPT[points])]));
  return { ...before, ...told, end_ms: told.time_ms, series: series as Stats["series"] };
}

/** Server-Sent Events by fetch, as an EventSource can carry no token. Returns when the stream ends. */
async function follow(signal: AbortSignal, on: (told: Told) => void): Promise<void> {
  const headers: Record<string, string> = { Accept: "text/event-stream" };
  if (token.value !== null) headers["Authorization"] = `Bearer ${token.value}`;
  const response = await fetch(address("mq/v1/stats/stream"), { headers, signal, credentials: "omit", cache: "no-store" });
  if (!response.ok || response.body === null) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const events = text.split("\n\n");
    text = events.pop()!;
    for (const event of events) {
      const lines = event.split("\n");
      if (!lines.includes("event: stats")) continue;
      const data = lines.filter((one) => one.startsWith("data:")).map((one) => one.slice(5)).join("\n");
      on(JSON.parse(data) as Told);
    }
  }
}
