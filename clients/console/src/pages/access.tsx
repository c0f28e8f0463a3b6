/** Who may do what, who is connected, how the server is set. The files on the server stay the only truth; secrets are shown once. */
import type { JSX } from "preact";
import { useEffect, useState } from "preact/hooks";
import { ApiError, ask, get, path, query, send } from "../api.js";
import { count, parseDuration, plural, relative, time } from "../format.js";
import { denied } from "../rights.js";
import { usePages, useResource } from "../resource.js";
import { place, setQuery } from "../router.js";
import { me } from "../session.js";
import { Button, Confirm, Dialog, Empty, ErrorNote, Field, State, Tabs, TextInput, Waiting, copyText, now, tell, useDoing, type Tone } from "../ui/basics.js";
import { List, type Column } from "../ui/list.js";

type Tab = "tokens" | "rules" | "connections" | "sessions" | "settings" | "audit";
const TABS: readonly (readonly [Tab, string])[] = [["tokens", "Tokens"], ["rules", "Rules"], ["connections", "Connections"], ["sessions", "Sessions"], ["settings", "Settings"], ["audit", "Audit"]];
const REFRESH_MS = 5000;
const PAGE_ROWS = 200;
const FILTER_AFTER_MS = 150;

export function AccessPage(): JSX.Element {
  const asked = place.value.query.get("tab");
  const tab: Tab = TABS.find(([name]) => name === asked)?.[0] ?? "tokens";
  const permission = tab === "tokens" || tab === "rules" ? "access" : tab === "audit" ? "audit" : "operate";
  const right = denied(permission);
  return (
    <>
      <div class="head"><h1>Access</h1></div>
      <Tabs label="Parts of access" value={tab} tabs={TABS} href={(to) => `#/access?tab=${to}`} />
      {right !== null ? <Empty>{right}</Empty>
        : tab === "tokens" ? <Tokens /> : tab === "rules" ? <Rules /> : tab === "connections" ? <Connections /> : tab === "sessions" ? <Sessions />
        : tab === "settings" ? <Settings /> : <Audit />}
    </>
  );
}

/** A filter that the server applies. */
function useFilter(): [shown: string, q: string, set: (text: string) => void] {
  const q = place.value.query.get("q") ?? "";
  const [text, setText] = useState(q);
  useEffect(() => {
    const timer = setTimeout(() => text !== (place.peek().query.get("q") ?? "") && setQuery({ q: text }), FILTER_AFTER_MS);
    return () => clearTimeout(timer);
  }, [text]);
  return [text, q, setText];
}

/** A server without authentication has no tokens and no rules. */
function Off(props: { error: ApiError; retry: () => void }): JSX.Element {
  if (props.error.status !== 409) return <ErrorNote error={props.error} retry={props.retry} />;
  return (
    <Empty>
      Authentication is off, so there is nothing to manage. To turn authentication on, make a first token
      with <code>mq token create NAME --allow admin</code>, then start the server with <code>--auth</code>.
    </Empty>
  );
}

// ---------------------------------------------------------------------------------------------------------- tokens

interface Token {
  id: string;
  principal: string;
  scopes: string[];
  created_ms: number;
  expires_ms: number | null;
}

