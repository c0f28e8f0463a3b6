/** A form that sends one record, now or later; and the same as a command. */
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { path, send } from "../api.js";
import { count, time } from "../format.js";
import { decoded, headerText, views, type Rec } from "../records.js";
import { denied } from "../rights.js";
import { go, href } from "../router.js";
import { LANGUAGES, recordOf, sendSnippet, typeOf, type Language, type SendSpec } from "../snippets.js";
import { Button, ErrorNote, Field, Select, TextInput, copyText, useDoing } from "../ui/basics.js";
import { WhenPicker, laterBy, resolve, type When } from "../ui/when.js";
import type { TopicDetail } from "./topic.js";

export interface Draft {
  value: string;
  kind: "json" | "text" | "none";
  key: string;
  tag: string;
  partition: string;
  headers: string;
  scheduleKey: string;
}

export const EMPTY: Draft = { value: '{"sku": 9, "qty": 2}', kind: "json", key: "", tag: "", partition: "", headers: "", scheduleKey: "" };

/** What the form begins with: a copy of a record that was looked at. By topic. */
const drafts = signal<Record<string, Draft>>({});

/** A record as a draft; bytes that are no text cannot be edited. */
export function draftOf(record: Rec): Draft {
  const view = views(record, "value")[0];
  const key = views(record, "key")[0];
  return {
    value: view === undefined ? "" : decoded(record, "value", view === "hex" ? "text" : view).text,
    kind: view === undefined ? "none" : view === "json" ? "json" : "text",
    key: key === undefined ? "" : decoded(record, "key", "text").text,
    tag: record.tag ?? "",
    partition: "",
    headers: (record.headers ?? []).filter(({ key: name }) => !name.startsWith("mq-")).map(({ key: name, value }) => `${name}: ${headerText(value)}`).join("\n"),
    scheduleKey: "",
  };
}

export function sendCopyOf(topic: string, record: Rec): void {
  drafts.value = { ...drafts.value, [topic]: draftOf(record) };
  go(`${href("topics", topic)}?tab=send`);
}

/** What a draft says; a string says what is wrong with it. */
export function specOf(topic: string, draft: Draft, when: When): SendSpec | string {
  const spec: SendSpec = { topic, value: null };
  if (draft.kind === "text") spec.value = { text: draft.value };
  if (draft.kind === "json") {
    try {
      spec.value = { json: JSON.parse(draft.value) as unknown };
    } catch (error) {
      return `The value is not JSON: ${(error as Error).message}`;
    }
  }
  const later = resolve(when);
  if (typeof later === "string") return later;
  const headers = draft.headers.split("\n").filter((each) => each.trim() !== "").map((each) => each.split(/:(.*)/s));
  if (headers.some((each) => each.length < 2)) return 'Headers: one a line, as "name: value".';
  if (draft.key !== "") spec.key = draft.key;
  if (draft.tag !== "") spec.tag = draft.tag;
  if (draft.partition !== "") spec.partition = Number(draft.partition);
  if (draft.scheduleKey !== "" && when.kind !== "now") spec.schedule_key = draft.scheduleKey;
  if (headers.length > 0) spec.headers = headers.map(([name, value]) => ({ key: name!.trim(), text: value!.trim() }));
  return { ...spec, ...later };
}

export interface Receipt {
  partition: number;
  offset: number | null;
  schedule_id?: string;
  deliver_at?: number;
}

export async function sendSpec(spec: SendSpec): Promise<Receipt> {
  const body = { records: [recordOf(spec)] };
  const answer = await send<{ offsets: Receipt[] }>("POST", path`topics/${spec.topic}`, body, { "Content-Type": typeOf(spec) });
  return answer.offsets[0]!;
}

const KINDS = [["json", "JSON"], ["text", "text"], ["none", "none (tombstone)"]] as const;

