/** Messages of a topic: the newest, from an offset or a time on, or those with a key, a tag or a text. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, ask, get, path, query } from "../api.js";
import { bytes, count, forInput, plural, time } from "../format.js";
import { line, sizeOf, type Rec } from "../records.js";
import { denied } from "../rights.js";
import { returns } from "../session.js";
import { place, setQuery } from "../router.js";
import { readSnippet } from "../snippets.js";
import { Button, Empty, ErrorNote, Field, Select, Skeleton, TextInput } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { CopyAs, RecordView } from "../ui/record.js";
import type { TopicDetail } from "./topic.js";
import { sendCopyOf } from "./topic_send.js";

type From = "newest" | "oldest" | "offset" | "time";
const FROM: readonly (readonly [From, string])[] = [["newest", "newest first"], ["oldest", "oldest first"], ["offset", "from an offset"], ["time", "from a time"]];
const ROWS = 200;
/** "All" reads each partition by itself: more than so many would be too many requests for one look. */
const ALL_MAX = 16;

interface Found {
  rows: Rec[];
  /** Ask for more; null: this is all. */
  more: ((signal: AbortSignal) => Promise<Found>) | null;
  /** What was looked at, where that is not what is shown. */
  note: string;
}

interface Asked {
  partition: number | null;
  from: From;
  offset: number;
  atMs: number;
  key: string;
  tag: string;
  text: string;
}

export const COLUMNS: Column<Rec>[] = [
  { name: "Stored", width: "178px", wide: true, cell: (row) => time(row.store_timestamp ?? row.timestamp, true) },
  { name: "Part.", width: "44px", end: true, cell: (row) => row.partition },
  { name: "Offset", width: "76px", end: true, cell: (row) => count(row.offset) },
  { name: "Key", width: "1fr", cell: (row) => <span class="mono">{line(row, "key")}</span> },
  { name: "Value", width: "3fr", cell: (row) => <span class="mono">{line(row, "value")}</span> },
  { name: "Tag", width: "80px", wide: true, cell: (row) => row.tag ?? "" },
  { name: "Size", width: "72px", end: true, wide: true, cell: (row) => bytes(sizeOf(row)) },
];

export function idOf(record: Rec): string {
  return `${record.partition}-${record.offset}`;
}

async function read(topic: string, partition: number, from: number, to: number, signal: AbortSignal): Promise<Rec[]> {
  if (from >= to) return [];
  const parameters = query({ offset: from, end_offset: to, max_records: to - from, reset: "earliest" });
  const { body } = await ask<(Rec & { error_code?: number; error?: string })[]>(path`topics/${topic}/partitions/${partition}/records` + parameters, { as: "lines", signal });
  const end = body.at(-1);
  if (end !== undefined && end.offset === undefined) throw new ApiError(end.error ?? "The answer ended early.", 200, end.error_code ?? 0, "");
  return body;
}

/** Windows over the partitions that grow in one direction, a page at a time; merged by when records were stored. */
async function windows(
  topic: string, bounds: readonly { partition: number; begin: number; end: number; at: number }[], isBackwards: boolean, before: readonly Rec[], signal: AbortSignal,
): Promise<Found> {
  const share = Math.ceil(ROWS / Math.max(1, bounds.filter(({ at, begin, end }) => (isBackwards ? at > begin : at < end)).length));
  const next = bounds.map((one) => ({ ...one, at: isBackwards ? Math.max(one.begin, one.at - share) : Math.min(one.end, one.at + share) }));
  const read_ = await Promise.all(next.map(({ partition, at }, index) => {
    const was = bounds[index]!.at;
    return isBackwards ? read(topic, partition, at, was, signal) : read(topic, partition, was, at, signal);
  }));
  const sign = isBackwards ? -1 : 1;
  const rows = [...before, ...read_.flat()].sort(
    (one, other) => sign * ((one.store_timestamp ?? 0) - (other.store_timestamp ?? 0) || one.partition - other.partition || one.offset - other.offset),
  );
  const isMore = next.some(({ at, begin, end }) => (isBackwards ? at > begin : at < end));
  return { rows, more: isMore ? (again) => windows(topic, next, isBackwards, rows, again) : null, note: "" };
}

