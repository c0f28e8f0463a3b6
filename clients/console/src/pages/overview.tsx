/** How the server is, at a glance: what is wrong first, each with where to go; then rates, lag, delays, disk, memory, loop. */
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { bytes, duration, perSecond, plural, relative, rough } from "../format.js";
import { denied } from "../rights.js";
import { href } from "../router.js";
import { useStats, type Alarm, type Points, type SeriesName, type Stats } from "../stats.js";
import { Button, Empty, State, Waiting, now } from "../ui/basics.js";
import { Chart } from "../ui/chart.js";

const LOOP_SLOW_MS = 50;

/** What to do about an alarm, on this console where it can be done here. */
const DO: Record<string, (alarm: Alarm) => [text: string, to: string]> = {
  group_lagging: (alarm) => ["See the group", alarm.group === null ? "#/groups" : href("groups", alarm.group)],
  disk_full: () => ["See the largest topics", "#/topics?sort=appended_bytes"],
  disk_floor: () => ["See the largest topics", "#/topics?sort=appended_bytes"],
  timer_behind: () => ["See what is due", "#/delays?span=hour"],
  timer_stopped: () => ["See what is due", "#/delays?span=hour"],
  store_stopped: () => ["See the broker", "#/brokers"],
  clock_step: () => ["See what is due", "#/delays?span=hour"],
  trail_failing: () => ["See the trail", "#/access?tab=audit"],
};

export function OverviewPage(): JSX.Element {
  const right = denied("operate");
  return (
    <>
      {right === null ? <Figures /> : (
        <>
          <div class="head"><h1>Overview</h1></div>
          <Empty action={<a href="#/topics">Topics</a>}>{right} The figures of the server are for operators; topics and groups that you may see are on their pages.</Empty>
        </>
      )}
    </>
  );
}

function Figures(): JSX.Element {
  const [points, setPoints] = useState<Points>("seconds");
  const { data, error, reload } = useStats(points);
  return (
    <>
      <div class="head">
        <h1>Overview</h1>
        <span class="segmented" role="group" aria-label="Time shown">
          <Button pressed={points === "seconds"} onClick={() => setPoints("seconds")}>15 minutes</Button>
          <Button pressed={points === "minutes"} onClick={() => setPoints("minutes")}>24 hours</Button>
        </span>
      </div>
      {data === null ? <Waiting error={error} retry={reload} rows={8} /> : <Shown data={data} isStale={error !== null} />}
    </>
  );
}

function Alarms(props: { alarms: Alarm[] }): JSX.Element {
  if (props.alarms.length === 0) return <p class="wrap"><State tone="ok">No alarms: the store, the timer, the disk, the clock and all groups are as they should be.</State></p>;
  return (
    <div class="alarms" role="region" aria-label="Alarms">
      {props.alarms.map((alarm) => {
        const link = DO[alarm.code]?.(alarm);
        return (
          <div key={`${alarm.code} ${alarm.group}`} class={`note ${alarm.severity === "error" ? "error" : "warn"}`} role={alarm.severity === "error" ? "alert" : undefined}>
            <span class="mark" aria-hidden="true">{alarm.severity === "error" ? "■" : "▲"}</span>
            <div>
              <p>{alarm.message}</p>
              <p class="muted small"><code>{alarm.code}</code>, {relative(alarm.since_ms, now.value)}. What to do: {alarm.help}</p>
            </div>
            {link !== undefined && <a href={link[1]}>{link[0]}</a>}
          </div>
        );
      })}
    </div>
  );
}

