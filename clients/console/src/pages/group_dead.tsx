/** Dead letters: why they are there; read, edit and resend, redrive, purge. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { count, plural, time } from "../format.js";
import { line, type Rec } from "../records.js";
import { denied, firstDenied } from "../rights.js";
import { usePages } from "../resource.js";
import { href } from "../router.js";
import { Button, Confirm, Dialog, Empty, ErrorNote, Fact, Waiting, tell, useDoing } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { Decoded } from "../ui/record.js";
import { WhenPicker, laterBy } from "../ui/when.js";
import { DraftFields, draftOf, sendSpec, specOf } from "./topic_send.js";

interface DeadLetter extends Omit<Rec, "topic" | "partition"> {
  /** Where it was read from; null where that is not known. */
  topic: string | null;
  partition: number | null;
  topic_offset: number | null;
  delivery_attempts: number | null;
  reason: string | null;
  dead_lettered_at: number | null;
}

interface Settled {
  offset: number;
  ok: boolean;
  error?: string;
}

const PAGE_ROWS = 200;
const REFRESH_MS = 5000;

const COLUMNS: Column<DeadLetter>[] = [
  { name: "Dead since", width: "150px", wide: true, cell: (row) => time(row.dead_lettered_at) },
  { name: "From", width: "1.2fr", cell: (row) => row.topic === null ? <span class="muted">not known</span> : `${row.topic}/${row.partition}, offset ${count(row.topic_offset)}` },
  { name: "Attempts", width: "64px", end: true, wide: true, cell: (row) => row.delivery_attempts ?? "–" },
  { name: "Reason", width: "2fr", cell: (row) => row.reason ?? <span class="muted">none given</span> },
  { name: "Key", width: "1fr", wide: true, cell: (row) => <span class="mono">{line(row, "key")}</span> },
  { name: "Value", width: "2fr", wide: true, cell: (row) => <span class="mono">{line(row, "value")}</span> },
];

const idOf = (row: DeadLetter) => String(row.offset);

