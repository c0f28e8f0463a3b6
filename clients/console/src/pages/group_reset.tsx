/** Move a group to another place in a topic: nothing is changed before the preview has been seen. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, path, send } from "../api.js";
import { count, forInput, plural } from "../format.js";
import { denied, firstDenied } from "../rights.js";
import { useResource } from "../resource.js";
import { Button, Dialog, ErrorNote, Field, Select, TextInput, tell, useDoing } from "../ui/basics.js";
import type { Group, LagRow } from "./group.js";

type To = "earliest" | "latest" | "time" | "offset";
const TO: readonly (readonly [To, string])[] = [["earliest", "the first record"], ["latest", "the end: skip all that waits"], ["time", "a time"], ["offset", "an offset"]];

/** The server's refusal to move a group that has members or leases, unless it is forced. */
const IN_USE = 40952;

interface Move {
  partition: number;
  from: number | null;
  to: number;
}

export function Reset(props: { detail: Group; onClose: () => void; onDone: () => void }): JSX.Element {
  const { group, topics, member_count: memberCount, workers } = props.detail;
  const leased = workers.reduce((sum, worker) => sum + worker.leased, 0);
  const lag = useResource<{ partitions: LagRow[] }>(group, (signal) => get(path`mq/v1/groups/${group}/lag`, signal));
  const known = [...new Set([...topics, ...(lag.data?.partitions ?? []).map((row) => row.topic)])].filter((topic) => !topic.startsWith("%"));
  const [chosen, setTopic] = useState("");
  const topic = chosen === "" ? known[0] ?? "" : chosen;
  const [partition, setPartition] = useState("");
  const [to, setTo] = useState<To>("time");
  const [at, setAt] = useState(forInput(Date.now() - 3_600_000));
  const [offset, setOffset] = useState("0");
  const [preview, setPreview] = useState<Move[] | null>(null);
  const doing = useDoing();
  const mustForce = memberCount > 0 || leased > 0 || doing.error?.code === IN_USE;
  const partitions = (lag.data?.partitions ?? []).filter((row) => row.topic === topic).map((row) => row.partition);
  const target = to === "time" ? { timestamp: new Date(at).getTime() } : to === "offset" ? Number(offset) : to;
  const reason = firstDenied(
    topic === "" ? "The group has no place in any topic." : null,
    denied("receive", { group }), topic === "" ? null : denied("receive", { topic }),
    to === "time" && Number.isNaN(new Date(at).getTime()) ? "Choose a date and a time." : null,
    to === "offset" && partition === "" && partitions.length > 1 ? "An offset is of one partition: choose it." : null,
  );
  const ask = (isPreview: boolean) => send<{ partitions: Move[] }>("POST", path`mq/v1/groups/${group}/offsets:reset`, {
    topic, to: target, ...(partition === "" ? {} : { partitions: [Number(partition)] }), dry_run: isPreview, ...(mustForce && !isPreview ? { force: true } : {}),
  });
  const change = <T,>(set: (value: T) => void) => (value: T) => {
    set(value);
    setPreview(null);
  };
  const moved = preview?.reduce((sum, { from, to: next }) => sum + (from === null ? 0 : from - next), 0) ?? 0;
  return (
    <Dialog title={`Reset ${group}`} onClose={props.onClose} wide>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          if (reason !== null || doing.isBusy) return;
          void doing.run(async () => {
            if (preview === null) {
              setPreview((await ask(true)).partitions);
              return;
            }
            await ask(false);
            tell(`Group ${group} is moved in ${topic}.`);
            props.onDone();
            props.onClose();
          });
        }}
      >
        <div class="two">
          <Field label="Topic"><Select value={topic} options={known.map((name) => [name, name] as const)} onChange={change(setTopic)} /></Field>
          <Field label="Partition"><Select value={partition} options={[["", "all"], ...partitions.map((number) => [String(number), String(number)] as const)]} onChange={change(setPartition)} /></Field>
          <Field label="Go to"><Select value={to} options={TO} onChange={change(setTo)} /></Field>
          {to === "time" && <Field label="First record stored from"><TextInput type="datetime-local" step="1" value={at} onInput={change(setAt)} /></Field>}
          {to === "offset" && <Field label="Offset"><TextInput type="number" min="0" value={offset} onInput={change(setOffset)} /></Field>}
        </div>
        {preview !== null && (
          <div class="scroll-x" tabIndex={0} role="region" aria-label="Preview">
            <table class="small-table">
              <caption>{moved > 0 ? `${plural(moved, "record")} will be consumed again` : moved < 0 ? `${plural(-moved, "record")} will be skipped` : "The place stays the same"}</caption>
              <thead><tr><th scope="col">Partition</th><th scope="col" class="end">Now</th><th scope="col" class="end">After</th><th scope="col" class="end">Change</th></tr></thead>
              <tbody>
                {preview.slice(0, 200).map(({ partition: number, from, to: next }) => (
                  <tr key={number}>
                    <th scope="row">{number}</th><td class="end">{count(from)}</td><td class="end">{count(next)}</td>
                    <td class="end">{from === null ? "–" : next === from ? "0" : next > from ? `+${count(next - from)}` : `−${count(from - next)}`}</td>
                  </tr>
                ))}
              </tbody>
            </table>
            {preview.length > 200 && <p class="muted small">and {count(preview.length - 200)} more partitions</p>}
          </div>
        )}
        {preview !== null && mustForce && (
          <div class="note warn">
            <span class="mark" aria-hidden="true">▲</span>
            <p>
              The group is in use: {plural(memberCount, "member")}, {plural(leased, "record")} on lease. Members are put aside and begin anew at the
              new place; what is on lease is given up.
            </p>
          </div>
        )}
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Cancel</Button>
          {preview === null ? <Button kind="main" type="submit" reason={reason} busy={doing.isBusy}>Preview</Button>
            : <Button kind="danger" type="submit" reason={reason} busy={doing.isBusy}>Reset now</Button>}
        </div>
      </form>
    </Dialog>
  );
}
