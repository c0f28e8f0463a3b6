/** Numbers, sizes and times as an operator reads them: always with their unit, dates always with their day. */

const ROUGH = ["", "k", "M", "G", "T"];

/** 1234567 as "1.2M"; small numbers as they are. */
export function rough(value: number | null | undefined): string {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  let step = 0;
  let left = Math.abs(value);
  while (left >= 999.5 && step < ROUGH.length - 1) {
    left /= 1000;
    step++;
  }
  const digits = left >= 100 || (step === 0 && Number.isInteger(left)) ? 0 : left >= 10 || step > 0 ? 1 : 2;
  return (value < 0 ? "−" : "") + left.toFixed(digits).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "") + ROUGH[step];
}

/** All digits, in groups of three. */
export function count(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : value.toLocaleString("en-US");
}

export function perSecond(value: number | null | undefined): string {
  return value === null || value === undefined ? "–" : `${rough(value >= 100 ? Math.round(value) : Math.round(value * 10) / 10)}/s`;
}

const SIZES = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number | null | undefined): string {
  if (value === null || value === undefined) return "–";
  let step = 0;
  let left = value;
  while (left >= 1023.5 && step < SIZES.length - 1) {
    left /= 1024;
    step++;
  }
  return `${step === 0 || left >= 100 ? Math.round(left) : left.toFixed(1)} ${SIZES[step]}`;
}

const UNITS: [string, number][] = [["d", 86_400_000], ["h", 3_600_000], ["min", 60_000], ["s", 1000]];

/** A duration with its largest one or two units: "2 d 3 h", "45 s", "12 ms". */
export function duration(ms: number | null | undefined): string {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  const first = UNITS.findIndex(([, size]) => ms >= size);
  const [name, size] = UNITS[first]!;
  const whole = Math.floor(ms / size);
  const next = UNITS[first + 1];
  const rest = next === undefined ? 0 : Math.floor((ms - whole * size) / next[1]);
  return rest === 0 ? `${whole} ${name}` : `${whole} ${name} ${rest} ${next![0]}`;
}

/** "in 5 min", "3 s ago". */
export function relative(atMs: number, nowMs: number): string {
  const ms = atMs - nowMs;
  if (Math.abs(ms) < 1000) return "now";
  return ms > 0 ? `in ${duration(ms)}` : `${duration(-ms)} ago`;
}

const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "2-digit", month: "short" });
const DAY_OF_YEAR = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "2-digit", month: "short", year: "numeric" });
const two = (value: number) => String(value).padStart(2, "0");

/** "Tue 24 Nov"; with the year where it is not this one's. */
export function day(atMs: number): string {
  const date = new Date(atMs);
  return (date.getFullYear() === new Date().getFullYear() ? DAY : DAY_OF_YEAR).format(date).replace(",", "");
}

/** "Tue 24 Nov 09:00:30.123", in the time of this browser. */
export function time(atMs: number | null | undefined, withMs = false): string {
  if (atMs === null || atMs === undefined) return "–";
  const date = new Date(atMs);
  const clock = `${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
  return `${day(atMs)} ${clock}${withMs ? `.${String(date.getMilliseconds()).padStart(3, "0")}` : ""}`;
}

export function clock(atMs: number): string {
  const date = new Date(atMs);
  return `${two(date.getHours())}:${two(date.getMinutes())}`;
}

/** What an <input type="datetime-local"> holds. */
export function forInput(atMs: number): string {
  const date = new Date(atMs);
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}T${clock(atMs)}:${two(date.getSeconds())}`;
}

/** "1 topic", "2 topics". */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

const EXACT: [string, number][] = [["d", 86_400_000], ["h", 3_600_000], ["m", 60_000], ["s", 1000], ["ms", 1]];

/** A duration as `parseDuration` and the server read it, nothing left out: "26h", "90s", "1500ms". */
export function exactly(ms: number): string {
  const [unit, size] = EXACT.find(([, one]) => ms % one === 0)!;
  return `${ms / size}${unit}`;
}

/** Milliseconds of "7d", "90 min", "1.5h"; null when it is none of these. */
export function parseDuration(text: string): number | null {
  const found = /^\s*([0-9]+(?:\.[0-9]+)?)\s*(ms|s|min|m|h|d)\s*$/.exec(text);
  if (found === null) return null;
  const unit = { ms: 1, s: 1000, min: 60_000, m: 60_000, h: 3_600_000, d: 86_400_000 }[found[2]!]!;
  return Math.round(Number(found[1]) * unit);
}
