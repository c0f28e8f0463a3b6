/** Which brokers there are, and on which each partition's records lie. Read-only. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, query } from "../api.js";
import { count, duration, plural, time } from "../format.js";
import { denied } from "../rights.js";
import { usePages, useResource } from "../resource.js";
import { place, setQuery } from "../router.js";
import { Button, Empty, Field, State, TextInput, Waiting } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";

interface Broker {
  broker: string;
  kind: string;
  state: "up" | "avoided" | "stopped";
  reasons: string[];
  latency_ms: number | null;
  excluded_until_ms: number | null;
  partitions: number;
}

interface Segment {
  broker: string;
  first_offset: number;
  end_offset: number | null;
  state: "open" | "sealed" | "moving";
}

interface Route {
  topic: string;
  partition: number;
  owner: string | null;
  segments: Segment[];
}

const REFRESH_MS = 5000;
const PAGE_ROWS = 200;

export function BrokersPage(): JSX.Element {
  const right = denied("operate");
  return (
    <>
      <div class="head"><h1>Brokers and routes</h1></div>
      {right === null ? <><Brokers /><Routes /></> : <Empty>{right} Brokers and routes are for operators.</Empty>}
    </>
  );
}

function Brokers(): JSX.Element {
  const found = useResource<{ brokers: Broker[] }>("brokers", (signal) => get("mq/v1/brokers", signal), REFRESH_MS);
  if (found.data === null) return <Waiting error={found.error} retry={found.reload} />;
  return (
    <div class={`scroll-x${found.error?.isUnreachable === true ? " stale" : ""}`} tabIndex={0} role="region" aria-label="Brokers">
      <table class="small-table">
        <thead>
          <tr>
            <th scope="col">Broker</th><th scope="col">Kind</th><th scope="col">State</th><th scope="col" class="end">Latency</th>
            <th scope="col">Avoided until</th><th scope="col" class="end">Partitions</th>
          </tr>
        </thead>
        <tbody>
          {found.data.brokers.map((broker) => (
            <tr key={broker.broker}>
              <th scope="row">{broker.broker}</th>
              <td>{broker.kind}</td>
              <td><State tone={broker.state === "up" ? "ok" : broker.state === "avoided" ? "warn" : "error"}>{broker.state}</State> {broker.reasons.join("; ")}</td>
              <td class="end">{duration(broker.latency_ms)}</td>
              <td>{broker.excluded_until_ms === null ? "–" : time(broker.excluded_until_ms)}</td>
              <td class="end">{count(broker.partitions)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** By the square root of the length: a long segment is wider, a short one can still be seen. */
function weight(segment: Segment): number {
  return segment.end_offset === null ? 12 : Math.max(1, Math.sqrt(segment.end_offset - segment.first_offset));
}

function Bar(props: { segments: Segment[] }): JSX.Element {
  return (
    <span class="segments">
      {props.segments.map((segment) => {
        const range = `${count(segment.first_offset)}–${segment.end_offset === null ? "…" : count(segment.end_offset - 1)}`;
        return (
          <span key={segment.first_offset} class={`segment ${segment.state}`} style={{ flex: `${weight(segment)} 1 0` }} title={`${segment.broker}: ${range}, ${segment.state}`}>
            {segment.broker} {range} {segment.state}
          </span>
        );
      })}
    </span>
  );
}

const COLUMNS: Column<Route>[] = [
  { name: "Partition", width: "1fr", cell: (row) => `${row.topic}/${row.partition}` },
  { name: "Owner", width: "100px", wide: true, cell: (row) => row.owner ?? <State tone="error">nobody</State> },
  { name: "Segments: logical offsets by broker", width: "3fr", cell: (row) => <Bar segments={row.segments} /> },
];

function Routes(): JSX.Element {
  const topic = place.value.query.get("topic") ?? "";
  const [field, setField] = useState(topic);
  const pages = usePages<Route>(topic, async (cursor, signal) => {
    const answer = await get<{ partitions: Route[]; next_cursor: string | null; total: number | null }>("mq/v1/routes" + query({ topic, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.partitions, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS);
  return (
    <>
      <form class="bar" onSubmit={(event) => {
        event.preventDefault();
        setQuery({ topic: field });
      }}>
        <Field label="Partitions of topic" wide><TextInput search value={field} onInput={setField} placeholder="all" /></Field>
        <Button type="submit">Show</Button>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "partition")}</span>
      </form>
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? <Empty>There is no such partition.</Empty>
        : <List label="Routes" columns={COLUMNS} rows={pages.rows} id={(row) => `${row.topic}/${row.partition}`} total={pages.total} onEnd={pages.more} isStale={pages.error?.isUnreachable === true} />}
    </>
  );
}
