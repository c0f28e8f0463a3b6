/** All consumer groups, with lag and dead letters: a page at a time, sorted by the server. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { get, query } from "../api.js";
import { plural, rough } from "../format.js";
import { deniedEverywhere } from "../rights.js";
import { usePages } from "../resource.js";
import { go, href, place, setQuery } from "../router.js";
import { Button, Empty, ErrorNote, Field, State, Tabs, TextInput, Waiting, type Tone } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { LightGroups } from "./groups_light.js";

export interface GroupRow {
  group: string;
  state: string;
  generation: number;
  member_count: number;
  topics: string[];
  lag: number | null;
  in_flight: number | null;
  dead: number | null;
}

type Tab = "all" | "light";
const TABS: readonly (readonly [Tab, string])[] = [["all", "All"], ["light", "In light queues"]];
const PAGE_ROWS = 200;
const REFRESH_MS = 5000;
const FILTER_AFTER_MS = 150;
const TONES: Record<string, Tone> = { stable: "ok", empty: "muted", dead: "muted" };

/** `isTaking`: records are leased one by one, to any client that asks: no membership is needed. */
export function GroupState(props: { state: string; isTaking: boolean }): JSX.Element {
  if (props.isTaking && props.state.toLowerCase() === "empty") return <State tone="ok">taking records</State>;
  return <State tone={TONES[props.state.toLowerCase()] ?? "warn"}>{props.state.toLowerCase().replaceAll("_", " ")}</State>;
}

const COLUMNS: Column<GroupRow>[] = [
  { name: "Group", width: "2fr", sort: "name", cell: (row) => <a href={href("groups", row.group)}>{row.group}</a> },
  { name: "State", width: "130px", wide: true, cell: (row) => <GroupState state={row.state} isTaking={(row.in_flight ?? 0) > 0} /> },
  { name: "Lag", width: "1fr", end: true, sort: "lag", cell: (row) => rough(row.lag) },
  { name: "In flight", width: "1fr", end: true, wide: true, cell: (row) => rough(row.in_flight) },
  { name: "Dead", width: "1fr", end: true, sort: "dead", cell: (row) => (row.dead ? <State tone="error">{rough(row.dead)}</State> : rough(row.dead)) },
  { name: "Members", width: "1fr", end: true, wide: true, sort: "members", cell: (row) => row.member_count },
  { name: "Topics", width: "2fr", wide: true, cell: (row) => row.topics.join(", ") },
];

export function GroupsPage(): JSX.Element {
  const right = deniedEverywhere("describe");
  const tab: Tab = place.value.query.get("tab") === "light" ? "light" : "all";
  return (
    <>
      <div class="head"><h1>Groups</h1></div>
      {right !== null ? <Empty>{right}</Empty> : (
        <>
          <Tabs label="Kinds of groups" value={tab} tabs={TABS} href={(to) => to === "light" ? "#/groups?tab=light" : "#/groups"} />
          {tab === "light" ? <LightGroups /> : <Seen />}
        </>
      )}
    </>
  );
}

function Seen(): JSX.Element {
  const given = place.value.query;
  const [filter, setFilter] = useState(given.get("q") ?? "");
  const q = given.get("q") ?? "";
  const sort = given.get("sort") ?? "lag";
  const order = given.get("order") === "asc" ? "asc" : given.get("order") === "desc" ? "desc" : sort === "name" ? "asc" : "desc";
  useEffect(() => {
    const timer = setTimeout(() => filter !== (place.peek().query.get("q") ?? "") && setQuery({ q: filter }), FILTER_AFTER_MS);
    return () => clearTimeout(timer);
  }, [filter]);
  const pages = usePages<GroupRow>(`${q} ${sort} ${order}`, async (cursor, signal) => {
    const answer = await get<{ groups: GroupRow[]; next_cursor: string | null; total: number | null }>("mq/v1/groups" + query({ q, sort, order, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.groups, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS, 2);
  return (
    <>
      <div class="bar">
        <Field label="Filter by name" wide><TextInput search value={filter} onInput={setFilter} placeholder="part of a name" /></Field>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "group")}</span>
      </div>
      {pages.error !== null && pages.at > 0 && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? (
          <Empty action={q !== "" && <Button onClick={() => setFilter("")}>Clear the filter</Button>}>
            {q === "" ? "There is no group that you may see. A group is there with its first consumer." : `No group has “${q}” in its name.`}
          </Empty>
        ) : (
          <List
            label="Groups" columns={COLUMNS} rows={pages.rows} id={(row) => row.group} total={pages.total}
            open={(row) => go(href("groups", row.group))} onEnd={pages.more} isStale={pages.error?.isUnreachable === true}
            sort={{ by: sort, order }}
            onSort={(by) => setQuery({ sort: by, order: by !== sort ? null : order === "asc" ? "desc" : "asc" })}
          />
        )}
    </>
  );
}
