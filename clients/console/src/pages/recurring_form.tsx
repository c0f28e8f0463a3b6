/** A form that makes a recurring schedule: what is sent, and by which rule. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { path, send } from "../api.js";
import { parseDuration, time } from "../format.js";
import { denied } from "../rights.js";
import { recordOf } from "../snippets.js";
import { Button, Dialog, ErrorNote, Field, Select, TextInput, tell, useDoing } from "../ui/basics.js";
import { DraftFields, EMPTY, specOf, type Draft } from "./topic_send.js";

const RULES = [["every", "every so long"], ["cron", "by the calendar (cron)"]] as const;
const MISSED = [["once", "one record"], ["all", "a record each"]] as const;

export function RecurringDialog(props: { taken: readonly string[]; onClose: () => void; onDone: (name: string) => void }): JSX.Element {
  const [name, setName] = useState("");
  const [topic, setTopic] = useState("");
  const [draft, setDraft] = useState<Draft>({ ...EMPTY, value: "{}" });
  const [kind, setKind] = useState<"every" | "cron">("every");
  const [every, setEvery] = useState("5 min");
  const [cron, setCron] = useState("30 2 * * *");
  const [zone, setZone] = useState(Intl.DateTimeFormat().resolvedOptions().timeZone);
  const [missed, setMissed] = useState<"once" | "all">("once");
  const doing = useDoing();
  const everyMs = parseDuration(every);
  const spec = specOf(topic, draft, { kind: "now", text: "", at: "" });
  const reason = name === "" ? "Give it a name." : props.taken.includes(name) ? `There is a schedule ${name}.` : topic === "" ? "Name the topic." : denied("send", { topic })
    ?? (kind === "every" && everyMs === null ? 'A time is a number and a unit, like "30s", "5 min", "2h", "7d".' : typeof spec === "string" ? spec : null);
  const act = async () => {
    if (typeof spec === "string") return;
    const { value, ...record } = recordOf(spec);
    const form = spec.value !== null && "text" in spec.value ? { value_text: value } : spec.value === null ? {} : { value };
    const rule = kind === "every" ? { every_ms: everyMs } : { cron, tz: zone };
    const made = await send<{ next_at: number | null }>("PUT", path`mq/v1/recurring/${name}`, { topic, record: { ...record, ...form }, ...rule, missed });
    tell(`${name} is first due ${time(made.next_at)}.`);
    props.onDone(name);
  };
  return (
    <Dialog title="Create a recurring schedule" wide onClose={props.onClose}>
      <form class="form" onSubmit={(event) => {
        event.preventDefault();
        if (reason === null && !doing.isBusy) void doing.run(act).then((isDone) => isDone && props.onClose());
      }}>
        <div class="two">
          <Field label="Name" hint="Letters, digits, . _ % -"><TextInput value={name} onInput={setName} autoFocus /></Field>
          <Field label="Topic"><TextInput value={topic} onInput={setTopic} /></Field>
          <Field label="Due"><Select value={kind} options={RULES} onChange={setKind} /></Field>
          {kind === "every"
            ? <Field label="Every"><TextInput value={every} onInput={setEvery} placeholder="30s, 5 min, 2h, 7d" /></Field>
            : <Field label="Cron" hint="minute hour day month weekday, as Debian's cron"><TextInput value={cron} onInput={setCron} /></Field>}
          {kind === "cron" && <Field label="Time zone" hint="in which summer time is kept"><TextInput value={zone} onInput={setZone} placeholder="UTC" /></Field>}
          <Field label="Of several missed" hint="after a downtime"><Select value={missed} options={MISSED} onChange={setMissed} /></Field>
        </div>
        <DraftFields draft={draft} onChange={setDraft} partitions={null} isLater={false} />
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Cancel</Button>
          <Button kind="main" type="submit" reason={reason} busy={doing.isBusy}>Create</Button>
        </div>
      </form>
    </Dialog>
  );
}