async function search(topic: string, asked: Asked, cursor: string | null, before: readonly Rec[], looked: number, signal: AbortSignal): Promise<Found> {
  const { partition, from, key, tag, text } = asked;
  const body: Record<string, unknown> = { limit: ROWS };
  if (partition !== null) body["partition"] = partition;
  if (from === "offset" && partition !== null) body["offset"] = asked.offset;
  if (from === "time") body["from"] = asked.atMs;
  if (key !== "") body["key"] = key;
  if (tag !== "") body["tag"] = tag;
  if (text !== "") body["text"] = text;
  if (cursor !== null) body["cursor"] = cursor;
  const answer = (await ask<{ messages: Rec[]; scanned_records: number; scanned_bytes: number; complete: boolean; next_cursor: string | null }>(
    path`mq/v1/topics/${topic}/messages:search`, { method: "POST", body, signal },
  )).body;
  const rows = [...before, ...answer.messages];
  const scanned = looked + answer.scanned_records;
  return {
    rows,
    more: answer.next_cursor === null ? null : (again) => search(topic, asked, answer.next_cursor, rows, scanned, again),
    note: `${plural(scanned, "record")} looked through`,
  };
}

async function find(detail: TopicDetail, asked: Asked, signal: AbortSignal): Promise<Found> {
  const { topic } = detail;
  if (asked.key !== "" || asked.tag !== "" || asked.text !== "") return search(topic, asked, null, [], 0, signal);
  const { offsets } = await get<TopicDetail>(path`mq/v1/topics/${topic}`, signal);
  const chosen = offsets.filter(({ partition }) => (asked.partition === null ? offsets.length <= ALL_MAX : partition === asked.partition));
  let starts = new Map<number, number>();
  if (asked.from === "time") {
    const found = await get<{ partitions: { partition: number; offset_for_time: number }[] }>(path`mq/v1/topics/${topic}/offsets` + query({ timestamp: asked.atMs }), signal);
    starts = new Map(found.partitions.map((one) => [one.partition, one.offset_for_time]));
  }
  const bounds = chosen.map(({ partition, beginning_offset: begin, end_offset: end }) => ({
    partition, begin, end,
    at: asked.from === "newest" ? end : asked.from === "offset" ? Math.min(end, Math.max(begin, asked.offset)) : starts.get(partition) ?? begin,
  }));
  return windows(topic, bounds, asked.from === "newest", [], signal);
}