export function DraftFields(props: { draft: Draft; onChange: (draft: Draft) => void; partitions: number | null; isLater: boolean }): JSX.Element {
  const { draft, onChange, partitions, isLater } = props;
  const set = (changes: Partial<Draft>) => onChange({ ...draft, ...changes });
  return (
    <>
      <div class="two">
        <Field label="Key"><TextInput value={draft.key} onInput={(key) => set({ key })} placeholder="none" /></Field>
        <Field label="Value is"><Select value={draft.kind} options={KINDS} onChange={(kind) => set({ kind })} /></Field>
      </div>
      {draft.kind !== "none" && (
        <Field label="Value"><textarea value={draft.value} spellcheck={false} onInput={(event) => set({ value: event.currentTarget.value })} /></Field>
      )}
      <div class="two">
        <Field label="Tag"><TextInput value={draft.tag} onInput={(tag) => set({ tag })} placeholder="none" /></Field>
        {partitions !== null && (
          <Field label="Partition">
            <Select
              value={draft.partition} onChange={(partition) => set({ partition })}
              options={[["", "by the key, or in turn"], ...Array.from({ length: Math.min(partitions, 1000) }, (_, number) => [String(number), String(number)] as const)]}
            />
          </Field>
        )}
        {isLater && <Field label="Schedule key" hint="a name to find it by"><TextInput value={draft.scheduleKey} onInput={(scheduleKey) => set({ scheduleKey })} placeholder="none" /></Field>}
      </div>
      <Field label="Headers, one a line">
        <textarea rows={2} value={draft.headers} spellcheck={false} placeholder="trace: abc" onInput={(event) => set({ headers: event.currentTarget.value })} />
      </Field>
    </>
  );
}

export function SendForm(props: { detail: TopicDetail }): JSX.Element {
  const { topic, partitions } = props.detail;
  const [draft, setDraft] = useState(drafts.peek()[topic] ?? EMPTY);
  const [when, setWhen] = useState<When>(laterBy(3_600_000));
  const [language, setLanguage] = useState<Language>("curl");
  const [sent, setSent] = useState<Receipt[]>([]);
  const doing = useDoing();
  const spec = specOf(topic, draft, when);
  const reason = denied("send", { topic }) ?? (typeof spec === "string" ? spec : null);
  const change = (next: Draft) => {
    setDraft(next);
    drafts.value = { ...drafts.value, [topic]: next };
  };
  return (
    <div class="columns">
      <form
        class="card form"
        onSubmit={(event) => {
          event.preventDefault();
          if (typeof spec !== "string" && reason === null && !doing.isBusy) {
            void doing.run(async () => {
              const receipt = await sendSpec(spec);
              setSent((before) => [receipt, ...before].slice(0, 8));
            });
          }
        }}
      >
        <DraftFields draft={draft} onChange={change} partitions={partitions} isLater={when.kind !== "now"} />
        <WhenPicker value={when} onChange={setWhen} />
        <ErrorNote error={doing.error} />
        <div class="actions"><Button kind="main" type="submit" reason={reason} busy={doing.isBusy}>{when.kind === "now" ? "Send" : "Schedule"}</Button></div>
        {sent.length > 0 && (
          <ul class="sent" aria-live="polite">
            {sent.map((receipt) => (
              <li key={`${receipt.partition}-${receipt.offset}-${receipt.schedule_id}`}>
                {receipt.offset !== null ? (
                  <>On disk: <a href={`${href("topics", topic)}?tab=messages&partition=${receipt.partition}&from=offset&offset=${receipt.offset}`}>partition {receipt.partition}, offset {count(receipt.offset)}</a></>
                ) : (
                  <>Due {time(receipt.deliver_at, true)}: <a href={`#/delays?topic=${encodeURIComponent(topic)}`}>in the delays of {topic}</a></>
                )}
              </li>
            ))}
          </ul>
        )}
      </form>
      <section class="card" aria-label="The same as a command">
        <header>
          <h2>The same as a command</h2>
          <span class="segmented" role="group" aria-label="Language">
            {LANGUAGES.map(([one, name]) => <Button key={one} pressed={one === language} onClick={() => setLanguage(one)}>{name}</Button>)}
          </span>
        </header>
        {typeof spec === "string" ? <p class="muted">{spec}</p> : (
          <>
            <pre class="snippet" tabIndex={0}>{sendSnippet(language, spec)}</pre>
            <div class="actions"><Button onClick={() => copyText(sendSnippet(language, spec), "the command")}>Copy</Button></div>
          </>
        )}
      </section>
    </div>
  );
}
