/**
 * What can go wrong, by what a caller can do about it.
 *
 *     MqError
 *     ├── Refused          the server said no: `code` and `message` say why, `retriable` whether it may work later
 *     ├── ConnectionLost   the connection went before the answer came; whether the command was done is unknown
 *     ├── Closed           this client, or this subscription, is closed for good
 *     └── Undecodable      bytes that are not what the protocol says
 */
export class MqError extends Error {
  override name = "MqError";
}

/** The server's own refusal. `code` is the HTTP status, or five digits that begin with it. */
export class Refused extends MqError {
  override name = "Refused";
  constructor(
    message: string,
    readonly code: number,
    readonly retriable: boolean,
    readonly details?: unknown,
    readonly retryAfterMs?: number,
  ) {
    super(message);
  }

  /** @internal */
  static of(frame: Record<string, unknown>): Refused {
    return new Refused(
      String(frame["message"] ?? frame["error"] ?? "refused"),
      Number(frame["error_code"] ?? 500),
      frame["retriable"] === true,
      frame["details"] ?? frame["validation_errors"],
      typeof frame["retry_after_ms"] === "number" ? frame["retry_after_ms"] : undefined,
    );
  }
}

export class ConnectionLost extends MqError {
  override name = "ConnectionLost";
}

/** `code` is the close code of the connection; 1000 when `close` was called here. */
export class Closed extends MqError {
  override name = "Closed";
  constructor(
    message: string,
    readonly code = 1000,
  ) {
    super(message);
  }
}

export class Undecodable extends MqError {
  override name = "Undecodable";
}
