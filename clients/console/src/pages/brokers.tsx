/** Which brokers there are, on which each partition's records lie, what moves; and moving it. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, path, query, send } from "../api.js";
import { count, duration, plural, relative, time } from "../format.js";
import { denied, firstDenied } from "../rights.js";
import { type Pages, type Resource, usePages, useResource } from "../resource.js";
import { place, setQuery } from "../router.js";
import { Button, Dialog, Empty, ErrorNote, Field, Select, State, TextInput, type Tone, Waiting, now, tell, useDoing } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { Drain, TakeOver, TakePartition } from "./brokers_change.js";

export interface Broker {
  broker: string;
  /** Of the node that is asked, or of another one. */
  kind: "embedded" | "peer" | "kafka";
  state: "up" | "avoided" | "stopped" | "offline" | "draining" | "drained";
  reasons: string[];
  latency_ms: number | null;
  excluded_until_ms: number | null;
  partitions: number;
  sealed_segments: number;
  /** Null: this server is alone. */
  groups: number | null;
  /** Partitions and shards on Kafka clusters that its node appends to. Null: this server is alone. */
  on_kafka: number | null;
  balancing: boolean;
  url: string | null;
  room: string | null;
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
  owner: string;
  segments: Segment[];
  moves_to: string | null;
}

const STEPS = ["warm", "intent", "seal", "commit"] as const;

interface Move {
  topic: string;
  partition: number;
  source: string;
  to: string;
  step: (typeof STEPS)[number];
  since_ms: number;
}

const REFRESH_MS = 5000;
/** While a broker drains or takes its share. */
const CHANGING_REFRESH_MS = 1000;
const MOVES_REFRESH_MS = 1000;
const PAGE_ROWS = 200;
const TONES: Record<Broker["state"], Tone> = { up: "ok", avoided: "warn", draining: "accent", drained: "muted", stopped: "error", offline: "error" };

export const move = (topic: string, partition: number, to: string) => send<Route>("POST", path`mq/v1/topics/${topic}/partitions/${partition}/move`, { to });

export function BrokersPage(): JSX.Element {
  const right = denied("operate");
  return (
    <>
      <div class="head"><h1>Brokers and routes</h1></div>
      {right === null ? <Seen /> : <Empty>{right} Brokers and routes are for operators.</Empty>}
    </>
  );
}

