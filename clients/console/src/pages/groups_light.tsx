/** Groups in light queues: which have offsets there, and where one of them is. A page at a time: there may be a million of both. */
import type { JSX } from "preact";
import { get, path, query } from "../api.js";
import { count, rough } from "../format.js";
import { usePages } from "../resource.js";
import { go, href, place } from "../router.js";
import { Empty, ErrorNote, Waiting } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";
import { PrefixBar } from "../ui/prefix.js";

const PAGE_ROWS = 200;
/** Each time the server goes through the names, or the offsets, of all groups. */
const REFRESH_MS = 10_000;

interface LightGroup {
  group: string;
  light_offset_count: number;
}

const lightHref = (group: string): string => `${href("groups", group)}?tab=light`;

const GROUP_COLUMNS: Column<LightGroup>[] = [
  { name: "Group", width: "2fr", cell: (row) => <a class="mono" href={lightHref(row.group)}>{row.group}</a> },
  { name: "Offsets in light queues", width: "1fr", end: true, cell: (row) => count(row.light_offset_count) },
];

export function LightGroups(): JSX.Element {
  const prefix = place.value.query.get("prefix") ?? "";
  const pages = usePages<LightGroup>(`light ${prefix}`, async (cursor, signal) => {
    const answer = await get<{ groups: LightGroup[]; next_cursor: string | null }>("mq/v1/light-groups" + query({ prefix, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.groups, next: answer.next_cursor, total: null };
  }, REFRESH_MS);
  return (
    <>
      <PrefixBar label="Name begins with" what="group" pages={pages} />
      {pages.error !== null && pages.at > 0 && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? <Empty>{prefix === "" ? "No group that you may see has an offset in a light queue. Readers of inboxes that say how far they are have." : `No group's name begins with “${prefix}”.`}</Empty> : (
          <List
            label="Groups in light queues" columns={GROUP_COLUMNS} rows={pages.rows} id={(row) => row.group} onEnd={pages.more}
            open={(row) => go(lightHref(row.group))} isStale={pages.error?.isUnreachable === true}
          />
        )}
    </>
  );
}

interface LightPlace {
  topic: string;
  queue: string;
  partition: number;
  committed: number;
  end_offset: number | null;
  lag: number | null;
}

const queueHref = (row: LightPlace): string => `${href("topics", row.topic)}?tab=queues&prefix=${encodeURIComponent(row.queue)}`;

const PLACE_COLUMNS: Column<LightPlace>[] = [
  { name: "Light queue", width: "2fr", cell: (row) => <a class="mono" href={queueHref(row)}>{row.queue}</a> },
  { name: "Topic", width: "1fr", wide: true, cell: (row) => <a href={href("topics", row.topic)}>{row.topic}</a> },
  { name: "Part.", width: "56px", end: true, wide: true, cell: (row) => row.partition },
  { name: "Committed", width: "1fr", end: true, cell: (row) => count(row.committed) },
  { name: "End", width: "1fr", end: true, wide: true, cell: (row) => row.end_offset === null ? <span class="muted">no answer</span> : count(row.end_offset) },
  { name: "Lag", width: "1fr", end: true, cell: (row) => rough(row.lag) },
];

/** Where one group is. */
export function LightPlaces(props: { group: string }): JSX.Element {
  const { group } = props;
  const prefix = place.value.query.get("prefix") ?? "";
  const pages = usePages<LightPlace>(`${group} ${prefix}`, async (cursor, signal) => {
    const answer = await get<{ offsets: LightPlace[]; next_cursor: string | null }>(path`mq/v1/groups/${group}/light-offsets` + query({ prefix, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.offsets, next: answer.next_cursor, total: null };
  }, REFRESH_MS);
  return (
    <>
      <PrefixBar label="Light queue begins with" what="offset" pages={pages} />
      {pages.error !== null && pages.at > 0 && !pages.error.isUnreachable && <ErrorNote error={pages.error} retry={pages.reload} />}
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} />
        : pages.rows.length === 0 ? <Empty>{prefix === "" ? "The group has no offset in a light queue of a topic that you may see." : `It has none in a light queue whose name begins with “${prefix}”.`}</Empty> : (
          <List
            label={`Light queues of ${group}`} columns={PLACE_COLUMNS} rows={pages.rows} id={(row) => `${row.topic}/${row.partition}/${row.queue}`} onEnd={pages.more}
            open={(row) => go(queueHref(row))} isStale={pages.error?.isUnreachable === true}
          />
        )}
    </>
  );
}