function Tokens(): JSX.Element {
  const [text, q, setText] = useFilter();
  const [revoking, setRevoking] = useState<Token | null>(null);
  const [isCreating, setCreating] = useState(false);
  const pages = usePages<Token>(`tokens ${q}`, async (cursor, signal) => {
    const answer = await get<{ tokens: Token[]; next_cursor: string | null; total: number | null }>("mq/v1/tokens" + query({ q, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.tokens, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS);
  const columns: Column<Token>[] = [
    { name: "Name", width: "1.2fr", cell: (row) => row.principal },
    { name: "Token", width: "130px", wide: true, cell: (row) => <code>{row.id}</code> },
    { name: "May", width: "3fr", cell: (row) => <code title={row.scopes.join("\n")}>{row.scopes.join(", ")}</code> },
    { name: "Made", width: "150px", wide: true, cell: (row) => time(row.created_ms) },
    { name: "Ends", width: "1fr", wide: true, cell: (row) => row.expires_ms === null ? <span class="muted">never</span> : row.expires_ms < now.value ? <State tone="muted">over</State> : relative(row.expires_ms, now.value) },
    { name: "Action", width: "96px", end: true, cell: (row) => <button type="button" class="link" onClick={() => setRevoking(row)}>Revoke<span class="hidden"> {row.id} of {row.principal}</span></button> },
  ];
  if (pages.at === 0 && pages.error !== null && !pages.error.isUnreachable) return <Off error={pages.error} retry={pages.reload} />;
  return (
    <>
      <div class="bar">
        <Field label="Filter by name" wide><TextInput search value={text} onInput={setText} placeholder="part of a name" /></Field>
        <Button kind="main" onClick={() => setCreating(true)}>Create token</Button>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "token")}</span>
      </div>
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} /> : pages.rows.length === 0 ? <Empty>No such token.</Empty> : (
        <List label="Tokens" columns={columns} rows={pages.rows} id={(row) => row.id} total={pages.total} onEnd={pages.more} isStale={pages.error?.isUnreachable === true} />
      )}
      {isCreating && <CreateToken onClose={() => {
        setCreating(false);
        pages.reload();
      }} />}
      {revoking !== null && (
        <Confirm
          title={`Revoke a token of ${revoking.principal}`} action="Revoke" onClose={() => setRevoking(null)}
          act={async () => {
            await send("DELETE", path`mq/v1/tokens/${revoking.id}`);
            tell(`Token ${revoking.id} is revoked.`);
            pages.reload();
          }}
        >
          <p>The token <code>{revoking.id}</code> is refused from now on, and what it holds open ends within two seconds: sockets, streams, polls that wait.</p>
          {revoking.id === me.value?.token_id && <p><State tone="warn">It is the token that you are signed in with.</State></p>}
        </Confirm>
      )}
    </>
  );
}

function CreateToken(props: { onClose: () => void }): JSX.Element {
  const [principal, setPrincipal] = useState("");
  const [scopes, setScopes] = useState("reader:topic:*");
  const [expires, setExpires] = useState("90d");
  const [secret, setSecret] = useState<string | null>(null);
  const doing = useDoing();
  const list = scopes.split(/[\s,]+/).filter((scope) => scope !== "");
  const expiresMs = expires === "" ? null : parseDuration(expires);
  const reason = principal === "" ? "Give the token a name." : list.length === 0 ? "Give it at least one scope."
    : expires !== "" && expiresMs === null ? 'Its end is a number and a unit, like "90d"; empty: never.' : null;
  const close = () => {
    setSecret(null);
    props.onClose();
  };
  if (secret !== null) {
    return (
      <Dialog title={`Token of ${principal}`} onClose={close}>
        <div class="form">
          <p>This is the token. It is shown this once: the server keeps only a hash of it.</p>
          <pre class="snippet" tabIndex={0} data-secret>{secret}</pre>
          <div class="actions"><Button onClick={() => copyText(secret, "the token")}>Copy</Button><Button kind="main" onClick={close}>Done</Button></div>
        </div>
      </Dialog>
    );
  }
  return (
    <Dialog title="Create a token" onClose={close}>
      <form class="form" onSubmit={(event) => {
        event.preventDefault();
        if (reason !== null || doing.isBusy) return;
        void doing.run(async () => {
          const made = await send<{ token: string }>("POST", "mq/v1/tokens", { principal, scopes: list, ...(expiresMs === null ? {} : { expires_in_ms: expiresMs }) });
          setSecret(made.token);
        });
      }}>
        <div class="two">
          <Field label="Name" hint="of who will use it"><TextInput value={principal} onInput={setPrincipal} autoFocus /></Field>
          <Field label="Ends after" hint="empty: never"><TextInput value={expires} onInput={setExpires} placeholder="90d" /></Field>
        </div>
        <Field label="Scopes, one a line" hint="reader:topic:orders, writer:topic:billing-*, reader:group:billing, operate, audit, access, admin. You cannot grant what you do not have.">
          <textarea value={scopes} spellcheck={false} onInput={(event) => setScopes(event.currentTarget.value)} />
        </Field>
        <ErrorNote error={doing.error} />
        <div class="actions"><Button kind="quiet" onClick={close}>Cancel</Button><Button kind="main" type="submit" reason={reason} busy={doing.isBusy}>Create</Button></div>
      </form>
    </Dialog>
  );
}

// ----------------------------------------------------------------------------------------------------------- rules

interface Rule {
  principal: string;
  allow: string[];
  deny: string[];
}

interface RulesAnswer {
  rules: Rule[];
  etag: string;
}

async function readRules(signal?: AbortSignal): Promise<RulesAnswer> {
  const { body, headers } = await ask<{ rules: Rule[] }>("mq/v1/rules", signal === undefined ? {} : { signal });
  return { rules: body.rules, etag: headers.get("ETag") ?? "" };
}

