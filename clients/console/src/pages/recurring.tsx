/** Recurring schedules: when each is due next, what became of the last time; pause, resume, delete. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { count, duration, relative, time } from "../format.js";
import { denied, deniedEverywhere } from "../rights.js";
import { usePages } from "../resource.js";
import { href } from "../router.js";
import { Button, Confirm, Empty, ErrorNote, Fact, State, Waiting, now, tell, useDoing } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { RecurringDialog } from "./recurring_form.js";

const REFRESH_MS = 5000;
const PAGE_ROWS = 200;

interface Recurring {
  name: string;
  topic: string;
  every_ms: number | null;
  cron: string | null;
  tz: string | null;
  missed: "once" | "all";
  paused: boolean;
  next_at: number | null;
  last_at: number | null;
  last_partition: number | null;
  last_offset: number | null;
  delivered_count: number;
  missed_count: number;
  updated_at: number;
  error: string | null;
}

const rule = (row: Recurring) => row.every_ms !== null ? `every ${duration(row.every_ms)}` : `${row.cron} ${row.tz ?? ""}`;

const COLUMNS: Column<Recurring>[] = [
  { name: "Name", width: "1.4fr", cell: (row) => row.name },
  { name: "Topic", width: "1fr", wide: true, cell: (row) => <a href={href("topics", row.topic)}>{row.topic}</a> },
  { name: "Rule", width: "1.2fr", wide: true, cell: (row) => <span class="mono">{rule(row)}</span> },
  { name: "Next", width: "190px", cell: (row) => row.error !== null ? <State tone="error">{row.error}</State> : row.paused ? <State tone="muted">paused</State> : row.next_at === null ? <span class="muted">never again</span> : time(row.next_at) },
  { name: "In", width: "96px", wide: true, end: true, cell: (row) => row.next_at === null ? "–" : relative(row.next_at, now.value) },
  { name: "Sent", width: "80px", wide: true, end: true, cell: (row) => count(row.delivered_count) },
];

export function RecurringList(): JSX.Element {
  const [opened, setOpened] = useState<string | null>(null);
  const [isCreating, setCreating] = useState(false);
  const pages = usePages<Recurring>("recurring", async (cursor, signal) => {
    const answer = await get<{ recurring: Recurring[]; next_cursor: string | null }>("mq/v1/recurring" + query({ cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.recurring, next: answer.next_cursor, total: null };
  }, REFRESH_MS);
  const shown = pages.rows.find(({ name }) => name === opened) ?? null;
  if (pages.at === 0) return <Waiting error={pages.error} retry={pages.reload} />;
  const reason = deniedEverywhere("send");
  return (
    <>
      <div class="bar"><Button kind="main" reason={reason} onClick={() => setCreating(true)}>Create recurring</Button></div>
      {isCreating && <RecurringDialog taken={pages.rows.map(({ name }) => name)} onClose={() => setCreating(false)} onDone={(name) => {
        setOpened(name);
        pages.reload();
      }} />}
      {pages.error !== null && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.rows.length === 0 ? <Empty>Nothing recurs. A recurring schedule sends the same record every so long, or by a cron expression.</Empty> : <div class={shown === null ? "" : "split"}>
        <List
          label="Recurring schedules" columns={COLUMNS} rows={pages.rows} id={(row) => row.name} onEnd={pages.more} open={(row) => setOpened(row.name)} opened={opened}
          isStale={pages.error?.isUnreachable === true}
        />
        {shown !== null && <One row={shown} onClose={() => setOpened(null)} onChanged={pages.reload} />}
      </div>}
    </>
  );
}

function One(props: { row: Recurring; onClose: () => void; onChanged: () => void }): JSX.Element {
  const { row } = props;
  const [isDeleting, setDeleting] = useState(false);
  const doing = useDoing();
  const reason = denied("send", { topic: row.topic });
  const act = async () => {
    await send("POST", path`mq/v1/recurring/${row.name}` + (row.paused ? ":resume" : ":pause"));
    tell(`${row.name} ${row.paused ? "goes on" : "is paused"}.`);
    props.onChanged();
  };
  return (
    <section class="card detail" aria-label="The chosen schedule">
      <header><h2>{row.name}</h2><Button kind="quiet" label="Close the schedule" onClick={props.onClose}>✕</Button></header>
      <dl class="facts">
        <Fact name="Rule"><code>{rule(row)}</code></Fact>
        <Fact name="Topic"><a href={href("topics", row.topic)}>{row.topic}</a></Fact>
        <Fact name="Next">{row.next_at === null ? (row.paused ? "paused" : "never again") : `${time(row.next_at)}, ${relative(row.next_at, now.value)}`}</Fact>
        <Fact name="Last">{row.last_at === null ? "not yet" : time(row.last_at)}</Fact>
        {row.last_offset !== null && <Fact name="Delivered at">{`partition ${row.last_partition}, offset ${count(row.last_offset)}`}</Fact>}
        <Fact name="Sent">{count(row.delivered_count)}</Fact>
        <Fact name="Missed">{count(row.missed_count)}</Fact>
        <Fact name="Of several missed">{row.missed === "once" ? "one record" : "a record each"}</Fact>
        <Fact name="Changed">{time(row.updated_at)}</Fact>
      </dl>
      {row.error !== null && <p class="note error">{row.error}</p>}
      <ErrorNote error={doing.error} />
      <div class="actions start">
        <Button reason={reason} busy={doing.isBusy} onClick={() => void doing.run(act)}>{row.paused ? "Resume" : "Pause"}</Button>
        <Button kind="danger" reason={reason} onClick={() => setDeleting(true)}>Delete</Button>
      </div>
      {isDeleting && (
        <Confirm title="Delete a recurring schedule" action="Delete it" onClose={() => setDeleting(false)} act={async () => {
          await send("DELETE", path`mq/v1/recurring/${row.name}`);
          tell(`${row.name} is deleted.`);
          props.onClose();
          props.onChanged();
        }}>
          <p><b>{row.name}</b> sends nothing any more. What it has sent stays.</p>
        </Confirm>
      )}
    </section>
  );
}
