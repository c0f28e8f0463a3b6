/** Small parts that every page is made of. */
import { signal } from "@preact/signals";
import { cloneElement, type ComponentChildren, type JSX, type VNode } from "preact";
import { useEffect, useId, useRef, useState } from "preact/hooks";
import { ApiError } from "../api.js";

/** A button that says why when it may not be used; it stays reachable by keyboard, so that the reason is too. */
export function Button(props: {
  children: ComponentChildren;
  onClick?: () => unknown;
  /** Why it cannot be used now; null: it can. */
  reason?: string | null;
  kind?: "plain" | "main" | "danger" | "quiet";
  type?: "button" | "submit";
  label?: string;
  pressed?: boolean;
  busy?: boolean;
}): JSX.Element {
  const { children, onClick, reason = null, kind = "plain", type = "button", label, pressed, busy = false } = props;
  const id = useId();
  const isOff = reason !== null || busy;
  const button = (
    <button
      type={type}
      class={`button ${kind}`}
      aria-disabled={isOff ? "true" : undefined}
      aria-describedby={reason === null ? undefined : id}
      aria-label={label}
      aria-pressed={pressed}
      aria-busy={busy ? "true" : undefined}
      onClick={(event) => {
        if (isOff) event.preventDefault();
        else if (onClick !== undefined) void onClick();
      }}
    >
      {children}
    </button>
  );
  if (reason === null) return button;
  return (
    <span class="reasoned">
      {button}
      <span class="reason" role="tooltip" id={id}>{reason}</span>
    </span>
  );
}

/** A name above a field, and a hint below it, which are the field's to screen readers too. */
export function Field(props: { label: string; children: VNode<{ id?: string; "aria-describedby"?: string }>; hint?: string; wide?: boolean }): JSX.Element {
  const id = useId();
  const hintId = `${id}-hint`;
  return (
    <div class={`field${props.wide === true ? " wide" : ""}`}>
      <label class="field-name" for={id}>{props.label}</label>
      {cloneElement(props.children, props.hint === undefined ? { id } : { id, "aria-describedby": hintId })}
      {props.hint !== undefined && <span class="hint" id={hintId}>{props.hint}</span>}
    </div>
  );
}

export function TextInput(props: {
  value: string;
  onInput: (value: string) => void;
  placeholder?: string;
  id?: string;
  "aria-describedby"?: string;
  label?: string;
  search?: boolean;
  required?: boolean;
  type?: "text" | "number" | "datetime-local" | "date";
  pattern?: string;
  min?: string;
  autoFocus?: boolean;
  list?: string;
  step?: string;
}): JSX.Element {
  const { value, onInput, label, search, autoFocus, ...rest } = props;
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => {
    if (autoFocus === true) field.current?.focus();
  }, []);
  return (
    <input
      {...rest}
      ref={field}
      type={props.type ?? (search === true ? "search" : "text")}
      value={value}
      aria-label={label}
      data-search={search === true ? "" : undefined}
      autocomplete="off"
      spellcheck={false}
      onInput={(event) => onInput(event.currentTarget.value)}
    />
  );
}

