/**
 * What can go wrong, by what a caller can do about it.
 *
 *     MqError
 *     ├── Refused          the server said no: `code` and `message` say why, `retriable` whether it may work later
 *     ├── ConnectionLost   the connection went before the answer came; whether the command was done is unknown
 *     ├── QueueFull        too much waits to be sent: nothing was done; wait for `client.room()`
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
    /** Whether the same may work later. */
    readonly retriable: boolean,
    readonly details?: unknown,
    /** One text for each part that breaks a rule. */
    readonly validationErrors: readonly string[] = [],
    readonly retryAfterMs?: number,
  ) {
    super(message);
  }

  /** @internal */
  static of(frame: Record<string, unknown>): Refused {
    const rules = frame["validation_errors"];
    const retryAfterMs = frame["retry_after_ms"];
    return new Refused(
      String(frame["message"] ?? frame["error"] ?? "refused"),
      Number(frame["error_code"] ?? 500),
      frame["retriable"] === true,
      frame["details"],
      Array.isArray(rules) ? rules.map(String) : [],
      typeof retryAfterMs === "number" ? retryAfterMs : undefined,
    );
  }
}

export class ConnectionLost extends MqError {
  override name = "ConnectionLost";
}

export class QueueFull extends MqError {
  override name = "QueueFull";
}

/** `code` is the close code of the connection; 1000 when it was closed here. */
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
