/** One record in full: its value in each view, key, headers, where and when it was stored, and ways to take it along. */
import type { ComponentChildren, JSX } from "preact";
import { useState } from "preact/hooks";
import { bytes, time } from "../format.js";
import { decoded, hasValue, headerText, sizeOf, views, type Rec, type Shown, type View } from "../records.js";
import { LANGUAGES, type Language } from "../snippets.js";
import { Button, Fact, copyText } from "./basics.js";

const NAMES: Record<View, string> = { json: "JSON", text: "Text", hex: "Hex" };

export function Decoded(props: { record: Shown; name: "key" | "value" }): JSX.Element {
  const { record, name } = props;
  const found = views(record, name);
  const [chosen, setChosen] = useState<View | null>(null);
  if (found.length === 0) return <p class="muted">{name === "value" ? "No value: a tombstone." : "No key."}</p>;
  const view = chosen !== null && found.includes(chosen) ? chosen : found[0]!;
  const { text, isCut } = decoded(record, name, view);
  return (
    <div class="decoded">
      <div class="views" role="group" aria-label={`${name} as`}>
        {found.map((one) => (
          <Button key={one} kind="quiet" pressed={one === view} onClick={() => setChosen(one)}>{NAMES[one]}</Button>
        ))}
        <Button kind="quiet" label={`Copy the ${name}`} onClick={() => copyText(text, `the ${name}`)}>Copy</Button>
      </div>
      <pre tabIndex={0} aria-label={`${name} as ${NAMES[view]}`}>{text}</pre>
      {(isCut || (name === "value" && record.value_truncated === true)) && (
        <p class="muted small">The first 64 KiB{record.value_size === undefined ? "" : ` of ${bytes(record.value_size)}`} are shown.</p>
      )}
    </div>
  );
}

export function RecordView(props: { record: Rec; actions?: ComponentChildren }): JSX.Element {
  const { record } = props;
  const headers = record.headers ?? [];
  return (
    <div class="record">
      <dl class="facts">
        <Fact name="Key"><code>{views(record, "key").length === 0 ? "none" : decoded(record, "key", views(record, "key")[0]!).text}</code></Fact>
        {record.tag != null && <Fact name="Tag"><code>{record.tag}</code></Fact>}
        <Fact name="Stored">{time(record.store_timestamp, true)}</Fact>
        <Fact name="Event time">{time(record.timestamp, true)}</Fact>
        {record.deliver_at !== undefined && <Fact name="Due">{time(record.deliver_at, true)}</Fact>}
        {hasValue(record) && <Fact name="Size">{bytes(sizeOf(record))}</Fact>}
        {record.message_id !== undefined && <Fact name="Message id"><code>{record.message_id}</code></Fact>}
      </dl>
      {headers.length > 0 && (
        <table class="small-table">
          <caption>Headers</caption>
          <tbody>
            {headers.map(({ key, value }, index) => <tr key={index}><th scope="row">{key}</th><td><code>{headerText(value)}</code></td></tr>)}
          </tbody>
        </table>
      )}
      <Decoded record={record} name="value" />
      {props.actions !== undefined && <div class="actions start">{props.actions}</div>}
    </div>
  );
}

/** "Copy as": curl, Python, JavaScript. */
export function CopyAs(props: { make: (language: Language) => string; what?: string }): JSX.Element {
  return (
    <span class="copy-as" role="group" aria-label={`Copy ${props.what ?? "this"} as`}>
      <span class="muted small">Copy as</span>
      {LANGUAGES.map(([language, name]) => (
        <Button key={language} kind="quiet" onClick={() => copyText(props.make(language), `${props.what ?? "it"} as ${name}`)}>{name}</Button>
      ))}
    </span>
  );
}
