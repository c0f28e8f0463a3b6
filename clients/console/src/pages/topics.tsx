/** All topics: a page at a time, sorted and filtered by the server. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { bytes, count, duration, exactly, parseDuration, perSecond, plural, rough } from "../format.js";
import { deniedEverywhere } from "../rights.js";
import { usePages } from "../resource.js";
import { go, href, place, setQuery } from "../router.js";
import { Button, Dialog, Empty, ErrorNote, Field, Select, TextInput, Waiting, tell, useDoing } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";

export interface Topic {
  topic: string;
  topic_id: number;
  partitions: number;
  json_keys: "raw" | "confluent";
  retention_ms?: number;
  max_message_bytes?: number;
  selector?: string;
  records: number;
  /** Since the server started. */
  appended_bytes: number;
  in_records_s: number;
  in_bytes_s: number;
  pending: number;
}

const PAGE_ROWS = 200;
const REFRESH_MS = 5000;
const FILTER_AFTER_MS = 150;

const COLUMNS: Column<Topic>[] = [
  { name: "Topic", width: "3fr", sort: "name", cell: (row) => <a href={href("topics", row.topic)}>{row.topic}</a> },
  { name: "Partitions", width: "1fr", end: true, wide: true, sort: "partitions", cell: (row) => count(row.partitions) },
  { name: "Rate in", width: "1fr", end: true, sort: "in_records_s", cell: (row) => perSecond(row.in_records_s) },
  { name: "Records", width: "1fr", end: true, sort: "records", cell: (row) => rough(row.records) },
  { name: "Bytes in", width: "1fr", end: true, wide: true, sort: "appended_bytes", cell: (row) => bytes(row.appended_bytes) },
  { name: "Delayed", width: "1fr", end: true, wide: true, sort: "pending", cell: (row) => rough(row.pending) },
  { name: "Retention", width: "1fr", end: true, wide: true, cell: (row) => row.retention_ms === undefined ? <span class="muted">default</span> : duration(row.retention_ms) },
];

export function TopicsPage(): JSX.Element {
  const right = deniedEverywhere("describe");
  return right === null ? <Seen /> : <><div class="head"><h1>Topics</h1></div><Empty>{right}</Empty></>;
}

