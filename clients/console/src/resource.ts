/** Something that the server is asked for, and asked again: while it does not answer, what is there stays, with its age. */
import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api.js";
import { phase, returns } from "./session.js";

export interface Resource<T> {
  data: T | null;
  error: ApiError | null;
  /** When `data` came, epoch ms; 0: never. */
  at: number;
  isLoading: boolean;
  reload: () => void;
}

const HIDDEN_FACTOR = 10;

/**
 * `ask` is called when `key` changes, every `everyMs` (a tenth as often in a hidden tab), and when the server has come back.
 * A null key asks for nothing.
 */
export function useResource<T>(key: string | null, ask: (signal: AbortSignal) => Promise<T>, everyMs = 0): Resource<T> {
  const [state, setState] = useState<{ key: string | null; data: T | null; error: ApiError | null; at: number; isLoading: boolean }>({
    key: null, data: null, error: null, at: 0, isLoading: true,
  });
  const [round, setRound] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  const came = returns.value;
  useEffect(() => {
    if (key === null) return undefined;
    const controller = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;
    const run = async () => {
      setState((before) => (before.key === key ? { ...before, isLoading: true } : { key, data: null, error: null, at: 0, isLoading: true }));
      try {
        const data = await latest.current(controller.signal);
        if (controller.signal.aborted) return;
        failures = 0;
        setState({ key, data, error: null, at: Date.now(), isLoading: false });
      } catch (error) {
        if (controller.signal.aborted) return;
        failures++;
        const told = error instanceof ApiError ? error : new ApiError(String(error), 0, 0, "");
        setState((before) => ({ ...before, key, error: told, isLoading: false }));
        if (told.isUnreachable) {
          timer = setTimeout(() => void run(), Math.min(10_000, 500 * 2 ** failures));
          return;
        }
      }
      if (everyMs > 0 && phase.peek() === "in") {
        timer = setTimeout(() => void run(), document.hidden ? everyMs * HIDDEN_FACTOR : everyMs);
      }
    };
    void run();
    return () => {
      controller.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, round, came]);
  const isCurrent = state.key === key;
  return {
    data: isCurrent ? state.data : null,
    error: isCurrent ? state.error : null,
    at: isCurrent ? state.at : 0,
    isLoading: !isCurrent || state.isLoading,
    reload: () => setRound((before) => before + 1),
  };
}

export interface Page<T> {
  rows: T[];
  next: string | null;
  total: number | null;
}

/** Pages one behind the other, as far as they were asked for. */
export interface Pages<T> {
  rows: T[];
  total: number | null;
  next: string | null;
  error: ApiError | null;
  isLoading: boolean;
  at: number;
  /** Ask for the next page, unless that is under way or there is none. */
  more: () => void;
  reload: () => void;
}

/**
 * The rows of a list by cursor. A refresh (`everyMs`) asks for as many pages again as are there, and for no more than
 * `pagesRefreshed`: who has scrolled further keeps what there is until they reload.
 */
export function usePages<T>(
  key: string | null,
  ask: (cursor: string | null, signal: AbortSignal) => Promise<Page<T>>,
  everyMs = 0,
  pagesRefreshed = 1,
): Pages<T> {
  const [state, setState] = useState<{ key: string | null; pages: Page<T>[]; error: ApiError | null; isLoading: boolean; at: number }>({
    key: null, pages: [], error: null, isLoading: true, at: 0,
  });
  const [round, setRound] = useState(0);
  const latest = useRef(ask);
  latest.current = ask;
  /** A page with rows: one that a search has ended early may have none, and others behind it. */
  const filled = async (cursor: string | null, signal: AbortSignal): Promise<Page<T>> => {
    const first = await latest.current(cursor, signal);
    let page = first;
    while (page.rows.length === 0 && page.next !== null) page = await latest.current(page.next, signal);
    return { ...page, total: first.total };
  };
  const current = useRef(state);
  current.current = state;
  const controller = useRef(new AbortController());
  const isBusy = useRef(false);
  const came = returns.value;

  useEffect(() => {
    if (key === null) return undefined;
    const mine = new AbortController();
    controller.current = mine;
    isBusy.current = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let failures = 0;
    const run = async (isFirst: boolean) => {
      const had = current.current.key === key ? current.current.pages.length : 0;
      if (!isFirst && (had > pagesRefreshed || isBusy.current)) {
        timer = setTimeout(() => void run(false), everyMs);
        return;
      }
      isBusy.current = true;
      setState((before) => (before.key === key ? { ...before, isLoading: true } : { key, pages: [], error: null, isLoading: true, at: 0 }));
      try {
        const pages: Page<T>[] = [await filled(null, mine.signal)];
        while (pages.length < Math.min(had, pagesRefreshed) && pages.at(-1)!.next !== null) {
          pages.push(await filled(pages.at(-1)!.next, mine.signal));
        }
        if (mine.signal.aborted) return;
        failures = 0;
        setState({ key, pages, error: null, isLoading: false, at: Date.now() });
      } catch (error) {
        if (mine.signal.aborted) return;
        failures++;
        const told = error instanceof ApiError ? error : new ApiError(String(error), 0, 0, "");
        setState((before) => ({ ...before, key, error: told, isLoading: false }));
        if (told.isUnreachable) timer = setTimeout(() => void run(true), Math.min(10_000, 500 * 2 ** failures));
      } finally {
        if (!mine.signal.aborted) isBusy.current = false;
      }
      if (everyMs > 0 && failures === 0) timer = setTimeout(() => void run(false), document.hidden ? everyMs * HIDDEN_FACTOR : everyMs);
    };
    void run(true);
    return () => {
      mine.abort();
      clearTimeout(timer);
    };
  }, [key, everyMs, pagesRefreshed, round, came]);

  const isCurrent = state.key === key;
  const pages = isCurrent ? state.pages : [];
  const next = pages.at(-1)?.next ?? null;
  return {
    rows: pages.length === 1 ? pages[0]!.rows : pages.flatMap((page) => page.rows),
    total: pages[0]?.total ?? null,
    next,
    error: isCurrent ? state.error : null,
    isLoading: !isCurrent || state.isLoading,
    at: isCurrent ? state.at : 0,
    more: () => {
      const mine = controller.current;
      if (next === null || isBusy.current) return;
      isBusy.current = true;
      setState((before) => ({ ...before, isLoading: true }));
      filled(next, mine.signal).then(
        (page) => {
          if (mine.signal.aborted) return;
          isBusy.current = false;
          setState((before) => ({ ...before, pages: [...before.pages, page], error: null, isLoading: false }));
        },
        (error: unknown) => {
          if (mine.signal.aborted) return;
          isBusy.current = false;
          const told = error instanceof ApiError ? error : new ApiError(String(error), 0, 0, "");
          setState((before) => ({ ...before, error: told, isLoading: false }));
        },
      );
    },
    reload: () => setRound((before) => before + 1),
  };
}