const RULE_COLUMNS: Column<Rule>[] = [
  { name: "Principal", width: "1fr", cell: (row) => row.principal === "*" ? "* (all)" : row.principal },
  { name: "Allow", width: "2fr", cell: (row) => <code>{row.allow.join(", ")}</code> },
  { name: "Deny, which wins", width: "2fr", cell: (row) => <code>{row.deny.join(", ")}</code> },
];

function Rules(): JSX.Element {
  const found = useResource<RulesAnswer>("rules", readRules);
  const [editing, setEditing] = useState<{ index: number | null; rule: Rule } | null>(null);
  if (found.data === null) return found.error !== null && !found.error.isUnreachable ? <Off error={found.error} retry={found.reload} /> : <Waiting error={found.error} retry={found.reload} />;
  const { rules, etag } = found.data;
  const put = async (next: Rule[]) => {
    await send("PUT", "mq/v1/rules", { rules: next }, { "If-Match": etag });
    tell("The rules are changed; they hold within two seconds.");
    found.reload();
  };
  return (
    <>
      <div class="bar">
        <p class="muted">Rules of the file <code>acl.toml</code>, beside the scopes that tokens have themselves. Its comments stay.</p>
        <span class="push"><Button kind="main" onClick={() => setEditing({ index: null, rule: { principal: "", allow: [], deny: [] } })}>Add rule</Button></span>
      </div>
      {rules.length === 0 ? <Empty>There are no rules: what tokens may do is what their scopes say.</Empty> : (
        <List
          label="Rules" columns={RULE_COLUMNS} rows={rules} id={(row) => String(rules.indexOf(row))} open={(rule, index) => setEditing({ index, rule })}
         
        />
      )}
      {editing !== null && (
        <EditRule
          rule={editing.rule} isNew={editing.index === null} onClose={() => setEditing(null)}
          save={(rule) => put(editing.index === null ? [...rules, rule] : rules.map((one, index) => (index === editing.index ? rule : one)))}
          remove={() => put(rules.filter((_, index) => index !== editing.index))}
        />
      )}
    </>
  );
}

function EditRule(props: { rule: Rule; isNew: boolean; onClose: () => void; save: (rule: Rule) => Promise<void>; remove: () => Promise<void> }): JSX.Element {
  const [principal, setPrincipal] = useState(props.rule.principal);
  const [allow, setAllow] = useState(props.rule.allow.join("\n"));
  const [deny, setDeny] = useState(props.rule.deny.join("\n"));
  const doing = useDoing();
  const lines = (text: string) => text.split(/[\s,]+/).filter((scope) => scope !== "");
  const reason = principal === "" ? "Name the principal, or * for all." : lines(allow).length + lines(deny).length === 0 ? "A rule allows or denies something." : null;
  const finish = (act: () => Promise<void>) => void doing.run(act).then((isDone) => isDone && props.onClose());
  return (
    <Dialog title={props.isNew ? "Add a rule" : "Change a rule"} onClose={props.onClose}>
      <form class="form" onSubmit={(event) => {
        event.preventDefault();
        if (reason === null && !doing.isBusy) finish(() => props.save({ principal, allow: lines(allow), deny: lines(deny) }));
      }}>
        <Field label="Principal" hint='the name of a token, "jwt:SUBJECT", or * for all'><TextInput value={principal} onInput={setPrincipal} /></Field>
        <Field label="Allow, one a line"><textarea value={allow} spellcheck={false} onInput={(event) => setAllow(event.currentTarget.value)} /></Field>
        <Field label="Deny, one a line"><textarea value={deny} spellcheck={false} onInput={(event) => setDeny(event.currentTarget.value)} /></Field>
        <ErrorNote error={doing.error} />
        {doing.error?.status === 412 && <p>The rules were changed meanwhile. Close this, look at them, and try again.</p>}
        <div class="actions">
          {!props.isNew && <Button kind="danger" busy={doing.isBusy} onClick={() => finish(props.remove)}>Remove</Button>}
          <Button kind="quiet" onClick={props.onClose}>Cancel</Button>
          <Button kind="main" type="submit" reason={reason} busy={doing.isBusy}>Save</Button>
        </div>
      </form>
    </Dialog>
  );
}

// ------------------------------------------------------------------------------------------- connections, sessions

interface Connection {
  connection: string;
  kind: string;
  principal: string | null;
  address: string;
  since_ms: number;
}