function Seen(): JSX.Element {
  const given = place.value.query;
  const [filter, setFilter] = useState(given.get("q") ?? "");
  const [isCreating, setCreating] = useState(false);
  const q = given.get("q") ?? "";
  const sort = given.get("sort") ?? "name";
  const order = given.get("order") === "desc" ? "desc" : given.get("order") === "asc" ? "asc" : sort === "name" ? "asc" : "desc";
  useEffect(() => {
    const timer = setTimeout(() => filter !== (place.peek().query.get("q") ?? "") && setQuery({ q: filter }), FILTER_AFTER_MS);
    return () => clearTimeout(timer);
  }, [filter]);
  const pages = usePages<Topic>(`${q} ${sort} ${order}`, async (cursor, signal) => {
    const answer = await get<{ topics: Topic[]; next_cursor: string | null; total: number }>("mq/v1/topics" + query({ q, sort, order, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.topics, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS, 2);
  return (
    <>
      <div class="head">
        <h1>Topics</h1>
        <Button kind="main" reason={deniedEverywhere("create")} onClick={() => setCreating(true)}>Create topic</Button>
      </div>
      <div class="bar">
        <Field label="Filter by name" wide><TextInput search value={filter} onInput={setFilter} placeholder="part of a name" /></Field>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "topic")}</span>
      </div>
      {pages.error !== null && pages.at > 0 && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? (
          <Empty action={q !== "" && <Button onClick={() => setFilter("")}>Clear the filter</Button>}>
            {q === "" ? "There is no topic that you may see. Create one, or send to a name that your clients create." : `No topic has “${q}” in its name.`}
          </Empty>
        ) : (
          <List
            label="Topics" columns={COLUMNS} rows={pages.rows} id={(row) => row.topic} total={pages.total}
            open={(row) => go(href("topics", row.topic))} onEnd={pages.more} isStale={pages.error?.isUnreachable === true}
            sort={{ by: sort, order }}
            onSort={(by) => setQuery({ sort: by, order: by !== sort ? null : order === "asc" ? "desc" : "asc" })}
          />
        )}
      {isCreating && <TopicDialog onClose={() => setCreating(false)} />}
    </>
  );
}

const SELECTORS: readonly (readonly [string, string])[] = [["", "by key (default)"], ["round_robin", "in turn"], ["random", "at random"]];
const KEYS: readonly (readonly [string, string])[] = [["raw", "as they are (default)"], ["confluent", "as JSON, like other REST proxies"]];

/** Create a topic; or, given one, change what can be changed. */
export function TopicDialog(props: { topic?: Topic; onClose: () => void; onDone?: () => void }): JSX.Element {
  const { topic } = props;
  const [name, setName] = useState("");
  const [partitions, setPartitions] = useState(String(topic?.partitions ?? 4));
  const [retention, setRetention] = useState(topic?.retention_ms === undefined ? "" : exactly(topic.retention_ms));
  const [largest, setLargest] = useState(topic?.max_message_bytes === undefined ? "" : String(topic.max_message_bytes));
  const [selector, setSelector] = useState(topic?.selector ?? "");
  const [keys, setKeys] = useState("raw");
  const doing = useDoing();
  const retentionMs = retention === "" ? null : parseDuration(retention);
  const wrong = topic === undefined && name === "" ? "Give the topic a name."
    : retention !== "" && retentionMs === null ? 'Retention is a number and a unit, like "7d" or "36h"; empty: the default.'
    : !/^[1-9][0-9]*$/.test(partitions) ? "Partitions: a number from 1 on."
    : topic !== undefined && Number(partitions) < topic.partitions ? "Partitions can be added, never taken away."
    : largest !== "" && !/^[1-9][0-9]*$/.test(largest) ? "Largest record: a number of bytes; empty: the default."
    : null;
  const act = async () => {
    const chosen: Record<string, unknown> = {
      retention_ms: retentionMs,
      max_message_bytes: largest === "" ? null : Number(largest),
      selector: selector === "" ? null : selector,
    };
    if (topic === undefined) {
      const body: Record<string, unknown> = { partitions: Number(partitions), ...Object.fromEntries(Object.entries(chosen).filter(([, value]) => value !== null)) };
      if (keys !== "raw") body["json_keys"] = keys;
      await send("PUT", path`mq/v1/topics/${name}`, body);
      tell(`Topic ${name} is there.`);
      go(href("topics", name));
    } else {
      const before: Record<string, unknown> = { retention_ms: topic.retention_ms ?? null, max_message_bytes: topic.max_message_bytes ?? null, selector: topic.selector ?? null };
      const changes: Record<string, unknown> = Object.fromEntries(Object.entries(chosen).filter(([field, value]) => before[field] !== value));
      if (Number(partitions) !== topic.partitions) changes["partitions"] = Number(partitions);
      if (Object.keys(changes).length > 0) await send("PATCH", path`mq/v1/topics/${topic.topic}`, changes);
      tell(`Topic ${topic.topic} is changed.`);
      props.onDone?.();
    }
  };
  return (
    <Dialog title={topic === undefined ? "Create a topic" : `Change ${topic.topic}`} onClose={props.onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          if (wrong === null && !doing.isBusy) void doing.run(act).then((isDone) => isDone && props.onClose());
        }}
      >
        {topic === undefined && <Field label="Name" hint="Letters, digits, . _ -"><TextInput value={name} onInput={setName} autoFocus /></Field>}
        <div class="two">
          <Field label="Partitions" {...(topic === undefined ? {} : { hint: "More partitions move keys to other partitions." })}>
            <TextInput type="number" min="1" value={partitions} onInput={setPartitions} />
          </Field>
          <Field label="Retention" hint="empty: the server's default"><TextInput value={retention} onInput={setRetention} placeholder="7d" /></Field>
          <Field label="Largest record, bytes" hint="empty: the server's default"><TextInput type="number" min="1" value={largest} onInput={setLargest} /></Field>
          <Field label="Records without a partition"><Select value={selector} options={SELECTORS} onChange={setSelector} /></Field>
          {topic === undefined && <Field label="JSON keys" hint="cannot be changed later"><Select value={keys} options={KEYS} onChange={setKeys} /></Field>}
        </div>
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Cancel</Button>
          <Button kind="main" type="submit" reason={wrong} busy={doing.isBusy}>{topic === undefined ? "Create" : "Change"}</Button>
        </div>
      </form>
    </Dialog>
  );
}
