/** One group: lag over time and by partition, members and leases, dead letters; reset, settings, delete. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { count, duration, exactly, plural, relative, rough, time } from "../format.js";
import { denied } from "../rights.js";
import { usePages, useResource } from "../resource.js";
import { go, href, place } from "../router.js";
import { Button, Confirm, Dialog, Empty, ErrorNote, Fact, Field, Select, Tabs, TextInput, Waiting, now, tell, useDoing } from "../ui/basics.js";
import { Chart } from "../ui/chart.js";
import { List, type Column } from "../ui/list.js";
import { DeadLetters } from "./group_dead.js";
import { Reset } from "./group_reset.js";
import { GroupState } from "./groups.js";
import { LightPlaces } from "./groups_light.js";

interface TopicPartition {
  topic: string;
  partition: number;
}

interface Member {
  member_id: string;
  topics: string[];
  topic_pattern: string | null;
  heard_ago_ms: number;
  room: string | null;
  assigned: TopicPartition[];
  revoking: TopicPartition[];
}

export interface Group {
  group: string;
  state: string;
  generation: number;
  member_count: number;
  topics: string[];
  config: Record<string, unknown> & { max_attempts: number; invisible_ms: number; backoff_ms: number[]; fifo: boolean };
  members: Member[];
  workers: { consumer: string; leased: number; heard_ago_ms: number | null }[];
  /** What is odd about how partitions are shared out by machine rooms. */
  warnings: string[];
  light_offset_count: number;
}

export interface LagRow extends TopicPartition {
  committed: number | null;
  beginning: number;
  end: number;
  lag: number;
  lost: number;
  in_flight: number;
  delayed: number;
  oldest_unacked_ms: number | null;
  owner: string | null;
}

type Tab = "lag" | "light" | "members" | "leases" | "dead";
const TABS: readonly (readonly [Tab, string])[] = [["lag", "Lag"], ["light", "Light queues"], ["members", "Members"], ["leases", "Leases"], ["dead", "Dead letters"]];
const REFRESH_MS = 3000;
const PAGE_ROWS = 200;

export function GroupPage(props: { group: string }): JSX.Element {
  const { group } = props;
  const right = denied("describe", { group });
  const [dialog, setDialog] = useState<"reset" | "settings" | "delete" | null>(null);
  // what is being deleted is not asked for meanwhile
  const found = useResource<Group>(right === null ? group : null, (signal) => get(path`mq/v1/groups/${group}`, signal), dialog === "delete" ? 0 : REFRESH_MS);
  const detail = found.data;
  const isOnlyLight = detail !== null && detail.topics.length === 0 && detail.light_offset_count > 0;
  const asked = place.value.query.get("tab");
  const tab: Tab = TABS.find(([name]) => name === asked)?.[0] ?? (isOnlyLight ? "light" : "lag");
  const isGone = found.error?.status === 404;
  return (
    <>
      <div class="head">
        <h1><a class="crumb" href="#/groups">Groups</a> <span class="crumb">/</span> {group}</h1>
        {detail !== null && !isGone && (
          <>
            <Button reason={denied("receive", { group })} onClick={() => setDialog("reset")}>Reset…</Button>
            <Button reason={denied("create", { group })} onClick={() => setDialog("settings")}>Settings</Button>
            <Button kind="danger" reason={denied("delete", { group })} onClick={() => setDialog("delete")}>Delete</Button>
          </>
        )}
      </div>
      {right !== null ? <Empty action={<a href="#/groups">All groups</a>}>{right}</Empty>
        : isGone ? <Empty action={<a href="#/groups">All groups</a>}>There is no group {group}.</Empty>
        : detail === null ? <Waiting error={found.error} retry={found.reload} />
        : (
          <>
            <dl class={`facts${found.error?.isUnreachable === true ? " stale" : ""}`}>
              <Fact name="State"><GroupState state={detail.state} isTaking={detail.workers.length > 0} /></Fact>
              <Fact name="Members">{count(detail.member_count)}</Fact>
              <Fact name="Workers">{count(detail.workers.length)}</Fact>
              {detail.light_offset_count > 0 && <Fact name="In light queues">{plural(detail.light_offset_count, "offset")}</Fact>}
              <Fact name="Topics">{detail.topics.length === 0 ? "none" : detail.topics.map((topic, index) => <>{index > 0 && ", "}<a href={href("topics", topic)}>{topic}</a></>)}</Fact>
              <Fact name="Attempts at most">{detail.config.max_attempts}</Fact>
              <Fact name="Lease">{duration(detail.config.invisible_ms)}</Fact>
            </dl>
            {detail.warnings.map((warning) => (
              <div key={warning} class="note warn" role="status"><span class="mark" aria-hidden="true">▲</span><p>{warning}</p></div>
            ))}
            <Tabs label="Parts of the group" value={tab} tabs={TABS} href={(to) => `${href("groups", group)}?tab=${to}`} />
            {tab === "lag" && <Lag group={group} />}
            {tab === "light" && <LightPlaces group={group} />}
            {tab === "members" && <Members detail={detail} />}
            {tab === "leases" && <Leases group={group} />}
            {tab === "dead" && <DeadLetters group={group} />}
          </>
        )}
      {dialog === "reset" && detail !== null && <Reset detail={detail} onClose={() => setDialog(null)} onDone={found.reload} />}
      {dialog === "settings" && detail !== null && <Settings detail={detail} onClose={() => setDialog(null)} onDone={found.reload} />}
      {dialog === "delete" && (
        <Confirm
          title={`Delete ${group}`} action="Delete the group" name={group} onClose={() => setDialog(null)}
          act={async () => {
            await send("DELETE", path`mq/v1/groups/${group}`);
            tell(`Group ${group} is deleted.`);
            go("#/groups");
          }}
        >
          <p>Its offsets, leases and settings are forgotten: who consumes in it again begins where a new group does. The records of its topics stay.</p>
        </Confirm>
      )}
    </>
  );
}

