/** When something is to be delivered: now, after a while, or on a day at a time. */
import type { JSX } from "preact";
import { duration, forInput, parseDuration, time } from "../format.js";
import { Field, Select, TextInput, now } from "./basics.js";

export interface When {
  kind: "now" | "in" | "at";
  /** Of "in": "5s", "2h". */
  text: string;
  /** Of "at": what the browser's field holds. */
  at: string;
}

export function laterBy(ms: number): When {
  return { kind: "now", text: "5s", at: forInput(Date.now() + ms) };
}

/** As the server takes it; a string says what is wrong. */
export function resolve(when: When): { delay_ms?: number; deliver_at?: number } | string {
  if (when.kind === "now") return {};
  if (when.kind === "in") {
    const delay = parseDuration(when.text);
    return delay === null ? 'A delay is a number and a unit, like "5s", "90 min", "2h", "7d".' : { delay_ms: delay };
  }
  const at = new Date(when.at).getTime();
  return Number.isNaN(at) ? "Choose a date and a time." : { deliver_at: at };
}

export function WhenPicker(props: { value: When; onChange: (when: When) => void; withNow?: boolean }): JSX.Element {
  const { value, onChange, withNow = true } = props;
  const found = resolve(value);
  const hint = typeof found === "string" ? found
    : found.delay_ms !== undefined ? `due ${time(now.value + found.delay_ms)}`
    : found.deliver_at !== undefined ? (found.deliver_at <= now.value ? "in the past: delivered at once" : `${time(found.deliver_at)}, in ${duration(found.deliver_at - now.value)}`)
    : undefined;
  const options = [...(withNow ? [["now", "now"] as const] : []), ["in", "after a delay"] as const, ["at", "on a day, at a time"] as const];
  return (
    <div class="when">
      <Field label="Deliver">
        <Select value={value.kind} options={options} onChange={(kind) => onChange({ ...value, kind })} />
      </Field>
      {value.kind === "in" && (
        <Field label="Delay" {...(hint === undefined ? {} : { hint })}>
          <TextInput value={value.text} onInput={(text) => onChange({ ...value, text })} placeholder="5s, 90 min, 2h, 7d" />
        </Field>
      )}
      {value.kind === "at" && (
        <Field label="Date and time" {...(hint === undefined ? {} : { hint })}>
          <TextInput type="datetime-local" step="1" value={value.at} onInput={(at) => onChange({ ...value, at })} />
        </Field>
      )}
    </div>
  );
}