function Seen(): JSX.Element {
  const [isChanging, setChanging] = useState(false);
  const brokers = useResource<{ brokers: Broker[] }>("brokers", (signal) => get("mq/v1/brokers", signal), isChanging ? CHANGING_REFRESH_MS : REFRESH_MS);
  const topic = place.value.query.get("topic") ?? "";
  const routes = usePages<Route>(topic, async (cursor, signal) => {
    const answer = await get<{ partitions: Route[]; next_cursor: string | null; total: number | null }>("mq/v1/routes" + query({ topic, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.partitions, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS);
  const reload = () => {
    brokers.reload();
    routes.reload();
  };
  const isAny = brokers.data?.brokers.some(({ state, balancing }) => state === "draining" || balancing) === true;
  useEffect(() => setChanging(isAny), [isAny]);
  if (brokers.data === null) return <Waiting error={brokers.error} retry={brokers.reload} />;
  const known = brokers.data.brokers;
  return (
    <>
      <Brokers found={brokers} reload={reload} />
      {known.length > 1 && <Moves brokers={known} reload={reload} />}
      <Routes topic={topic} pages={routes} brokers={known} reload={reload} />
    </>
  );
}

/** Why nothing can be moved from or to here; null: it can. */
function alone(brokers: Broker[]): string | null {
  return firstDenied(denied("operate"), brokers.length > 1 ? null : "This server is alone: there is no other broker. See docs/cluster.md.");
}

/** What the state means, and what to do about it. */
function Told(props: { broker: Broker }): JSX.Element {
  const { broker } = props;
  const said = [
    ...broker.reasons,
    ...(broker.excluded_until_ms === null ? [] : [`until ${time(broker.excluded_until_ms)}`]),
    ...(broker.balancing ? ["takes its share of the partitions"] : []),
    ...(broker.state === "offline" ? [`Start it again: what it has waits for it${broker.partitions + (broker.groups ?? 0) > 0 ? ". Only if it does not come back: take over" : ""}`] : []),
    ...(broker.state === "drained" ? [broker.sealed_segments === 0 ? "no records: may be removed, when no delayed record and no recurring schedule waits there" : "may be stopped for a while; its sealed records cannot be read meanwhile"] : []),
  ];
  return <><State tone={TONES[broker.state]}>{broker.state}</State>{said.length > 0 && <span class="small muted told">{said.join("; ")}</span>}</>;
}

type Change = "drain" | "add" | "take over";

function Brokers(props: { found: Resource<{ brokers: Broker[] }>; reload: () => void }): JSX.Element {
  const { found } = props;
  const [changing, setChanging] = useState<{ name: string; what: Change } | null>(null);
  const brokers = found.data!.brokers;
  const hasRooms = brokers.some(({ room }) => room !== null);
  const hasGroups = brokers.some(({ groups }) => groups !== null);
  const hasKafka = brokers.some(({ on_kafka }) => on_kafka !== null && on_kafka > 0);
  const isAlone = alone(brokers);
  const close = () => setChanging(null);
  const button = (broker: Broker, what: Change, text: string, reason: string | null) => (
    <Button reason={firstDenied(isAlone, reason)} kind={what === "take over" ? "danger" : "plain"} label={`${text} ${broker.broker}`} onClick={() => setChanging({ name: broker.broker, what })}>{text}…</Button>
  );
  return (
    <>
      <div class={`scroll-x${found.error?.isUnreachable === true ? " stale" : ""}`} tabIndex={0} role="region" aria-label="Brokers">
        <table class="small-table acts">
          <thead>
            <tr>
              <th scope="col">Broker</th><th scope="col">Kind</th>{hasRooms && <th scope="col">Room</th>}<th scope="col">State</th>
              <th scope="col" class="end">Latency</th><th scope="col" class="end">Partitions</th><th scope="col" class="end">Sealed segments</th>
              {hasGroups && <th scope="col" class="end">Groups</th>}{hasKafka && <th scope="col" class="end">On Kafka</th>}<th scope="col">Change</th>
            </tr>
          </thead>
          <tbody>
            {brokers.map((broker) => (
              <tr key={broker.broker}>
                <th scope="row">{broker.broker}{broker.kind === "embedded" && brokers.length > 1 && <span class="muted small"> this node</span>}</th>
                <td class="tight" title={broker.url ?? undefined}>{broker.kind}</td>
                {hasRooms && <td class="tight">{broker.room ?? "–"}</td>}
                <td class="wrap"><Told broker={broker} /></td>
                <td class="end tight">{duration(broker.latency_ms)}</td>
                <td class="end">{count(broker.partitions)}</td>
                <td class="end">{count(broker.sealed_segments)}</td>
                {hasGroups && <td class="end">{count(broker.groups)}</td>}
                {hasKafka && <td class="end">{count(broker.on_kafka)}</td>}
                <td class="row-actions">
                  {broker.state === "offline" ? button(broker, "take over", "Take over", broker.partitions + (broker.groups ?? 0) === 0 ? "It has no open partition and no group." : null) : (
                    <>
                      {button(broker, "drain", "Drain", broker.state === "draining" || broker.state === "drained" ? `It is ${broker.state} already.` : null)}
                      {button(broker, "add", "Add", broker.state === "stopped" ? "It is stopped." : null)}
                    </>
                  )}
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      </div>
      {changing !== null && changing.what !== "take over" && <Drain name={changing.name} isDraining={changing.what === "drain"} onChanged={props.reload} onClose={close} />}
      {changing !== null && changing.what === "take over" && <TakeOver name={changing.name} onChanged={props.reload} onClose={close} />}
    </>
  );
}

/** Moves that are under way, and which step each is at. */
function Moves(props: { brokers: Broker[]; reload: () => void }): JSX.Element | null {
  const found = useResource<{ moves: Move[]; total: number }>("moves", (signal) => get("mq/v1/moves", signal), MOVES_REFRESH_MS);
  const doing = useDoing();
  const back = async (row: Move) => {
    await move(row.topic, row.partition, row.source);
    tell(`${row.topic}/${row.partition} is on ${row.source}.`);
    props.reload();
  };
  const moves = found.data?.moves ?? [];
  return (
    <section class="form" aria-label="Moves">
      <h2>Moves in progress {found.data !== null && <span class="muted small" role="status">{found.data.total === 0 ? "none" : count(found.data.total)}</span>}</h2>
      <ErrorNote error={doing.error} />
      {moves.length > 0 && (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Moves in progress">
          <table class="small-table acts">
            <thead><tr><th scope="col">Partition</th><th scope="col">From, to</th><th scope="col">Step</th><th scope="col">Since</th><th scope="col">Call off</th></tr></thead>
            <tbody>
              {moves.map((row) => (
                <tr key={`${row.topic}/${row.partition}`}>
                  <th scope="row">{row.topic}/{row.partition}</th>
                  <td class="tight">{row.source} → {row.to}</td>
                  <td><Steps step={row.step} /></td>
                  <td class="tight">{relative(row.since_ms, Math.max(now.value, row.since_ms))}</td>
                  <td><Button reason={firstDenied(denied("operate"), row.step === "warm" || row.step === "intent" ? `Nothing has changed yet. It ends by itself if ${row.to} does not answer.` : null)} busy={doing.isBusy} onClick={() => void doing.run(() => back(row))}>Back to {row.source}</Button></td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </section>
  );
}

function Steps(props: { step: Move["step"] }): JSX.Element {
  const at = STEPS.indexOf(props.step);
  return (
    <span class="steps">
      {STEPS.map((step, index) => <span key={step} class={index === at ? "at" : "muted"} aria-current={index === at ? "step" : undefined}>{step}{index < at ? " ✓" : index === at ? " …" : ""}</span>)}
    </span>
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
  { name: "Partition", width: "1.3fr", cell: (row) => `${row.topic}/${row.partition}` },
  { name: "Owner", width: "100px", wide: true, cell: (row) => row.owner },
  {
    name: "Segments: offsets by broker", width: "2.4fr",
    cell: (row) => <span class="route"><Bar segments={row.segments} />{row.moves_to !== null && <State tone="accent">to {row.moves_to}</State>}</span>,
  },
];

function Routes(props: { topic: string; pages: Pages<Route>; brokers: Broker[]; reload: () => void }): JSX.Element {
  const { topic, pages, brokers } = props;
  const [field, setField] = useState(topic);
  const [moving, setMoving] = useState<Route | null>(null);
  const reason = alone(brokers);
  const offline = new Set(brokers.filter(({ state }) => state === "offline").map(({ broker }) => broker));
  const columns: Column<Route>[] = [...COLUMNS, {
    name: "Change", width: "104px", cell: (row) => {
      const what = offline.has(row.owner) ? "Take over" : "Move";
      return <Button kind="quiet" reason={reason} label={`${what} ${row.topic}/${row.partition}`} onClick={() => setMoving(row)}>{what}…</Button>;
    },
  }];
  return (
    <section class="form" aria-label="Partitions">
      <h2>Partitions</h2>
      <form class="bar" onSubmit={(event) => {
        event.preventDefault();
        setQuery({ topic: field });
      }}>
        <Field label="Of topic" wide><TextInput search value={field} onInput={setField} placeholder="all" /></Field>
        <Button type="submit">Show</Button>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "partition")}</span>
      </form>
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? <Empty>There is no partition yet.</Empty>
        : <List label="Routes" columns={columns} rows={pages.rows} id={(row) => `${row.topic}/${row.partition}`} total={pages.total} onEnd={pages.more} isStale={pages.error?.isUnreachable === true} />}
      {moving !== null && offline.has(moving.owner) && (
        <TakePartition
          topic={moving.topic} partition={moving.partition} owner={moving.owner} others={brokers.filter(({ state }) => state === "up").map(({ broker }) => broker)}
          onClose={() => setMoving(null)} onChanged={props.reload}
        />
      )}
      {moving !== null && !offline.has(moving.owner) && <MoveDialog route={moving} brokers={brokers} onClose={() => setMoving(null)} onDone={props.reload} />}
    </section>
  );
}

function MoveDialog(props: { route: Route; brokers: Broker[]; onClose: () => void; onDone: () => void }): JSX.Element {
  const { topic, partition, owner } = props.route;
  const others = props.brokers.filter(({ broker }) => broker !== owner);
  const [to, setTo] = useState(others.find(({ state }) => state === "up")?.broker ?? others[0]?.broker ?? "");
  const doing = useDoing();
  const act = async () => {
    await move(topic, partition, to);
    tell(`${topic}/${partition} is on ${to}.`);
    props.onDone();
  };
  return (
    <Dialog title={`Move ${topic}/${partition}`} onClose={props.onClose}>
      <form class="form" onSubmit={(event) => {
        event.preventDefault();
        if (!doing.isBusy) void doing.run(act).then((isDone) => isDone && props.onClose());
      }}>
        <div class="prose">
          <p>New records go to the broker you choose. Those that are stored stay on {owner} until they expire, and are read from there: nothing is copied, offsets go on without a gap.
            Sends to the partition wait for some milliseconds.</p>
        </div>
        <Field label="To"><Select value={to} options={others.map(({ broker, state }) => [broker, state === "up" ? broker : `${broker} (${state})`] as const)} onChange={setTo} /></Field>
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Cancel</Button>
          <Button kind="main" type="submit" reason={denied("operate")} busy={doing.isBusy}>Move</Button>
        </div>
      </form>
    </Dialog>
  );
}
