/** The keyboard: letters of the whole page, which are off while something is typed, and can be turned off altogether. */
import { signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { go } from "./router.js";

export const areKeysOn = signal(true);
export const isHelpOpen = signal(false);

export const PAGES: [letter: string, path: string, name: string][] = [
  ["o", "overview", "Overview"],
  ["t", "topics", "Topics"],
  ["g", "groups", "Groups"],
  ["d", "delays", "Delays"],
  ["b", "brokers", "Brokers"],
  ["a", "access", "Access"],
];

export const HELP: [keys: string, what: string][] = [
  ...PAGES.map(([letter, , name]): [string, string] => [`g ${letter}`, `go to ${name}`]),
  ["/", "filter or search"],
  ["j  k", "next, previous row"],
  ["Enter", "open the row"],
  ["x", "select the row"],
  ["Space", "pause or resume the live tail"],
  ["Esc", "close; leave a field"],
  ["?", "this help"],
];

const handlers = new Map<string, ((event: KeyboardEvent) => void)[]>();

/** While the component is shown, `act` is what `key` does. The newest one wins. */
export function useKey(key: string, act: (event: KeyboardEvent) => void): void {
  const latest = useRef(act);
  latest.current = act;
  useEffect(() => {
    const mine = (event: KeyboardEvent) => latest.current(event);
    const list = handlers.get(key) ?? [];
    handlers.set(key, list);
    list.push(mine);
    return () => void list.splice(list.indexOf(mine), 1);
  }, [key]);
}

const GO_WITHIN_MS = 1500;
let wentAt = 0;

function isTyping(target: EventTarget | null): boolean {
  return target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && (target as HTMLInputElement).type !== "checkbox");
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (event.key === "Escape" && isTyping(event.target)) {
    (event.target as HTMLElement).blur();
    return;
  }
  if (!areKeysOn.value || isTyping(event.target) || document.querySelector("dialog[open]") !== null) return;
  if (event.key === " " && event.target instanceof HTMLElement && /^(BUTTON|A|SUMMARY|INPUT)$/.test(event.target.tagName)) return;
  if (Date.now() - wentAt < GO_WITHIN_MS) {
    wentAt = 0;
    const page = PAGES.find(([letter]) => letter === event.key);
    if (page !== undefined) {
      event.preventDefault();
      go(`#/${page[1]}`);
      return;
    }
  }
  if (event.key === "g") {
    wentAt = Date.now();
    return;
  }
  if (event.key === "?") {
    isHelpOpen.value = true;
    return;
  }
  if (event.key === "/") {
    const field = document.querySelector<HTMLElement>("[data-search]");
    if (field !== null) {
      event.preventDefault();
      field.focus();
    }
    return;
  }
  const act = handlers.get(event.key)?.at(-1);
  if (act !== undefined) {
    event.preventDefault();
    act(event);
  }
});