export function DeadLetters(props: { group: string }): JSX.Element {
  const { group } = props;
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [opened, setOpened] = useState<DeadLetter | null>(null);
  const [dialog, setDialog] = useState<"redrive" | "purge" | "edit" | null>(null);
  const pages = usePages<DeadLetter>(group, async (cursor, signal) => {
    const answer = await get<{ messages: DeadLetter[]; next_offset: number | null; total: number }>(path`mq/v1/groups/${group}/dlq` + query({ offset: cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.messages, next: answer.next_offset === null ? null : String(answer.next_offset), total: answer.total };
  }, REFRESH_MS);
  const chosen = pages.rows.filter((row) => selected.has(idOf(row)));
  const none = chosen.length === 0 ? "Select dead letters first." : null;
  const mayReceive = firstDenied(denied("receive", { group }), ...[...new Set(chosen.map(({ topic }) => topic))].map((topic) => topic === null ? null : denied("receive", { topic })));
  const settle = async (action: "redrive" | "purge", offsets: number[]) => {
    const { results } = await send<{ results: Settled[] }>("POST", path`mq/v1/groups/${group}/dlq:settle`, { action, offsets });
    const failed = results.filter(({ ok }) => !ok);
    const done = action === "redrive" ? "delivered again" : "purged";
    tell(`${plural(results.length - failed.length, "dead letter")} ${done}${failed.length === 0 ? "." : `; ${failed.length} not: ${failed[0]!.error}`}`, failed.length === 0 ? "ok" : "warn");
    setSelected(new Set());
    setOpened(null);
    pages.reload();
  };
  if (pages.at === 0) return <Waiting error={pages.error} retry={pages.reload} />;
  return (
    <>
      <div class="bar">
        <Button kind="main" reason={none ?? mayReceive} onClick={() => setDialog("redrive")}>Redrive{chosen.length > 0 && ` ${chosen.length}`}</Button>
        <Button kind="danger" reason={none ?? firstDenied(mayReceive, denied("delete", { group }))} onClick={() => setDialog("purge")}>Purge{chosen.length > 0 && ` ${chosen.length}`}</Button>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "dead letter")}{chosen.length > 0 && `, ${chosen.length} selected`}</span>
      </div>
      {pages.error !== null && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.rows.length === 0 ? <Empty>No dead letters: every record was done within its attempts.</Empty> : (
        <div class={opened === null ? "" : "split"}>
          <List
            label={`Dead letters of ${group}`} columns={COLUMNS} rows={pages.rows} id={idOf} total={pages.total} onEnd={pages.more} selected={selected} onSelect={setSelected}
            open={setOpened} opened={opened === null ? null : idOf(opened)} isStale={pages.error?.isUnreachable === true}
          />
          {opened !== null && (
            <section class="card detail" aria-label="The chosen dead letter">
              <header><h2>Dead letter {count(opened.offset)}</h2><Button kind="quiet" label="Close the dead letter" onClick={() => setOpened(null)}>✕</Button></header>
              <dl class="facts">
                <Fact name="Reason">{opened.reason ?? "none given"}</Fact>
                <Fact name="Attempts">{opened.delivery_attempts ?? "–"}</Fact>
                <Fact name="Dead since">{time(opened.dead_lettered_at)}</Fact>
                {opened.topic !== null && (
                  <Fact name="From"><a href={`${href("topics", opened.topic)}?tab=messages&partition=${opened.partition}&from=offset&offset=${opened.topic_offset}`}>{opened.topic}, partition {opened.partition}, offset {count(opened.topic_offset)}</a></Fact>
                )}
                <Fact name="Key"><code>{line(opened, "key") || "none"}</code></Fact>
              </dl>
              <Decoded record={opened} name="value" />
              <div class="actions start">
                <Button
                  reason={opened.topic === null ? "It is not known where this letter came from." : firstDenied(denied("send", { topic: opened.topic }), denied("receive", { group }), denied("delete", { group }))}
                  onClick={() => setDialog("edit")}
                >Edit and resend…</Button>
              </div>
            </section>
          )}
        </div>
      )}
      {dialog === "redrive" && (
        <Confirm title="Redrive" action={`Redrive ${chosen.length}`} danger={false} onClose={() => setDialog(null)} act={() => settle("redrive", chosen.map(({ offset }) => offset))}>
          <p>{plural(chosen.length, "dead letter")} will be delivered to the group {group} again, with attempts counted from 1. Other groups do not see them.</p>
        </Confirm>
      )}
      {dialog === "purge" && (
        <Confirm title="Purge" action={`Purge ${chosen.length}`} onClose={() => setDialog(null)} act={() => settle("purge", chosen.map(({ offset }) => offset))}>
          <p>{plural(chosen.length, "dead letter")} will not be listed or delivered again. The records in their topics stay as long as those keep them. This cannot be undone.</p>
        </Confirm>
      )}
      {dialog === "edit" && opened?.topic != null && (
        <EditAndResend letter={opened} topic={opened.topic} onClose={() => setDialog(null)} settle={() => settle("purge", [opened.offset])} />
      )}
    </>
  );
}

/** First the changed record is sent and on disk, then the letter is purged: a crash in between leaves both, never neither. */
function EditAndResend(props: { letter: DeadLetter; topic: string; onClose: () => void; settle: () => Promise<void> }): JSX.Element {
  const { letter, topic } = props;
  const [draft, setDraft] = useState(() => draftOf({ ...letter, topic, partition: letter.partition ?? 0 }));
  const [when, setWhen] = useState(laterBy(60_000));
  const [isSent, setSent] = useState(false);
  const doing = useDoing();
  const spec = specOf(topic, draft, when);
  return (
    <Dialog title="Edit and resend" onClose={props.onClose} wide>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          if (typeof spec === "string" || doing.isBusy) return;
          void doing.run(async () => {
            if (!isSent) {
              await sendSpec(spec);
              setSent(true);
            }
            await props.settle();
            props.onClose();
          });
        }}
      >
        <p class="muted">It is sent to <b>{topic}</b> as a new record, which every group of the topic gets; when it is on disk the dead letter is purged.</p>
        <DraftFields draft={draft} onChange={setDraft} partitions={null} isLater={when.kind !== "now"} />
        <WhenPicker value={when} onChange={setWhen} />
        {isSent && <p role="status">The record is sent; the dead letter is still there.</p>}
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Cancel</Button>
          <Button kind="main" type="submit" reason={typeof spec === "string" ? spec : null} busy={doing.isBusy}>{isSent ? "Purge the letter" : "Resend"}</Button>
        </div>
      </form>
    </Dialog>
  );
}
