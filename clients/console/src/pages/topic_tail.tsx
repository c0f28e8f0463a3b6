/** What is stored from now on, as it comes: over the socket of mq.js. Pausing stops the list, not the stream; what came meanwhile is counted. */
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { useKey } from "../keys.js";
import { ApiError } from "../api.js";
import { count, perSecond, plural } from "../format.js";
import type { Rec } from "../records.js";
import { denied } from "../rights.js";
import { live, socket } from "../session.js";
import { readSnippet } from "../snippets.js";
import { Button, Empty, ErrorNote, Field, State, TextInput } from "../ui/basics.js";
import { List } from "../ui/list.js";
import { CopyAs, RecordView } from "../ui/record.js";
import { COLUMNS, idOf } from "./topic_browse.js";

/** Rows that are kept; older ones are let go. */
const KEPT = 2000;
/** The list is drawn anew at most so often. */
const DRAW_MS = 200;
const RATE_MS = 1000;

export function Tail(props: { topic: string }): JSX.Element {
  const { topic } = props;
  const right = denied("receive", { topic });
  const [rows, setRows] = useState<Rec[]>([]);
  const [held, setHeld] = useState(0);
  const [isPaused, setPaused] = useState(false);
  const [isFollowing, setFollowing] = useState(false);
  const [rate, setRate] = useState(0);
  const [tag, setTag] = useState("");
  const [used, setUsed] = useState("");
  const [error, setError] = useState<ApiError | null>(null);
  const [opened, setOpened] = useState<Rec | null>(null);
  const [round, setRound] = useState(0);
  const paused = useRef(false);
  paused.current = isPaused;

  useEffect(() => {
    if (right !== null) return undefined;
    const stopping = new AbortController();
    let came: Rec[] = [];
    let dropped = 0;
    let total = 0;
    setError(null);
    setFollowing(false);
    socket().then((client) => {
      if (stopping.signal.aborted) return;
      const subscription = client.subscribe({
        topics: topic,
        from: "latest",
        ...(used === "" ? {} : { tags: [used] }),
        signal: stopping.signal,
        onMessage: (message) => {
          total++;
          came.push(message.raw as unknown as Rec);
          if (came.length > KEPT) {
            dropped += came.length - KEPT;
            came = came.slice(-KEPT);
          }
        },
        onEnd: (ended) => {
          if (ended !== null && !stopping.signal.aborted) {
            setError(new ApiError(ended.message, 400, (ended as { code?: number }).code ?? 0, ""));
          }
        },
      });
      // Only from then on is what is stored shown. An error is told to `onEnd`.
      subscription.ready.then(() => setFollowing(!stopping.signal.aborted), () => {});
    }, (refused: Error) => {
      if (!stopping.signal.aborted) setError(new ApiError(refused.message, 400, (refused as { code?: number }).code ?? 0, ""));
    });
    const drawing = setInterval(() => {
      if (paused.current) {
        setHeld(came.length + dropped);
        return;
      }
      setHeld(0);
      if (came.length === 0) return;
      const newest = came.reverse();
      came = [];
      dropped = 0;
      setRows((before) => [...newest, ...before].slice(0, KEPT));
    }, DRAW_MS);
    let counted = 0;
    const rating = setInterval(() => {
      setRate(((total - counted) * 1000) / RATE_MS);
      counted = total;
    }, RATE_MS);
    return () => {
      stopping.abort();
      clearInterval(drawing);
      clearInterval(rating);
    };
  }, [topic, used, right, round]);

  useKey(" ", () => setPaused((before) => !before));
  if (right !== null) return <Empty>{right} This topic cannot be followed.</Empty>;
  const isOpen = live.value.state === "open";
  return (
    <>
      <form
        class="bar"
        onSubmit={(event) => {
          event.preventDefault();
          setUsed(tag);
        }}
      >
        <Button pressed={isPaused} onClick={() => setPaused(!isPaused)}>{isPaused ? `Resume${held === 0 ? "" : ` (${plural(held, "new message")})`}` : "Pause"}</Button>
        <Button kind="quiet" onClick={() => setRows([])}>Clear</Button>
        <Field label="Only with tag"><TextInput value={tag} onInput={setTag} placeholder="any" /></Field>
        {tag !== used && <Button type="submit">Apply</Button>}
        <span class="push small">
          {error !== null ? null : !isFollowing ? <State tone="muted">connecting</State> : !isOpen ? <State tone="warn">reconnecting; nothing will be missed</State> : isPaused ? <State tone="muted">paused</State> : <State tone="ok">following, {perSecond(rate)}</State>}
        </span>
      </form>
      <ErrorNote error={error} retry={() => setRound(round + 1)} />
      <div class={opened === null ? "" : "split"}>
        {rows.length === 0 ? <Empty>Waiting for the next message. What was stored before is under Messages.</Empty> : (
          <List label={`Live messages of ${topic}`} columns={COLUMNS} rows={rows} id={idOf} open={(row) => {
            setOpened(row);
            setPaused(true);
          }} opened={opened === null ? null : idOf(opened)} />
        )}
        {opened !== null && (
          <section class="card detail" aria-label="The chosen message">
            <header>
              <h2>Partition {opened.partition}, offset {count(opened.offset)}</h2>
              <Button kind="quiet" label="Close the message" onClick={() => setOpened(null)}>✕</Button>
            </header>
            <RecordView record={opened} actions={<CopyAs what="the read" make={(language) => readSnippet(language, topic, opened.partition, opened.offset)} />} />
          </section>
        )}
      </div>
      <p class="list-foot" role="status">{plural(rows.length, "message")} kept here; at most {KEPT.toLocaleString("en-US")}. Space pauses.</p>
    </>
  );
}