function Connections(): JSX.Element {
  const [kicking, setKicking] = useState<Connection | null>(null);
  const [text, q, setText] = useFilter();
  const pages = usePages<Connection>(`connections ${q}`, async (cursor, signal) => {
    const answer = await get<{ connections: Connection[]; next_cursor: string | null; total: number | null }>("mq/v1/connections" + query({ q, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.connections, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS);
  const columns: Column<Connection>[] = [
    { name: "Who", width: "1.2fr", cell: (row) => row.principal ?? <span class="muted">not authenticated</span> },
    { name: "Address", width: "1.5fr", cell: (row) => <span class="mono">{row.address}</span> },
    { name: "Kind", width: "72px", wide: true, cell: (row) => row.kind },
    { name: "Since", width: "1fr", wide: true, cell: (row) => relative(row.since_ms, now.value) },
    { name: "Action", width: "72px", end: true, cell: (row) => <button type="button" class="link" onClick={() => setKicking(row)}>Close<span class="hidden"> {row.connection} from {row.address}</span></button> },
  ];
  return (
    <>
      <div class="bar">
        <Field label="Filter by name or address" wide><TextInput search value={text} onInput={setText} placeholder="part of a name or address" /></Field>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "connection")}</span>
      </div>
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} /> : pages.rows.length === 0 ? <Empty>No such connection.</Empty> : (
        <List label="Connections" columns={columns} rows={pages.rows} id={(row) => row.connection} total={pages.total} onEnd={pages.more} isStale={pages.error?.isUnreachable === true} />
      )}
      {kicking !== null && (
        <Confirm title="Close a connection" action="Close it" onClose={() => setKicking(null)} act={async () => {
          await send("DELETE", path`mq/v1/connections/${kicking.connection}`);
          tell(`The connection from ${kicking.address} is closed.`);
          pages.reload();
        }}>
          <p>The connection of {kicking.principal ?? "a client without a token"} from <code>{kicking.address}</code> is cut. Its client may connect again; to keep it out, revoke its token.</p>
        </Confirm>
      )}
    </>
  );
}

interface Session {
  session: string;
  principal: string | null;
  address: string;
  since_ms: number;
  state: "open" | "waiting";
  subscriptions: number;
  groups: string[];
}

