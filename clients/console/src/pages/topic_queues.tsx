/** Light queues of a topic: those whose names begin so, a page at a time; of one, where it begins and ends, and its records. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, path, query } from "../api.js";
import { count, time } from "../format.js";
import { line, type Rec } from "../records.js";
import { denied } from "../rights.js";
import { usePages, useResource } from "../resource.js";
import { place } from "../router.js";
import { Button, Empty, ErrorNote, Fact, Waiting } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { PrefixBar } from "../ui/prefix.js";

/** The server's refusal where it keeps no light queues. */
const NO_QUEUES = 40963;
const PAGE_ROWS = 100;
const SHOWN_RECORDS = 20;
const REFRESH_MS = 5000;
const COLUMNS: Column<string>[] = [{ name: "Light queue", width: "1fr", cell: (name) => <span class="mono">{name}</span> }];

export function LightQueues(props: { topic: string }): JSX.Element {
  const { topic } = props;
  const prefix = place.value.query.get("prefix") ?? "";
  const [opened, setOpened] = useState<string | null>(null);
  const pages = usePages<string>(`${topic} ${prefix}`, async (cursor, signal) => {
    const answer = await get<{ queues: string[]; next_cursor: string | null }>(path`mq/v1/topics/${topic}/queues` + query({ prefix, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.queues, next: answer.next_cursor, total: null };
  }, REFRESH_MS);
  if (pages.error?.code === NO_QUEUES) return <Empty>{pages.error.message} See docs/light-queues.md.</Empty>;
  return (
    <>
      <PrefixBar label="Name begins with" what="light queue" pages={pages} onShow={() => setOpened(null)} />
      {pages.error !== null && pages.at > 0 && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? <Empty>{prefix === "" ? "No record of this topic names a light queue. A send with light queues makes them." : `No light queue's name begins with “${prefix}”.`}</Empty> : (
          <div class={opened === null ? "" : "split"}>
            <List
              label={`Light queues of ${topic}`} columns={COLUMNS} rows={pages.rows} id={(name) => name} onEnd={pages.more} open={setOpened} opened={opened}
              isStale={pages.error?.isUnreachable === true}
            />
            {opened !== null && <One key={opened} topic={topic} name={opened} onClose={() => setOpened(null)} />}
          </div>
        )}
    </>
  );
}

interface Queue {
  record_count: number;
  partitions: { partition: number; beginning_offset: number; end_offset: number }[];
}

function One(props: { topic: string; name: string; onClose: () => void }): JSX.Element {
  const { topic, name } = props;
  const found = useResource<Queue>(name, (signal) => get(path`mq/v1/topics/${topic}/queues/${name}`, signal), REFRESH_MS);
  return (
    <section class="card detail" aria-label="The chosen light queue">
      <header><h2 class="mono">{name}</h2><Button kind="quiet" label="Close the light queue" onClick={props.onClose}>✕</Button></header>
      {found.data === null ? <Waiting error={found.error} retry={found.reload} rows={2} /> : (
        <dl class="facts">
          <Fact name="Records">{count(found.data.record_count)}</Fact>
          <Fact name="Offsets in it">{found.data.partitions.map((one) => `partition ${one.partition}: ${count(one.beginning_offset)} to ${count(one.end_offset - 1)}`).join("; ") || "none"}</Fact>
        </dl>
      )}
      <Records topic={topic} name={name} />
    </section>
  );
}

/** The first records, for who may read the topic or this light queue of it. */
function Records(props: { topic: string; name: string }): JSX.Element {
  const { topic, name } = props;
  const right = denied("receive", { topic }) === null ? null : denied("receive", { topic: `${topic}/${name}` });
  const found = useResource<{ records: Rec[] }>(right === null ? name : null, (signal) => get(path`mq/v1/topics/${topic}/queues/${name}/records` + query({ limit: SHOWN_RECORDS }), signal), REFRESH_MS);
  if (right !== null) return <p class="muted">{right} Its records are not shown.</p>;
  if (found.data === null) return <Waiting error={found.error} retry={found.reload} rows={2} />;
  return (
    <table class="small-table">
      <caption>The first records</caption>
      <thead><tr><th scope="col">Stored</th><th scope="col">Key</th><th scope="col">Value</th></tr></thead>
      <tbody>
        {found.data.records.map((record) => (
          <tr key={`${record.partition}-${record.offset}`}>
            <td class="tight">{time(record.store_timestamp ?? record.timestamp)}</td><td class="mono">{line(record, "key")}</td><td class="mono">{line(record, "value")}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}
