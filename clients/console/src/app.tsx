/** The frame of every page: where to go, who is signed in, whether the server answers. */
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useErrorBoundary, useState } from "preact/hooks";
import { ApiError, unreachableSince } from "./api.js";
import { duration, relative, time } from "./format.js";
import { HELP, PAGES, areKeysOn, isHelpOpen } from "./keys.js";
import { place } from "./router.js";
import { info, live, me, openDocs, phase, signOut, start } from "./session.js";
import { theme, type Theme } from "./theme.js";
import { Button, Dialog, ErrorNote, Select, Skeleton, State, Toasts, now } from "./ui/basics.js";
import { AccessPage } from "./pages/access.js";
import { BrokersPage } from "./pages/brokers.js";
import { DelaysPage } from "./pages/delays.js";
import { GroupPage } from "./pages/group.js";
import { GroupsPage } from "./pages/groups.js";
import { OverviewPage } from "./pages/overview.js";
import { SignIn } from "./pages/sign_in.js";
import { TopicPage } from "./pages/topic.js";
import { TopicsPage } from "./pages/topics.js";

const RETRY_MS = 1000;
/** A restart that nobody notices is not worth a banner. */
const BANNER_AFTER_MS = 1500;

export function App(): JSX.Element {
  const [error, setError] = useState<ApiError | null>(null);
  useEffect(() => {
    if (phase.value !== "starting") return undefined;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const begin = () => start().then(() => setError(null), (caught: ApiError) => {
      setError(caught);
      if (caught.isUnreachable) timer = setTimeout(() => void begin(), RETRY_MS);
    });
    void begin();
    return () => clearTimeout(timer);
  }, []);
  if (phase.value === "signin") return <><SignIn /><Toasts /></>;
  if (phase.value === "starting") {
    return <main class="centre" id="main"><h1>mq console</h1>{error === null ? <Skeleton /> : <ErrorNote error={error} retry={() => location.reload()} />}</main>;
  }
  return (
    <>
      <a class="skip" href="#main" onClick={(event) => {
        event.preventDefault();
        document.getElementById("main")?.focus();
      }}>Skip to content</a>
      <div class="frame">
        <Header />
        <main id="main" tabIndex={-1}>
          <Banner />
          <Guarded key={place.value.parts.join("/")}><Page /></Guarded>
        </main>
      </div>
      {isHelpOpen.value && <Help />}
      <Toasts />
    </>
  );
}

/** A fault of this page is said and leaves the rest usable: another page can be gone to. */
function Guarded(props: { children: ComponentChildren }): JSX.Element {
  const [error, reset] = useErrorBoundary((caught: unknown) => console.error(caught));
  if (error === undefined) return <>{props.children}</>;
  return <ErrorNote error={new ApiError(`This page has a fault: ${String(error)}`, 0, 0, "")} retry={reset} />;
}

function Page(): JSX.Element {
  const { parts } = place.value;
  const [page = "overview", name] = parts;
  useEffect(() => {
    const title = PAGES.find(([, path]) => path === page)?.[2] ?? "Not found";
    document.title = `${name === undefined ? "" : `${name} · `}${title} · mq console`;
  }, [page, name]);
  switch (page) {
    case "overview": return <OverviewPage />;
    case "topics": return name === undefined ? <TopicsPage /> : <TopicPage key={name} topic={name} />;
    case "groups": return name === undefined ? <GroupsPage /> : <GroupPage key={name} group={name} />;
    case "delays": return <DelaysPage />;
    case "brokers": return <BrokersPage />;
    case "access": return <AccessPage />;
    default: return <><h1>Not found</h1><p>There is no page <code>{page}</code>. <a href="#/overview">Overview</a></p></>;
  }
}

const THEMES: readonly (readonly [Theme, string])[] = [["system", "Auto theme"], ["light", "Light"], ["dark", "Dark"]];

function Header(): JSX.Element {
  const current = place.value.parts[0] ?? "overview";
  const who = me.value;
  return (
    <header class="side">
      <p class="brand"><a href="#/overview">mq</a> <span class="muted small">{info.value?.version}</span></p>
      <nav aria-label="Pages">
        {PAGES.map(([, path, name]) => (
          <a key={path} href={`#/${path}`} aria-current={path === current ? "page" : undefined}>{name}</a>
        ))}
      </nav>
      <div class="side-foot">
        <Connection />
        {info.value !== null && <p class="muted small up" title={`since ${time(info.value.started_ms)}`}>up {duration(now.value - info.value.started_ms)}</p>}
        <p class="small who">{who?.is_authenticated === true ? <b>{who.principal}</b> : <span class="muted">no authentication</span>}</p>
        {who?.expires_ms != null && <p class="muted small up">token ends {relative(who.expires_ms, now.value)}</p>}
        <Select label="Theme" value={theme.value} options={THEMES} onChange={(chosen) => (theme.value = chosen)} />
        <p class="side-links">
          <a href="docs" onClick={openDocs} title="The reference of the API, to try each route with this token; in a tab of its own">API</a>
          <button type="button" class="link" onClick={() => (isHelpOpen.value = true)}>Keys</button>
          {who?.is_authenticated === true && <button type="button" class="link" onClick={() => signOut()}>Sign out</button>}
        </p>
      </div>
    </header>
  );
}

function Connection(): JSX.Element {
  if (unreachableSince.value !== 0) return <p class="small"><State tone="error">no answer</State></p>;
  const { state } = live.value;
  return <p class="small">{state === "open" ? <State tone="ok">live</State> : <State tone="warn">{state === "connecting" ? "connecting" : "reconnecting"}</State>}</p>;
}

/** The server does not answer: what is shown is old, and how old. */
function Banner(): JSX.Element | null {
  const since = unreachableSince.value !== 0 ? unreachableSince.value : live.value.state === "waiting" ? live.value.since : 0;
  if (since === 0 || now.value - since < BANNER_AFTER_MS) return null;
  return (
    <div class="note warn banner" role="status">
      <span class="mark" aria-hidden="true">▲</span>
      <p>No answer from the server since {time(since)} ({duration(now.value - since)}). What is shown is from before then; this page reconnects by itself.</p>
    </div>
  );
}

function Help(): JSX.Element {
  const close = () => (isHelpOpen.value = false);
  return (
    <Dialog title="Keyboard" onClose={close}>
      <table class="small-table">
        <tbody>{HELP.map(([keys, what]) => <tr key={keys}><th scope="row"><kbd>{keys}</kbd></th><td>{what}</td></tr>)}</tbody>
      </table>
      <label class="check">
        <input type="checkbox" checked={areKeysOn.value} onChange={() => (areKeysOn.value = !areKeysOn.value)} /> Use these keys
      </label>
      <div class="actions"><Button onClick={close}>Close</Button></div>
    </Dialog>
  );
}
