/** Delayed records: when they are due, as a heat map and as a table; search, cancel, move, fire. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { clock, count, day, forInput, plural, relative, time } from "../format.js";
import { line, type Rec, type Shown } from "../records.js";
import { denied, deniedEverywhere, firstDenied } from "../rights.js";
import { usePages, useResource } from "../resource.js";
import { href, place, setQuery } from "../router.js";
import { Button, Confirm, Dialog, Empty, ErrorNote, Fact, Field, State, Tabs, TextInput, Waiting, now, tell, useDoing } from "../ui/basics.js";
import { HeatMap } from "../ui/heat.js";
import { List, ROW_PX, type Column } from "../ui/list.js";
import { Decoded } from "../ui/record.js";
import { WhenPicker, laterBy, resolve } from "../ui/when.js";
import { RecurringList } from "./recurring.js";

type Span = "hour" | "day" | "month" | "year";
const SPANS: readonly Span[] = ["hour", "day", "month", "year"];
const MINUTE_MS = 60_000;
const HOUR_MS = 3_600_000;
const REFRESH_MS = 10_000;
/** A search by key looks at every delayed record of its topic. */
const KEY_REFRESH_MS = 60_000;
const PAGE_ROWS = 200;
/** As many as one batch takes. */
const BATCH_MAX = 1000;

interface ScheduleRow extends Shown {
  schedule_id: string;
  topic: string | null;
  partition: number;
  tag: string | null;
  schedule_key: string | null;
  deliver_at: number;
  created_at: number;
  timestamp: number;
  size: number;
}

interface Grid {
  bounds: number[];
  rows: number;
  columns: number;
  rowNames: string[];
  columnNames: string[];
  /** Time goes down the columns instead of along the rows. */
  isDown?: boolean;
}

/** Which bucket a cell is. */
function bucketOf(grid: Grid, row: number, column: number): number {
  return grid.isDown === true ? column * grid.rows + row : row * grid.columns + column;
}

/**
 * The cells of a picture, by the calendar of this browser: local days are not all of one length, so the bounds are given one by one. An
 * hour from now by minutes; a day by 5 minutes, an hour a column; 31 days by the hour; 53 weeks by the day.
 */
function gridOf(span: Span, fromMs: number): Grid {
  const from = new Date(fromMs);
  const bounds: number[] = [];
  const rowNames: string[] = [];
  const numbers = (length: number, of: (index: number) => string) => Array.from({ length }, (_, index) => of(index));
  if (span === "hour") {
    from.setSeconds(0, 0);
    const first = from.getTime() - from.getMinutes() % 10 * MINUTE_MS;
    for (let minute = 0; minute <= 60; minute++) bounds.push(first + minute * MINUTE_MS);
    return { bounds, rows: 6, columns: 10, rowNames: numbers(6, (row) => clock(first + row * 10 * MINUTE_MS)), columnNames: numbers(10, (column) => `+${column} min`) };
  }
  if (span === "day") {
    from.setMinutes(0, 0, 0);
    const first = from.getTime();
    for (let step = 0; step <= 288; step++) bounds.push(first + step * 5 * MINUTE_MS);
    return {
      bounds, rows: 12, columns: 24, isDown: true, rowNames: numbers(12, (row) => `:${String(row * 5).padStart(2, "0")}`),
      columnNames: numbers(24, (column) => String(new Date(first + column * HOUR_MS).getHours()).padStart(2, "0")),
    };
  }
  from.setHours(0, 0, 0, 0);
  if (span === "month") {
    for (let one = 0; one < 31; one++) {
      const start = new Date(from.getFullYear(), from.getMonth(), from.getDate() + one);
      rowNames.push(day(start.getTime()).slice(0, 10));
      for (let hour = 0; hour < 24; hour++) bounds.push(new Date(start.getFullYear(), start.getMonth(), start.getDate(), hour).getTime());
    }
    bounds.push(new Date(from.getFullYear(), from.getMonth(), from.getDate() + 31).getTime());
    return { bounds, rows: 31, columns: 24, rowNames, columnNames: numbers(24, (hour) => String(hour).padStart(2, "0")) };
  }
  const monday = new Date(from.getFullYear(), from.getMonth(), from.getDate() - (from.getDay() + 6) % 7);
  for (let one = 0; one <= 53 * 7; one++) bounds.push(new Date(monday.getFullYear(), monday.getMonth(), monday.getDate() + one).getTime());
  const month = (week: number) => day(bounds[week * 7]!).slice(7, 10);
  return {
    bounds, rows: 7, columns: 53, isDown: true, rowNames: ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"],
    columnNames: numbers(53, (week) => (week === 0 || month(week) !== month(week - 1) ? month(week) : "")),
  };
}