export function Browse(props: { detail: TopicDetail }): JSX.Element {
  const { detail } = props;
  const { topic } = detail;
  const given = place.value.query;
  const isSmall = detail.partitions <= ALL_MAX;
  const [partition, setPartition] = useState(given.get("partition") ?? (isSmall ? "" : "0"));
  const [from, setFrom] = useState<From>((given.get("from") as From | null) ?? "newest");
  const [offset, setOffset] = useState(given.get("offset") ?? "0");
  const [at, setAt] = useState(forInput(Date.now() - 3_600_000));
  const [key, setKey] = useState(given.get("key") ?? "");
  const [tag, setTag] = useState(given.get("tag") ?? "");
  const [text, setText] = useState(given.get("text") ?? "");
  const [found, setFound] = useState<Found | null>(null);
  const [error, setError] = useState<ApiError | null>(null);
  const [isBusy, setBusy] = useState(false);
  const [opened, setOpened] = useState<Rec | null>(null);
  const running = useRef(new AbortController());
  const right = denied("receive", { topic });

  const run = async (how: (signal: AbortSignal) => Promise<Found>) => {
    running.current.abort();
    const mine = new AbortController();
    running.current = mine;
    setBusy(true);
    setError(null);
    try {
      const next = await how(mine.signal);
      if (!mine.signal.aborted) setFound(next);
    } catch (caught) {
      if (!mine.signal.aborted) setError(caught instanceof ApiError ? caught : new ApiError(String(caught), 0, 0, ""));
    } finally {
      if (!mine.signal.aborted) setBusy(false);
    }
  };
  const start = () => {
    setOpened(null);
    const asked: Asked = {
      partition: partition === "" ? null : Number(partition), from, offset: Number(offset) || 0, atMs: new Date(at).getTime() || 0, key, tag, text,
    };
    setQuery({ partition, from: from === "newest" ? null : from, offset: from === "offset" ? offset : null, key, tag, text });
    return run((signal) => find(detail, asked, signal));
  };
  const came = returns.value;
  useEffect(() => {
    if (right === null) void start();
    return () => running.current.abort();
  }, [came]);
  if (right !== null) return <Empty>{right} The messages of this topic are not shown.</Empty>;

  const isSearch = key !== "" || tag !== "" || text !== "";
  const partitions: (readonly [string, string])[] = [
    ...(isSmall || isSearch ? [["", "all"] as const] : []),
    ...detail.offsets.map(({ partition: number }) => [String(number), String(number)] as const),
  ];
  return (
    <>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          void start();
        }}
      >
        <Field label="Partition"><Select value={partition} options={partitions} onChange={setPartition} /></Field>
        <Field label="Order"><Select value={from} options={FROM} onChange={setFrom} /></Field>
        {from === "offset" && <Field label="Offset"><TextInput type="number" min="0" value={offset} onInput={setOffset} /></Field>}
        {from === "time" && <Field label="Stored from"><TextInput type="datetime-local" step="1" value={at} onInput={setAt} /></Field>}
        <Field label="Key is"><TextInput value={key} onInput={setKey} placeholder="any" /></Field>
        <Field label="Tag is"><TextInput value={tag} onInput={setTag} placeholder="any" /></Field>
        <Field label="Text inside"><TextInput search value={text} onInput={setText} placeholder="anything" /></Field>
        <Button kind="main" type="submit" busy={isBusy && found === null}>{isSearch ? "Search" : "Show"}</Button>
      </form>
      <ErrorNote error={error} retry={() => void start()} />
      {found === null ? (error === null ? <Skeleton /> : null) : (
        <div class={opened === null ? "" : "split"}>
          <div>
            {found.rows.length === 0 ? (
              <Empty>{found.more !== null ? "Nothing so far." : isSearch || from === "time" || from === "offset" ? "No message is there." : "The topic has no messages yet. Send one, or start a producer."}</Empty>
            ) : (
              <List
                label={`Messages of ${topic}`} columns={COLUMNS} rows={found.rows} id={idOf} opened={opened === null ? null : idOf(opened)}
                open={setOpened} isStale={error?.isUnreachable === true}
              />
            )}
            <div class="list-foot">
              <span role="status">{plural(found.rows.length, "message")} shown{found.note === "" ? "" : `; ${found.note}`}{isBusy ? "; looking…" : found.more === null ? "; that is all" : ""}</span>
              {found.more !== null && <Button busy={isBusy} onClick={() => void run(found.more!)}>{isSearch ? "Search on" : from === "newest" ? "Older" : "More"}</Button>}
              {isSearch && isBusy && <Button kind="quiet" onClick={() => {
                running.current.abort();
                setBusy(false);
              }}>Stop</Button>}
            </div>
          </div>
          {opened !== null && (
            <section class="card detail" aria-label="The chosen message">
              <header>
                <h2>Partition {opened.partition}, offset {count(opened.offset)}</h2>
                <Button kind="quiet" label="Close the message" onClick={() => setOpened(null)}>✕</Button>
              </header>
              <RecordView
                record={opened}
                actions={(
                  <>
                    <CopyAs what="the read" make={(language) => readSnippet(language, topic, opened.partition, opened.offset)} />
                    <Button reason={denied("send", { topic })} onClick={() => sendCopyOf(topic, opened)}>Send a copy…</Button>
                  </>
                )}
              />
            </section>
          )}
        </div>
      )}
    </>
  );
}

