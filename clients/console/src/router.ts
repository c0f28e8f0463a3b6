/** Where we are, in the URL's fragment: "#/topics/orders?tab=send". Nothing of it reaches the server. */
import { signal } from "@preact/signals";

export interface Place {
  /** Decoded: ["topics", "orders"]. */
  parts: string[];
  query: URLSearchParams;
}

function read(): Place {
  const [path = "", search = ""] = location.hash.replace(/^#\/?/, "").split("?");
  return {
    parts: path.split("/").filter((part) => part !== "").map(decoded),
    query: new URLSearchParams(search),
  };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

export const place = signal<Place>(read());
addEventListener("hashchange", () => {
  place.value = read();
});

/** A link: href("topics", "orders"). */
export function href(...parts: string[]): string {
  return "#/" + parts.map(encodeURIComponent).join("/");
}

/** Be there at once, not when the browser says so: a page that is left asks for nothing more. */
export function go(to: string): void {
  location.hash = to;
  place.value = read();
}

/** Change the query in place: Back leaves the page, it does not undo each letter of a filter. */
export function setQuery(changes: Record<string, string | null>): void {
  const { parts, query } = place.peek();
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === "") next.delete(name);
    else next.set(name, value);
  }
  const text = next.toString();
  history.replaceState(null, "", href(...parts) + (text === "" ? "" : `?${text}`));
  place.value = read();
}