const FINER: Record<Span, Span | null> = { year: "day", month: "hour", day: null, hour: null };

interface Histogram {
  bounds: number[];
  counts: number[];
  total: number;
  overdue: number;
  rolled: number;
}

/** Bounds as the server reads them: equal steps as one, or 31 days by the hour would make an address too long for it. */
function shortened(bounds: number[]): string {
  const runs: [count: number, ms: number][] = [];
  bounds.slice(1).forEach((bound, index) => {
    const ms = bound - bounds[index]!;
    const last = runs.at(-1);
    if (last?.[1] === ms) last[0]++;
    else runs.push([1, ms]);
  });
  return [bounds[0], ...runs.map(([count_, ms]) => `${count_}x${ms}`)].join();
}

export function DelaysPage(): JSX.Element {
  const right = deniedEverywhere("describe");
  if (right !== null) return <><div class="head"><h1>Delays</h1></div><Empty>{right}</Empty></>;
  if (place.value.query.get("tab") === "recurring") return <><div class="head"><h1>Delays</h1></div><Kinds value="recurring" /><RecurringList /></>;
  return <Seen />;
}

function Kinds(props: { value: "once" | "recurring" }): JSX.Element {
  return <Tabs label="Kinds of delays" value={props.value} tabs={[["once", "Once"], ["recurring", "Recurring"]]} href={(to) => to === "once" ? "#/delays" : `#/delays?tab=${to}`} />;
}

