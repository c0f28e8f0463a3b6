/** One topic: its messages, a live tail, a form to send, its partitions and settings. Looking at a name creates nothing. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { get, path, send } from "../api.js";
import { bytes, count, duration, perSecond, rough } from "../format.js";
import { denied } from "../rights.js";
import { useResource } from "../resource.js";
import { go, href, place } from "../router.js";
import { Button, Confirm, Empty, Fact, Tabs, Waiting, tell } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { Browse } from "./topic_browse.js";
import { LightQueues } from "./topic_queues.js";
import { SendForm } from "./topic_send.js";
import { Tail } from "./topic_tail.js";
import { TopicDialog, type Topic } from "./topics.js";

export interface Bounds {
  partition: number;
  beginning_offset: number;
  end_offset: number;
}

export interface TopicDetail extends Topic {
  offsets: Bounds[];
}

type Tab = "messages" | "live" | "send" | "partitions" | "queues";
const TABS: readonly (readonly [Tab, string])[] = [["messages", "Messages"], ["live", "Live"], ["send", "Send"], ["partitions", "Partitions"], ["queues", "Light queues"]];
const REFRESH_MS = 3000;

export function TopicPage(props: { topic: string }): JSX.Element {
  const { topic } = props;
  const asked = place.value.query.get("tab");
  const tab: Tab = TABS.find(([name]) => name === asked)?.[0] ?? "messages";
  const right = denied("describe", { topic });
  const [dialog, setDialog] = useState<"change" | "delete" | null>(null);
  // what is being deleted is not asked for meanwhile
  const found = useResource<TopicDetail>(right === null ? topic : null, (signal) => get(path`mq/v1/topics/${topic}`, signal), dialog === "delete" ? 0 : REFRESH_MS);
  const detail = found.data;
  const isGone = found.error?.status === 404;
  return (
    <>
      <div class="head">
        <h1><a class="crumb" href="#/topics">Topics</a> <span class="crumb">/</span> {topic}</h1>
        {detail !== null && !isGone && (
          <>
            <a href={`#/delays?topic=${encodeURIComponent(topic)}`}>Delays</a>
            <Button reason={denied("create", { topic })} onClick={() => setDialog("change")}>Change</Button>
            <Button kind="danger" reason={denied("delete", { topic })} onClick={() => setDialog("delete")}>Delete</Button>
          </>
        )}
      </div>
      {right !== null ? <Empty action={<a href="#/topics">All topics</a>}>{right}</Empty>
        : isGone ? <Empty action={<a href="#/topics">All topics</a>}>There is no topic {topic}. Nothing was created by looking at it.</Empty>
        : detail === null ? <Waiting error={found.error} retry={found.reload} />
        : (
          <>
            <dl class={`facts${found.error?.isUnreachable === true ? " stale" : ""}`}>
              <Fact name="Rate in">{perSecond(detail.in_records_s)}</Fact>
              <Fact name="Records">{rough(detail.offsets.reduce((sum, one) => sum + one.end_offset - one.beginning_offset, 0))}</Fact>
              <Fact name="Bytes in">{bytes(detail.appended_bytes)}</Fact>
              <Fact name="Partitions">{count(detail.partitions)}</Fact>
              <Fact name="Delayed">{rough(detail.pending)}</Fact>
              <Fact name="Retention">{detail.retention_ms === undefined ? "default" : duration(detail.retention_ms)}</Fact>
              {detail.max_message_bytes !== undefined && <Fact name="Largest record">{bytes(detail.max_message_bytes)}</Fact>}
              {detail.json_keys !== "raw" && <Fact name="JSON keys">{detail.json_keys}</Fact>}
            </dl>
            <Tabs label="Parts of the topic" value={tab} tabs={TABS} href={(to) => `${href("topics", topic)}?tab=${to}`} />
            {tab === "messages" && <Browse detail={detail} />}
            {tab === "live" && <Tail topic={topic} />}
            {tab === "send" && <SendForm detail={detail} />}
            {tab === "queues" && <LightQueues topic={topic} />}
            {tab === "partitions" && <Partitions rows={detail.offsets} topic={topic} isStale={found.error !== null} />}
          </>
        )}
      {dialog === "change" && detail !== null && <TopicDialog topic={detail} onClose={() => setDialog(null)} onDone={found.reload} />}
      {dialog === "delete" && (
        <Confirm
          title={`Delete ${topic}`} action="Delete the topic" name={topic} onClose={() => setDialog(null)}
          act={async () => {
            await send("DELETE", path`mq/v1/topics/${topic}`);
            tell(`Topic ${topic} is deleted.`);
            go("#/topics");
          }}
        >
          <p>The topic, its {count(detail?.offsets.reduce((sum, one) => sum + one.end_offset - one.beginning_offset, 0))} records and its {count(detail?.pending)} delayed
            records will be gone. This cannot be undone.</p>
        </Confirm>
      )}
    </>
  );
}

function Partitions(props: { rows: Bounds[]; topic: string; isStale: boolean }): JSX.Element {
  const right = denied("receive", { topic: props.topic });
  const columns: Column<Bounds>[] = [
    { name: "Partition", width: "1fr", cell: ({ partition }) => right === null
      ? <a href={`${href("topics", props.topic)}?tab=messages&partition=${partition}`}>{partition}</a> : partition },
    { name: "First offset", width: "2fr", end: true, wide: true, cell: (row) => count(row.beginning_offset) },
    { name: "Next offset", width: "2fr", end: true, cell: (row) => count(row.end_offset) },
    { name: "Records", width: "2fr", end: true, cell: (row) => count(row.end_offset - row.beginning_offset) },
  ];
  const { rows } = props;
  return (
    <List
      label={`Partitions of ${props.topic}`} columns={columns} rows={rows} id={(row) => String(row.partition)} isStale={props.isStale}
     
      open={(row) => go(`${href("topics", props.topic)}?tab=messages&partition=${row.partition}`)}
    />
  );
}