export function Select<T extends string>(props: {
  value: T;
  options: readonly (readonly [T, string])[];
  onChange: (value: T) => void;
  id?: string;
  "aria-describedby"?: string;
  label?: string;
}): JSX.Element {
  return (
    <select id={props.id} value={props.value} aria-label={props.label} aria-describedby={props["aria-describedby"]} onChange={(event) => props.onChange(event.currentTarget.value as T)}>
      {props.options.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
    </select>
  );
}

/** A dialog: modal, focus kept inside, Esc closes. */
export function Dialog(props: { title: string; onClose: () => void; children: ComponentChildren; wide?: boolean }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  const id = useId();
  useEffect(() => {
    const before = document.activeElement;
    dialog.current?.showModal();
    return () => {
      if (before instanceof HTMLElement && before.isConnected) before.focus();
    };
  }, []);
  return (
    <dialog
      ref={dialog}
      class={props.wide === true ? "wide" : ""}
      aria-labelledby={id}
      onCancel={(event) => {
        event.preventDefault();
        props.onClose();
      }}
    >
      <header>
        <h2 id={id}>{props.title}</h2>
        <Button kind="quiet" label="Close" onClick={props.onClose}>✕</Button>
      </header>
      {props.children}
    </dialog>
  );
}

export interface Doing {
  isBusy: boolean;
  error: ApiError | null;
  run: (act: () => Promise<unknown>) => Promise<boolean>;
}

/** One act at a time, and what the server said against it. */
export function useDoing(): Doing {
  const [isBusy, setBusy] = useState(false);
  const [error, setError] = useState<ApiError | null>(null);
  return {
    isBusy,
    error,
    run: async (act) => {
      setBusy(true);
      setError(null);
      try {
        await act();
        return true;
      } catch (caught) {
        setError(caught instanceof ApiError ? caught : new ApiError(String(caught), 0, 0, ""));
        return false;
      } finally {
        setBusy(false);
      }
    },
  };
}

/** Asks before something that cannot be undone; with `name`, the name has to be typed. */
export function Confirm(props: {
  title: string;
  children: ComponentChildren;
  action: string;
  name?: string;
  danger?: boolean;
  onClose: () => void;
  act: () => Promise<unknown>;
}): JSX.Element {
  const { name, danger = true } = props;
  const [typed, setTyped] = useState("");
  const doing = useDoing();
  const reason = name !== undefined && typed !== name ? `Type ${name} to confirm.` : null;
  return (
    <Dialog title={props.title} onClose={props.onClose}>
      <form
        class="form"
        onSubmit={(event) => {
          event.preventDefault();
          if (reason === null && !doing.isBusy) void doing.run(props.act).then((isDone) => isDone && props.onClose());
        }}
      >
        <div class="prose">{props.children}</div>
        {name !== undefined && (
          <Field label={`Type ${name} to confirm`}><TextInput value={typed} onInput={setTyped} autoFocus /></Field>
        )}
        <ErrorNote error={doing.error} />
        <div class="actions">
          <Button kind="quiet" onClick={props.onClose}>Keep</Button>
          <Button kind={danger ? "danger" : "main"} type="submit" reason={reason} busy={doing.isBusy}>{props.action}</Button>
        </div>
      </form>
    </Dialog>
  );
}

// ---------------------------------------------------------------------------------------------------------- states

/** What went wrong, its code and the id to look for in the server's log. */
export function ErrorNote(props: { error: ApiError | null; retry?: () => void }): JSX.Element | null {
  const { error, retry } = props;
  if (error === null) return null;
  return (
    <div class="note error" role="alert">
      <span class="mark" aria-hidden="true">!</span>
      <div>
        <p>{error.message}</p>
        {error.code !== 0 && (
          <p class="muted small">Error {error.code}{error.requestId !== "" && <>, request <code>{error.requestId}</code></>}</p>
        )}
      </div>
      {retry !== undefined && <Button onClick={retry}>Try again</Button>}
    </div>
  );
}

export function Empty(props: { children: ComponentChildren; action?: ComponentChildren }): JSX.Element {
  return <div class="empty"><p>{props.children}</p>{props.action}</div>;
}

const SKELETON_AFTER_MS = 200;

/** Grey lines, but only after a moment: most answers are quicker than that. */
export function Skeleton(props: { rows?: number }): JSX.Element {
  const [isShown, setShown] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setShown(true), SKELETON_AFTER_MS);
    return () => clearTimeout(timer);
  }, []);
  return (
    <div class="skeleton" role="status" aria-label="Loading">
      {isShown && Array.from({ length: props.rows ?? 5 }, (_, index) => <span key={index} />)}
    </div>
  );
}

/** What a resource is while it has no data: loading, or refused. */
export function Waiting(props: { error: ApiError | null; retry: () => void; rows?: number }): JSX.Element {
  return props.error === null || props.error.isUnreachable
    ? <Skeleton {...(props.rows === undefined ? {} : { rows: props.rows })} />
    : <ErrorNote error={props.error} retry={props.retry} />;
}

export type Tone = "ok" | "warn" | "error" | "muted" | "accent";
const MARKS: Record<Tone, string> = { ok: "●", warn: "▲", error: "■", muted: "○", accent: "◆" };

/** A state: never by colour alone. */
export function State(props: { tone: Tone; children: ComponentChildren }): JSX.Element {
  return <span class={`state ${props.tone}`}><span aria-hidden="true">{MARKS[props.tone]}</span> {props.children}</span>;
}

export function Fact(props: { name: string; children: ComponentChildren; note?: ComponentChildren }): JSX.Element {
  return (
    <div class="fact">
      <dt>{props.name}</dt>
      <dd>{props.children}{props.note !== undefined && <span class="muted small"> {props.note}</span>}</dd>
    </div>
  );
}

export function Tabs<T extends string>(props: { value: T; tabs: readonly (readonly [T, string])[]; href: (tab: T) => string; label: string }): JSX.Element {
  return (
    <nav class="tabs" aria-label={props.label}>
      {props.tabs.map(([tab, name]) => (
        <a key={tab} href={props.href(tab)} aria-current={tab === props.value ? "page" : undefined}>{name}</a>
      ))}
    </nav>
  );
}

// ---------------------------------------------------------------------------------------------------------- toasts

const TOAST_MS = 6000;
export const toasts = signal<{ id: number; text: string; tone: Tone }[]>([]);
let nextToast = 1;

/** Say what was done, in a corner and to screen readers. */
export function tell(text: string, tone: Tone = "ok"): void {
  const id = nextToast++;
  toasts.value = [...toasts.value.slice(-2), { id, text, tone }];
  setTimeout(() => {
    toasts.value = toasts.value.filter((toast) => toast.id !== id);
  }, TOAST_MS);
}

export function Toasts(): JSX.Element {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => <p key={toast.id} class="toast"><State tone={toast.tone}>{toast.text}</State></p>)}
    </div>
  );
}

/** The server's time of day, as far as we know: this browser's, once a second. */
export const now = signal(Date.now());
setInterval(() => {
  if (!document.hidden) now.value = Date.now();
}, 1000);

export function copyText(text: string, what: string): void {
  navigator.clipboard.writeText(text).then(
    () => tell(`Copied ${what}.`),
    () => tell("The browser does not let this page copy.", "error"),
  );
}