function Seen(): JSX.Element {
  const given = place.value.query;
  const topic = given.get("topic") ?? "";
  const key = given.get("key") ?? "";
  const span: Span = SPANS.find((one) => one === given.get("span")) ?? "day";
  const from = Number(given.get("from")) || null;
  const slot = given.get("slot");
  const isTable = given.get("view") === "table";
  const [topicField, setTopicField] = useState(topic);
  const [keyField, setKeyField] = useState(key);
  const startMs = from ?? Math.floor(now.value / MINUTE_MS) * MINUTE_MS;
  const grid = useMemo(() => gridOf(span, startMs), [span, startMs]);
  const histogram = useResource<Histogram>(
    `${topic} ${span} ${grid.bounds[0]}`,
    (signal) => get("mq/v1/schedules:histogram" + query({ topic, bounds: shortened(grid.bounds) }), signal),
    REFRESH_MS,
  );
  const slotBounds = slot === null ? null : slot.split("-").map(Number) as [number, number];
  const data = histogram.data;
  const cells = useMemo(() => data === null ? null : Array.from({ length: grid.rows }, (_, row) => Array.from({ length: grid.columns }, (_unused, column) => data.counts[bucketOf(grid, row, column)] ?? null)), [data, grid]);
  const boundsOf = (row: number, column: number): [number, number] => [grid.bounds[bucketOf(grid, row, column)]!, grid.bounds[bucketOf(grid, row, column) + 1]!];
  const nameOf = (row: number, column: number) => {
    const [begin, end] = boundsOf(row, column);
    return span === "year" ? day(begin) : `${day(begin)} ${clock(begin)} to ${clock(end)}`;
  };
  return (
    <>
      <div class="head">
        <h1>Delays</h1>
        {data !== null && (
          <>
            <span>{plural(data.total, "record")} due in this {span}</span>
            {data.overdue > 0 ? <State tone="warn">{count(data.overdue)} overdue</State> : <State tone="ok">none overdue</State>}
            <span class="muted" title="Due beyond the timer's window: copied to the head of the log now and then, so that retention does not take them">{count(data.rolled)} rolled</span>
          </>
        )}
      </div>
      <Kinds value="once" />
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          setQuery({ topic: topicField, key: keyField });
        }}
      >
        <span class="segmented" role="group" aria-label="Time shown">
          {SPANS.map((one) => <Button key={one} pressed={one === span} onClick={() => setQuery({ span: one, from: null, slot: null })}>{one}</Button>)}
        </span>
        <Field label="Topic"><TextInput search value={topicField} onInput={setTopicField} placeholder="all" /></Field>
        <Field label="Key is" {...(keyField !== "" && topicField === "" ? { hint: "name the topic too" } : {})}><TextInput value={keyField} onInput={setKeyField} placeholder="any" /></Field>
        <Button type="submit" reason={keyField !== "" && topicField === "" ? "A key is looked for within one topic: name it." : null}>Search</Button>
        {from !== null && <Button kind="quiet" onClick={() => setQuery({ from: null, slot: null })}>Back to now</Button>}
        <span class="segmented push" role="group" aria-label="Shown as">
          <Button pressed={!isTable} onClick={() => setQuery({ view: null })}>picture</Button>
          <Button pressed={isTable} onClick={() => setQuery({ view: "table" })}>table</Button>
        </span>
      </form>
      {cells === null || data === null ? <Waiting error={histogram.error} retry={histogram.reload} rows={8} />
        : isTable ? <Counts cells={cells} grid={grid} nameOf={nameOf} choose={(row, column) => setQuery({ slot: boundsOf(row, column).join("-") })} />
        : (
          <div class={histogram.error?.isUnreachable === true ? "stale" : ""}>
            <HeatMap
              label={`Delayed records of the ${span}`} cells={cells} rowNames={grid.rowNames} columnNames={grid.columnNames} name={nameOf}
              onEnter={(row, column) => {
                const [begin, end] = boundsOf(row, column);
                const finer = FINER[span];
                if (finer === null) setQuery({ slot: `${begin}-${end}` });
                else setQuery({ span: finer, from: String(begin), slot: null });
              }}
              onLeave={() => setQuery(slot !== null ? { slot: null } : { span: span === "hour" ? "month" : "year", from: null })}
            />
          </div>
        )}
      <Schedules
        topic={topic} keyText={key} slot={slotBounds}
        title={slotBounds === null ? (key === "" ? "Next due" : `Key ${key}`) : `Due ${time(slotBounds[0])} to ${clock(slotBounds[1])}`}
        clear={slotBounds === null ? null : () => setQuery({ slot: null })}
        onChanged={histogram.reload}
      />
    </>
  );
}

/** The table twin of the picture: the cells that are not empty. */
function Counts(props: { cells: (number | null)[][]; grid: Grid; nameOf: (row: number, column: number) => string; choose: (row: number, column: number) => void }): JSX.Element {
  const filled = props.cells.flatMap((line_, row) => line_.map((value, column) => ({ value: value ?? 0, row, column }))).filter(({ value }) => value > 0)
    .sort((one, other) => bucketOf(props.grid, one.row, one.column) - bucketOf(props.grid, other.row, other.column));
  if (filled.length === 0) return <Empty>Nothing is due in this time.</Empty>;
  const columns: Column<(typeof filled)[number]>[] = [
    { name: "Time", width: "2fr", cell: ({ row, column }) => <button type="button" class="link" onClick={() => props.choose(row, column)}>{props.nameOf(row, column)}</button> },
    { name: "Due", width: "1fr", end: true, cell: ({ value }) => count(value) },
  ];
  return (
    <List label="Delayed records by time" columns={columns} rows={filled} id={({ row, column }) => `${row}-${column}`} height={Math.min(320, filled.length * ROW_PX)}
      open={({ row, column }) => props.choose(row, column)} />
  );
}

