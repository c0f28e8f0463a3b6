/** Who is signed in, what they may do, and the one socket that live data comes by. */
import { signal } from "@preact/signals";
import { connect, type Client } from "mq-client";
import { ApiError, address, get, onUnauthorized, token } from "./api.js";

export interface Scope {
  permissions: string[];
  /** Null: of everything. */
  kind: "topic" | "group" | null;
  pattern: string;
}

export interface Me {
  principal: string;
  token_id: string | null;
  expires_ms: number | null;
  is_authenticated: boolean;
  allow: Scope[];
  deny: Scope[];
  is_whole: boolean;
}

export interface Info {
  version: string;
  cluster_id: string;
  started_ms: number;
}

export type Phase = "starting" | "signin" | "in";
export const phase = signal<Phase>("starting");
export const me = signal<Me | null>(null);
export const info = signal<Info | null>(null);
/** Why the sign-in is shown: a wrong token, one that ended. */
export const signInMessage = signal("");

/** The socket's state; `since` is when it got there. */
export const live = signal<{ state: "connecting" | "open" | "waiting" | "closed"; since: number }>({ state: "connecting", since: Date.now() });
/** Counts how often the server came back: what is shown is asked for again. */
export const returns = signal(0);

let client: Promise<Client> | null = null;
let stopping = new AbortController();

/** The client that carries live data, connected when it is first needed. */
export function socket(): Promise<Client> {
  if (client === null) {
    stopping = new AbortController();
    const used = token.value;
    let wasOpen = false;
    client = connect(address("ws/v1"), {
      client: "console",
      signal: stopping.signal,
      ...(used === null ? {} : { token: used }),
      onState: (state) => {
        live.value = { state, since: Date.now() };
        if (state === "open") {
          if (wasOpen) returns.value++;
          wasOpen = true;
        }
        if (state === "closed" && phase.peek() === "in") void check(); // the token may have ended
      },
    });
    client.catch(() => {
      client = null;
    });
  }
  return client;
}

function hangUp(): void {
  stopping.abort();
  client = null;
}

/** Ask who we are: without a token first, as a server without authentication has none. */
export async function start(): Promise<void> {
  try {
    me.value = await get<Me>("mq/v1/me");
    phase.value = "in";
    void get<Info>("mq/v1/info").then((found) => (info.value = found), () => {});
    void socket().catch(() => {});
  } catch (error) {
    if (error instanceof ApiError && error.status === 401) phase.value = "signin";
    else throw error;
  }
}

/** Whether the server still knows us; signs out when it does not. */
async function check(): Promise<void> {
  try {
    me.value = await get<Me>("mq/v1/me");
    hangUp();
    void socket().catch(() => {});
  } catch {
    // 401 signs out by itself; without an answer the banner says so, and the next request tries again
  }
}

export async function signIn(secret: string): Promise<void> {
  token.value = secret;
  signInMessage.value = "";
  await start();
}

export function signOut(message = ""): void {
  token.value = null;
  me.value = null;
  phase.value = "signin";
  signInMessage.value = message;
  hangUp();
}

let docs: Window | null = null;

/** Open the API's reference in a tab that may ask for our token, as that page keeps none either. No other page gets it. */
export function openDocs(event: MouseEvent): void {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  docs = window.open("docs", "_blank");
}

addEventListener("message", ({ origin, source, data }) => {
  if (docs !== null && source === docs && origin === location.origin && data === "mq-docs" && token.value !== null) {
    docs.postMessage({ mqToken: token.value }, location.origin);
  }
});

onUnauthorized.call = (message) => {
  if (token.value !== null) signOut(phase.value === "in" ? `The token is no longer valid: ${message}` : message);
  else if (phase.value === "in") signOut(message);
};