function Sessions(): JSX.Element {
  const [kicking, setKicking] = useState<Session | null>(null);
  const [text, q, setText] = useFilter();
  const pages = usePages<Session>(`sessions ${q}`, async (cursor, signal) => {
    const answer = await get<{ sessions: Session[]; next_cursor: string | null; total: number | null }>("mq/v1/sessions" + query({ q, cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.sessions, next: answer.next_cursor, total: answer.total };
  }, REFRESH_MS);
  const columns: Column<Session>[] = [
    { name: "Who", width: "1.2fr", cell: (row) => row.principal ?? <span class="muted">not authenticated</span> },
    { name: "Address", width: "1.5fr", cell: (row) => <span class="mono">{row.address}</span> },
    { name: "State", width: "90px", cell: (row) => <State tone={row.state === "open" ? "ok" : "warn"}>{row.state}</State> },
    { name: "Since", width: "1fr", wide: true, cell: (row) => relative(row.since_ms, now.value) },
    { name: "Subscriptions", width: "96px", end: true, wide: true, cell: (row) => count(row.subscriptions) },
    { name: "Groups", width: "1.5fr", wide: true, cell: (row) => row.groups.join(", ") },
    { name: "Action", width: "72px", end: true, cell: (row) => <button type="button" class="link" onClick={() => setKicking(row)}>End<span class="hidden"> the session from {row.address}</span></button> },
  ];
  return (
    <>
      <div class="bar">
        <Field label="Filter by name or address" wide><TextInput search value={text} onInput={setText} placeholder="part of a name or address" /></Field>
        <span class="muted small push" role="status">{pages.total === null ? "" : plural(pages.total, "session")}</span>
      </div>
      {pages.at === 0 ? <Waiting error={pages.error} retry={pages.reload} /> : pages.rows.length === 0 ? <Empty>No WebSocket session is open or waits.</Empty> : (
        <List label="Sessions" columns={columns} rows={pages.rows} id={(row) => row.session} total={pages.total} onEnd={pages.more} isStale={pages.error?.isUnreachable === true} />
      )}
      {kicking !== null && (
        <Confirm title="End a session" action="End it" onClose={() => setKicking(null)} act={async () => {
          await send("DELETE", path`mq/v1/sessions/${kicking.session}`);
          tell(`The session from ${kicking.address} is ended.`);
          pages.reload();
        }}>
          <p>The socket of {kicking.principal ?? "a client without a token"} from <code>{kicking.address}</code> is closed and cannot be resumed; its records on lease go back to their groups at once.</p>
        </Confirm>
      )}
    </>
  );
}

// ---------------------------------------------------------------------------------------------------------- settings

interface Setting {
  name: string;
  value: unknown;
  default: unknown;
  source: "default" | "file" | "environment" | "flag";
  description: string;
}

function written(value: unknown): string {
  return value === null || value === undefined ? "none" : typeof value === "string" ? value : JSON.stringify(value);
}

function Settings(): JSX.Element {
  const found = useResource<{ settings: Setting[] }>("settings", (signal) => get("mq/v1/settings", signal));
  const [text, setText] = useState("");
  const [isChanged, setChanged] = useState(false);
  if (found.data === null) return <Waiting error={found.error} retry={found.reload} />;
  const wanted = text.toLowerCase();
  const rows = found.data.settings.filter((one) => (!isChanged || one.source !== "default") && (one.name.includes(wanted) || one.description.toLowerCase().includes(wanted)));
  return (
    <>
      <div class="bar">
        <Field label="Filter" wide><TextInput search value={text} onInput={setText} placeholder="part of a name or explanation" /></Field>
        <label class="check"><input type="checkbox" checked={isChanged} onChange={() => setChanged(!isChanged)} /> Only what was set</label>
        <span class="muted small push" role="status">{plural(rows.length, "setting")}</span>
      </div>
      {rows.length === 0 ? <Empty>{isChanged && text === "" ? "Every setting has its default." : "No such setting."}</Empty> : (
        <div class="scroll-x" tabIndex={0} role="region" aria-label="Settings">
          <table class="small-table">
            <thead><tr><th scope="col">Setting</th><th scope="col">Value</th><th scope="col">From</th><th scope="col">Explanation</th></tr></thead>
            <tbody>
              {rows.map((one) => (
                <tr key={one.name}>
                  <th scope="row"><code>{one.name}</code></th>
                  <td><code>{written(one.value)}</code>{one.source !== "default" && <span class="muted small tight"> default {written(one.default)}</span>}</td>
                  <td class="tight">{one.source === "default" ? <span class="muted">default</span> : one.source}</td>
                  <td class="wrap">{one.description}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  );
}

// ------------------------------------------------------------------------------------------------------------- audit

interface Entry {
  time_ms: number;
  principal: string;
  address?: string | null;
  action: string;
  object?: unknown;
  outcome: string;
  status?: number;
  error_code?: number;
  request_id?: string;
}

const OUTCOMES: Record<string, Tone> = { done: "ok", refused: "warn", failed: "error" };

const AUDIT_COLUMNS: Column<Entry>[] = [
  { name: "When", width: "158px", cell: (row) => time(row.time_ms) },
  { name: "Who", width: "1fr", cell: (row) => row.principal },
  { name: "What", width: "1.2fr", cell: (row) => <code>{row.action}</code> },
  { name: "To what", width: "1.5fr", cell: (row) => <code>{typeof row.object === "object" && row.object !== null ? Object.values(row.object).map(written).join(" ") : written(row.object)}</code> },
  { name: "Outcome", width: "96px", cell: (row) => <State tone={OUTCOMES[row.outcome] ?? "muted"}>{row.outcome}</State> },
  { name: "From", width: "1fr", wide: true, cell: (row) => <span class="mono">{row.address}</span> },
  { name: "Request", width: "1fr", wide: true, cell: (row) => <span class="mono">{row.request_id}</span> },
];

function Audit(): JSX.Element {
  const pages = usePages<Entry>("audit", async (cursor, signal) => {
    const answer = await get<{ entries: Entry[]; next_cursor: string | null }>("mq/v1/audit" + query({ cursor, limit: PAGE_ROWS }), signal);
    return { rows: answer.entries, next: answer.next_cursor, total: null };
  }, REFRESH_MS);
  if (pages.at === 0) return <Waiting error={pages.error} retry={pages.reload} />;
  if (pages.rows.length === 0) return <Empty>Nothing that the trail keeps was done yet: topics, groups, schedules or tokens changed.</Empty>;
  return (
    <List
      label="Audit" columns={AUDIT_COLUMNS} rows={pages.rows} id={(row) => `${row.time_ms} ${row.request_id} ${row.action}`} onEnd={pages.more}
      isStale={pages.error?.isUnreachable === true}
    />
  );
}