const COLUMNS: Column<ScheduleRow>[] = [
  { name: "Due", width: "190px", cell: (row) => time(row.deliver_at, true) },
  { name: "In", width: "96px", wide: true, end: true, cell: (row) => relative(row.deliver_at, now.value) },
  { name: "Topic", width: "1.4fr", cell: (row) => row.topic === null ? <span class="muted">deleted</span> : <a href={href("topics", row.topic)}>{row.topic}</a> },
  { name: "Key", width: "1fr", cell: (row) => <span class="mono">{line(row, "key")}</span> },
  { name: "Schedule key", width: "1fr", wide: true, cell: (row) => <span class="mono">{row.schedule_key}</span> },
  { name: "Tag", width: "80px", wide: true, cell: (row) => row.tag },
  { name: "Accepted", width: "150px", wide: true, cell: (row) => time(row.created_at) },
];

interface Result {
  schedule_id: string;
  ok: boolean;
  error?: string;
}

type Act = "cancel" | "fire" | "move";

function Schedules(props: { topic: string; keyText: string; slot: [number, number] | null; title: string; clear: (() => void) | null; onChanged: () => void }): JSX.Element {
  const { topic, keyText, slot } = props;
  const [selected, setSelected] = useState<Set<string>>(new Set());
  const [opened, setOpened] = useState<ScheduleRow | null>(null);
  const [dialog, setDialog] = useState<Act | null>(null);
  const pages = usePages<ScheduleRow>(`${topic} ${keyText} ${slot?.join()}`, async (cursor, signal) => {
    const answer = await get<{ schedules: ScheduleRow[]; next_cursor: string | null; total: number | null }>(
      "mq/v1/schedules" + query({ topic, key: keyText, from: slot?.[0], to: slot?.[1], order: "due", limit: PAGE_ROWS, cursor }), signal,
    );
    return { rows: answer.schedules, next: answer.next_cursor, total: answer.total };
  }, keyText === "" ? REFRESH_MS : KEY_REFRESH_MS);
  const chosen = selected.size > 0 ? pages.rows.filter((row) => selected.has(row.schedule_id)) : [];
  const reason = chosen.length === 0 ? "Select records first."
    : chosen.length > BATCH_MAX ? `At most ${count(BATCH_MAX)} at a time.`
    : firstDenied(...[...new Set(chosen.map((row) => row.topic))].map((name) => (name === null ? null : denied("send", { topic: name }))));
  const act = async (action: Act, more: Record<string, unknown> = {}) => {
    const { results } = await send<{ results: Result[] }>("POST", "mq/v1/schedules:batch", { action, schedule_ids: chosen.map((row) => row.schedule_id), ...more });
    const failed = results.filter(({ ok }) => !ok);
    const done = { cancel: "cancelled", fire: "delivered", move: "moved" }[action];
    tell(`${plural(results.length - failed.length, "record")} ${done}${failed.length === 0 ? "." : `; ${failed.length} not: ${failed[0]!.error}`}`, failed.length === 0 ? "ok" : "warn");
    setSelected(new Set());
    setOpened(null);
    pages.reload();
    props.onChanged();
  };
  return (
    <section class="form" aria-label={props.title}>
      <div class="head">
        <h2>{props.title}</h2>
        <span class="muted small" role="status">
          {pages.at === 0 ? "" : pages.total === null ? (pages.next === null ? plural(pages.rows.length, "record") : `the first ${count(pages.rows.length)}`) : plural(pages.total, "record")}
          {chosen.length > 0 && `, ${chosen.length} selected`}
        </span>
        {props.clear !== null && <Button kind="quiet" onClick={props.clear}>All times</Button>}
        <Button reason={reason} onClick={() => setDialog("fire")}>Fire now</Button>
        <Button reason={reason} onClick={() => setDialog("move")}>Move…</Button>
        <Button kind="danger" reason={reason} onClick={() => setDialog("cancel")}>Cancel</Button>
      </div>
      {pages.error !== null && pages.at > 0 && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? <Empty>{keyText !== "" || slot !== null ? "No delayed record is there." : "No record waits for its time. A send with a delay makes one."}</Empty>
        : (
          <div class={opened === null ? "" : "split"}>
            <List
              label="Delayed records" columns={COLUMNS} rows={pages.rows} id={(row) => row.schedule_id} total={pages.total} selected={selected} onSelect={setSelected}
              onEnd={pages.more} open={setOpened} opened={opened?.schedule_id ?? null} isStale={pages.error?.isUnreachable === true} height={Math.min(480, pages.rows.length * ROW_PX)}
            />
            {opened !== null && <One row={opened} onClose={() => setOpened(null)} act={(action) => {
              setSelected(new Set([opened.schedule_id]));
              setDialog(action);
            }} />}
          </div>
        )}
      {dialog === "cancel" && (
        <Confirm title="Cancel" action={`Cancel ${chosen.length}`} onClose={() => setDialog(null)} act={() => act("cancel")}>
          <p>{plural(chosen.length, "record")} will not be delivered. This cannot be undone.</p>
        </Confirm>
      )}
      {dialog === "fire" && (
        <Confirm title="Fire now" action={`Deliver ${chosen.length} now`} danger={false} onClose={() => setDialog(null)} act={() => act("fire")}>
          <p>{plural(chosen.length, "record")} will be delivered at once instead of when due.</p>
        </Confirm>
      )}
      {dialog === "move" && <MoveDialog count={chosen.length} onClose={() => setDialog(null)} act={(to) => act("move", to)} />}
    </section>
  );
}

