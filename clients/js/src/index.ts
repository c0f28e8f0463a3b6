/** Entry for browsers, and for everything else that has a WebSocket of its own. */
import { Client, type ConnectOptions } from "./client.js";
import { MqError } from "./errors.js";
import type { SocketClass } from "./socket.js";

export { Client, type ConnectOptions } from "./client.js";
export type { ConnectionState, TokenSource } from "./connection.js";
export { Closed, ConnectionLost, MqError, QueueFull, Refused, Undecodable } from "./errors.js";
export type { Fields } from "./frames.js";
export { Http, type HttpOptions, type Recurring, type RecurringDefinition, type Schedule, type TopicInfo } from "./http.js";
export { Message } from "./message.js";
export type { ProduceRecord, ProducerOptions, Receipt } from "./producer.js";
export { RawRecord, type Header, type Inflate, type Inflaters } from "./record_batch.js";
export type { Socket, SocketClass } from "./socket.js";
export type { From, Mode, Start, SubscribeOptions } from "./options.js";
export type { Partitions } from "./places.js";
export { Subscription, type Item } from "./subscription.js";

/** Connect to a server (`http://host:8082`, `wss://…`). Tries until it is reached, refused, or aborted. */
export function connect(url: string, options: ConnectOptions = {}): Promise<Client> {
  const socketClass = options.WebSocket ?? (globalThis.WebSocket as unknown as SocketClass | undefined);
  if (socketClass === undefined) throw new MqError("there is no WebSocket here: give one in options.WebSocket");
  return new Client(url, options, socketClass).open();
}