function Shown(props: { data: Stats; isStale: boolean }): JSX.Element {
  const { data } = props;
  const { now: figures, series } = data;
  const free = figures.disk_free_bytes;
  const total = figures.disk_total_bytes;
  const used = free === null || total === null || total === 0 ? null : 1 - free / total;
  const loop = figures.loop_p99_ms;
  const times = useMemo(() => {
    const length = series.in_records_s.length;
    return Array.from({ length }, (_, index) => data.end_ms - (length - 1 - index) * data.step_ms);
  }, [data.end_ms, series]);
  const one = (name: SeriesName, label: string, number: number, more: { dash?: boolean; fill?: boolean } = {}) => ({ name: label, values: series[name], colour: number, ...more });
  const charts = useMemo(() => ({
    records: [one("in_records_s", "in", 1), one("out_records_s", "out", 2)],
    bytes: [one("in_bytes_s", "in", 1), one("out_bytes_s", "out", 2)],
    lag: [one("lag", "lag", 1, { dash: true })],
    pending: [one("pending", "delayed", 5, { fill: true })],
    loop: [one("loop_p99_ms", "p99", 2)],
    requests: [one("requests_s", "requests", 1)],
  }), [series]);
  return (
    <div class={`form${props.isStale ? " stale" : ""}`}>
      <Alarms alarms={data.alarms} />
      <dl class="tiles">
        <div class="tile"><dt>Records in</dt><dd>{perSecond(figures.in_records_s)}<small>{bytes(figures.in_bytes_s)}/s</small></dd></div>
        <div class="tile"><dt>Records out</dt><dd>{perSecond(figures.out_records_s)}<small>{bytes(figures.out_bytes_s)}/s</small></dd></div>
        <div class="tile"><dt>Lag of all groups</dt><dd><a href="#/groups">{rough(figures.lag)}</a><small>{plural(figures.groups, "group")}</small></dd></div>
        <div class="tile"><dt>Delayed</dt><dd><a href="#/delays">{rough(figures.pending)}</a><small>wait for their time</small></dd></div>
        <div class="tile"><dt>Topics</dt><dd><a href="#/topics">{rough(figures.topics)}</a><small>{plural(figures.partitions, "partition")}</small></dd></div>
        <div class="tile"><dt>Connections</dt><dd><a href="#/access?tab=connections">{rough(figures.connections)}</a><small>{plural(figures.sockets, "socket")}</small></dd></div>
        <div class="tile">
          <dt>Disk</dt>
          <dd>
            {used === null ? "–" : `${Math.round(used * 100)} %`}
            {used !== null && <span class={`meter ${used > 0.95 ? "error" : used > 0.85 ? "warn" : ""}`} role="img" aria-label={`${Math.round(used * 100)} % of the disk is used`}><span style={{ width: `${used * 100}%` }} /></span>}
            <small title="of the disk; what the log takes of it">{bytes(free)} free, log {bytes(figures.log_bytes)}</small>
          </dd>
        </div>
        <div class="tile"><dt>Requests</dt><dd>{perSecond(figures.requests_s)}<small>all routes</small></dd></div>
        <div class="tile"><dt>Memory</dt><dd>{bytes(figures.rss_bytes)}<small>resident</small></dd></div>
        <div class="tile">
          <dt>Event loop, p99</dt>
          <dd>{loop === null ? "–" : duration(loop)}<small>{loop !== null && loop > LOOP_SLOW_MS ? <State tone="warn">slow turns</State> : "time of a turn"}</small></dd>
        </div>
      </dl>
      <div class="columns">
        <section class="card" aria-label="Records"><Chart label="Records" times={times} series={charts.records} format={perSecond} /></section>
        <section class="card" aria-label="Bytes"><Chart label="Bytes" isBinary times={times} series={charts.bytes} format={(value) => `${bytes(value)}/s`} /></section>
        <section class="card" aria-label="Lag"><Chart label="Lag of all groups" times={times} series={charts.lag} format={rough} /></section>
        <section class="card" aria-label="Delayed"><Chart label="Delayed records" times={times} series={charts.pending} format={rough} /></section>
        <section class="card" aria-label="Event loop"><Chart label="Turns of the event loop" times={times} series={charts.loop} format={duration} /></section>
        <section class="card" aria-label="Requests"><Chart label="Requests" times={times} series={charts.requests} format={perSecond} /></section>
      </div>
    </div>
  );
}
