/** Requests to the server: JSON in, JSON or an ApiError out. The token is added here and nowhere else. */
import { signal } from "@preact/signals";

/** The secret of this session. In memory only: a reload forgets it. */
export const token = signal<string | null>(null);

/** When a request last got an answer, and since when none does (0: they do). Epoch ms. */
export const unreachableSince = signal(0);

/** Called when the server says that the token is not good (any more). */
export const onUnauthorized: { call: (message: string) => void } = { call: () => {} };

export class ApiError extends Error {
  constructor(
    message: string,
    /** HTTP status; 0 when there was no answer. */
    readonly status: number,
    readonly code: number,
    readonly requestId: string,
    readonly details: unknown = undefined,
  ) {
    super(message);
  }

  /** No answer came: what was asked for may have been done. */
  get isUnreachable(): boolean {
    return this.status === 0;
  }
}

export interface Answer<T> {
  body: T;
  headers: Headers;
}

export interface Request {
  method?: string;
  /** Written as JSON. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** Of the answer; by default its JSON. */
  as?: "json" | "lines" | "text";
}

/** Where the server's own paths begin, whatever prefix a proxy has put before them. */
const BASE = new URL(".", location.href.split("#")[0]).href;

export function address(path: string): string {
  return BASE + path.replace(/^\//, "");
}

export async function ask<T>(path: string, request: Request = {}): Promise<Answer<T>> {
  const headers: Record<string, string> = { ...request.headers };
  const used = token.value;
  if (used !== null) headers["Authorization"] = `Bearer ${used}`;
  if (request.body !== undefined) headers["Content-Type"] ??= "application/json";
  if (request.as === "lines") headers["Accept"] ??= "application/x-ndjson";
  let response: Response;
  let text: string;
  try {
    response = await fetch(address(path), {
      method: request.method ?? "GET",
      headers,
      body: request.body === undefined ? null : JSON.stringify(request.body),
      signal: request.signal ?? null,
      credentials: "omit",
      cache: "no-store",
    });
    text = await response.text();
  } catch (error) {
    if (request.signal?.aborted === true) throw error;
    if (unreachableSince.value === 0) unreachableSince.value = Date.now();
    throw new ApiError("The server does not answer.", 0, 0, "");
  }
  unreachableSince.value = 0;
  if (!response.ok) {
    const error = errorOf(response, text);
    if (response.status === 401 && used === token.value) onUnauthorized.call(error.message);
    throw error;
  }
  const body = request.as === "text" ? text : request.as === "lines" ? linesOf(text) : text === "" ? null : JSON.parse(text);
  return { body: body as T, headers: response.headers };
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return (await ask<T>(path, signal === undefined ? {} : { signal })).body;
}

export async function send<T = unknown>(method: string, path: string, body?: unknown, headers?: Record<string, string>): Promise<T> {
  const request: Request = { method };
  if (body !== undefined) request.body = body;
  if (headers !== undefined) request.headers = headers;
  return (await ask<T>(path, request)).body;
}

/** A path with its names escaped: path`/mq/v1/topics/${topic}`. */
export function path(strings: TemplateStringsArray, ...names: (string | number)[]): string {
  return strings.reduce((whole, piece, index) => whole + encodeURIComponent(names[index - 1]!) + piece);
}

/** "?a=1&b=2" of what is given. */
export function query(parameters: Record<string, string | number | boolean | null | undefined>): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== "");
  return given.length === 0 ? "" : "?" + new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString();
}

function errorOf(response: Response, text: string): ApiError {
  let fields: { message?: string; error_code?: number; details?: unknown; validation_errors?: string[] } = {};
  try {
    fields = JSON.parse(text) as typeof fields;
  } catch {
    // of something between us and the server
  }
  const message = fields.message ?? `HTTP ${response.status} ${response.statusText}`.trim();
  const rules = (fields.validation_errors ?? []).filter((rule) => !message.includes(rule));
  return new ApiError(
    [message, ...rules].join(" "),
    response.status,
    fields.error_code ?? response.status,
    response.headers.get("X-Request-Id") ?? "",
    fields.details,
  );
}

function linesOf(text: string): unknown[] {
  return text.split("\n").filter((line) => line !== "").map((line) => JSON.parse(line) as unknown);
}