type Span = "seconds" | "minutes";

interface History {
  step_ms: number;
  end_ms: number;
  lag: (number | null)[];
}

const LAG_COLUMNS: Column<LagRow>[] = [
  { name: "Topic", width: "2fr", cell: (row) => <a href={href("topics", row.topic)}>{row.topic}</a> },
  { name: "Part.", width: "56px", end: true, cell: (row) => row.partition },
  { name: "Lag", width: "1fr", end: true, cell: (row) => rough(row.lag) },
  { name: "Committed", width: "1fr", end: true, wide: true, cell: (row) => count(row.committed) },
  { name: "End", width: "1fr", end: true, wide: true, cell: (row) => count(row.end) },
  { name: "In flight", width: "1fr", end: true, wide: true, cell: (row) => count(row.in_flight) },
  { name: "Oldest not done", width: "1.5fr", end: true, cell: (row) => row.oldest_unacked_ms === null ? "–" : relative(row.oldest_unacked_ms, now.value) },
  { name: "Owner", width: "2fr", wide: true, cell: (row) => row.owner ?? <span class="muted">none</span> },
];

function Lag(props: { group: string }): JSX.Element {
  const { group } = props;
  const [span, setSpan] = useState<Span>("seconds");
  const history = useResource<History>(`${group} ${span}`, (signal) => get(path`mq/v1/groups/${group}/lag/history` + query({ points: span }), signal), 5000);
  const pages = usePages<LagRow>(group, async (cursor, signal) => {
    const answer = await get<{ partitions: LagRow[]; next_cursor: string | null }>(path`mq/v1/groups/${group}/lag` + query({ cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.partitions, next: answer.next_cursor, total: null };
  }, REFRESH_MS);
  const data = history.data;
  const drawn = useMemo(() => data === null ? null : {
    times: data.lag.map((_, index) => data.end_ms - (data.lag.length - 1 - index) * data.step_ms),
    series: [{ name: "lag", values: data.lag, colour: 1, dash: true }],
  }, [data]);
  return (
    <>
      <section class={`card${history.error?.isUnreachable === true ? " stale" : ""}`} aria-label="Lag over time">
        <header>
          <span class="segmented" role="group" aria-label="Time shown">
            <Button pressed={span === "seconds"} onClick={() => setSpan("seconds")}>15 minutes</Button>
            <Button pressed={span === "minutes"} onClick={() => setSpan("minutes")}>24 hours</Button>
          </span>
        </header>
        {drawn === null ? <Waiting error={history.error} retry={history.reload} />
          : drawn.times.length === 0 ? <Empty>Nothing was measured yet. The lag is kept from now on, every 5 seconds.</Empty> : <Chart label="Lag, records" times={drawn.times} series={drawn.series} format={rough} />}
      </section>
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? <Empty>The group has no place in any topic that you may see.</Empty>
        : (
          <List
            label={`Lag of ${group}`} columns={LAG_COLUMNS} rows={pages.rows} id={(row) => `${row.topic}/${row.partition}`} onEnd={pages.more}
            isStale={pages.error?.isUnreachable === true}
          />
        )}
    </>
  );
}

function named(partitions: TopicPartition[]): string {
  const byTopic = new Map<string, number[]>();
  for (const { topic, partition } of partitions) byTopic.set(topic, [...(byTopic.get(topic) ?? []), partition]);
  return [...byTopic].map(([topic, list]) => `${topic}: ${list.sort((one, other) => one - other).join(", ")}`).join("; ");
}

function Members(props: { detail: Group }): JSX.Element {
  const { members, workers } = props.detail;
  if (members.length + workers.length === 0) return <Empty>No client consumes in this group now. Its offsets are kept.</Empty>;
  return (
    <div class="scroll-x" tabIndex={0} role="region" aria-label="Members">
      {members.length > 0 && (
        <table class="small-table">
          <caption>Members (stream mode): each has partitions of its own</caption>
          <thead><tr><th scope="col">Member</th><th scope="col">Room</th><th scope="col">Partitions</th><th scope="col">Giving up</th><th scope="col">Subscribed to</th><th scope="col" class="end">Heard</th></tr></thead>
          <tbody>
            {members.map((member) => (
              <tr key={member.member_id}>
                <th scope="row"><code>{member.member_id}</code></th>
                <td>{member.room ?? <span class="muted">none said</span>}</td>
                <td>{member.assigned.length === 0 ? <span class="muted">none</span> : named(member.assigned)}</td>
                <td>{member.revoking.length === 0 ? "–" : named(member.revoking)}</td>
                <td>{member.topic_pattern === null ? member.topics.join(", ") : <code>{member.topic_pattern}</code>}</td>
                <td class="end">{duration(Math.max(0, member.heard_ago_ms))} ago</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {workers.length > 0 && (
        <table class="small-table">
          <caption>Workers (queue mode): each has records on lease</caption>
          <thead><tr><th scope="col">Consumer</th><th scope="col" class="end">On lease</th><th scope="col" class="end">Heard</th></tr></thead>
          <tbody>
            {workers.map((worker) => (
              <tr key={worker.consumer}>
                <th scope="row"><code>{worker.consumer}</code></th>
                <td class="end">{count(worker.leased)}</td>
                <td class="end">{worker.heard_ago_ms === null ? "connected" : `${duration(worker.heard_ago_ms)} ago`}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </div>
  );
}

interface Lease extends TopicPartition {
  offset: number;
  consumer: string | null;
  attempt: number;
  until_ms: number;
  state: "leased" | "delayed";
}

const LEASE_COLUMNS: Column<Lease>[] = [
  { name: "Topic", width: "2fr", cell: (row) => row.topic },
  { name: "Part.", width: "56px", end: true, cell: (row) => row.partition },
  { name: "Offset", width: "1fr", end: true, cell: (row) => <a href={`${href("topics", row.topic)}?tab=messages&partition=${row.partition}&from=offset&offset=${row.offset}`}>{count(row.offset)}</a> },
  { name: "Attempt", width: "64px", end: true, wide: true, cell: (row) => row.attempt },
  { name: "Consumer", width: "2fr", cell: (row) => row.state === "delayed" ? <span class="muted">waits to be tried again</span> : row.consumer ?? <span class="muted">not known</span> },
  { name: "Until", width: "1.5fr", end: true, wide: true, cell: (row) => time(row.until_ms) },
  { name: "Left", width: "1fr", end: true, cell: (row) => row.until_ms > now.value ? duration(row.until_ms - now.value) : "over" },
];

function Leases(props: { group: string }): JSX.Element {
  const { group } = props;
  const pages = usePages<Lease>(group, async (cursor, signal) => {
    const answer = await get<{ leases: Lease[]; next_cursor: string | null; total: number | null }>(path`mq/v1/groups/${group}/leases` + query({ cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.leases, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS);
  if (pages.at === 0) return <Waiting error={pages.error} retry={pages.reload} />;
  if (pages.rows.length === 0) return <Empty>No record of this group is out on lease.</Empty>;
  return (
    <List
      label={`Leases of ${group}`} columns={LEASE_COLUMNS} rows={pages.rows} id={(row) => `${row.topic}/${row.partition}/${row.offset}`} total={pages.total}
      onEnd={pages.more} isStale={pages.error?.isUnreachable === true}
    />
  );
}

function Settings(props: { detail: Group; onClose: () => void; onDone: () => void }): JSX.Element {
  const { group, config } = props.detail;
  const [attempts, setAttempts] = useState(String(config.max_attempts));
  const [lease, setLease] = useState(String(config.invisible_ms / 1000));
  const [backoff, setBackoff] = useState(config.backoff_ms.map(exactly).join(" "));
  const [fifo, setFifo] = useState(config.fifo ? "yes" : "no");
  const doing = useDoing();
  const act = async () => {
    await send("PATCH", path`mq/v1/groups/${group}`, { max_attempts: Number(attempts), invisible_ms: Math.round(Number(lease) * 1000), backoff, fifo: fifo === "yes" });
    tell(`Settings of ${group} are changed.`);
    props.onDone();
  };
  return (
    <Dialog title={`Settings of ${group}`} onClose={props.onClose}>
      <form class="form" onSubmit={(event) => {
        event.preventDefault();
        if (!doing.isBusy) void doing.run(act).then((isDone) => isDone && props.onClose());
      }}>
        <div class="two">
          <Field label="Attempts at most" hint="then a record is a dead letter"><TextInput type="number" min="1" value={attempts} onInput={setAttempts} /></Field>
          <Field label="Lease, seconds" hint="when a request names none"><TextInput type="number" min="0.001" step="any" value={lease} onInput={setLease} /></Field>
        </div>
        <Field label="Back-off" hint="waits before the second, third, … delivery; the last one repeats"><TextInput value={backoff} onInput={setBackoff} /></Field>
        <Field label="Records of one message group"><Select value={fifo} onChange={setFifo} options={[["no", "at the same time"], ["yes", "one after the other"]]} /></Field>
        <ErrorNote error={doing.error} />
        <div class="actions"><Button kind="quiet" onClick={props.onClose}>Cancel</Button><Button kind="main" type="submit" reason={denied("create", { group })} busy={doing.isBusy}>Change</Button></div>
      </form>
    </Dialog>
  );
}