function One(props: { row: ScheduleRow; onClose: () => void; act: (action: Act) => void }): JSX.Element {
  const { row } = props;
  const mayRead = row.topic === null ? null : denied("receive", { topic: row.topic });
  const found = useResource<ScheduleRow>(mayRead === null ? row.schedule_id : null, (signal) => get(path`mq/v1/schedules/${row.schedule_id}` + query({ include: "value" }), signal));
  const reason = row.topic === null ? null : denied("send", { topic: row.topic });
  return (
    <section class="card detail" aria-label="The chosen record">
      <header><h2>Due {relative(row.deliver_at, now.value)}</h2><Button kind="quiet" label="Close the record" onClick={props.onClose}>✕</Button></header>
      <dl class="facts">
        <Fact name="Due">{time(row.deliver_at, true)}</Fact>
        <Fact name="Topic">{row.topic ?? "deleted"}</Fact>
        <Fact name="Partition">{row.partition}</Fact>
        <Fact name="Key"><code>{line(row, "key") || "none"}</code></Fact>
        {row.schedule_key !== null && <Fact name="Schedule key"><code>{row.schedule_key}</code></Fact>}
        <Fact name="Accepted">{time(row.created_at, true)}</Fact>
        <Fact name="Schedule id"><code>{row.schedule_id}</code></Fact>
      </dl>
      {mayRead !== null ? <p class="muted">{mayRead} The value is not shown.</p> : found.data === null ? <Waiting error={found.error} retry={found.reload} rows={2} /> : <Decoded record={found.data as unknown as Rec} name="value" />}
      <div class="actions start">
        <Button reason={reason} onClick={() => props.act("fire")}>Fire now</Button>
        <Button reason={reason} onClick={() => props.act("move")}>Move…</Button>
        <Button kind="danger" reason={reason} onClick={() => props.act("cancel")}>Cancel</Button>
      </div>
    </section>
  );
}

function MoveDialog(props: { count: number; onClose: () => void; act: (to: Record<string, unknown>) => Promise<void> }): JSX.Element {
  const [when, setWhen] = useState({ ...laterBy(HOUR_MS), kind: "at" as "now" | "in" | "at", at: forInput(Date.now() + HOUR_MS) });
  const doing = useDoing();
  const to = resolve(when);
  return (
    <Dialog title={`Move ${plural(props.count, "record")}`} onClose={props.onClose}>
      <form class="form" onSubmit={(event) => {
        event.preventDefault();
        if (typeof to !== "string" && !doing.isBusy) void doing.run(() => props.act(to)).then((isDone) => isDone && props.onClose());
      }}>
        <WhenPicker value={when} onChange={setWhen} withNow={false} />
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Keep</Button>
          <Button kind="main" type="submit" reason={typeof to === "string" ? to : null} busy={doing.isBusy}>Move</Button>
        </div>
      </form>
    </Dialog>
  );
}
