/** A search by the beginning of names, for lists that are never whole: what was asked for is in the URL, as `prefix`. */
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { count, plural } from "../format.js";
import { place, setQuery } from "../router.js";
import type { Pages } from "../resource.js";
import { Button, Field, TextInput } from "./basics.js";

export function PrefixBar(props: { label: string; what: string; pages: Pages<unknown>; onShow?: () => void }): JSX.Element {
  const { pages } = props;
  const [field, setField] = useState(place.value.query.get("prefix") ?? "");
  const shown = pages.at === 0 ? "" : pages.next === null ? plural(pages.rows.length, props.what) : `the first ${count(pages.rows.length)}`;
  return (
    <form class="bar" onSubmit={(event) => {
      event.preventDefault();
      props.onShow?.();
      setQuery({ prefix: field });
    }}>
      <Field label={props.label} wide><TextInput search value={field} onInput={setField} placeholder="anything" /></Field>
      <Button type="submit">Show</Button>
      <span class="muted small push" role="status">{shown}</span>
    </form>
  );
}
