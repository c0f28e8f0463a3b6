/** Entry for Node: as `index.ts`, with a WebSocket of our own, and zlib's inflaters. */
import * as zlib from "node:zlib";
import { Client, type ConnectOptions } from "./client.js";
import { NodeSocket } from "./node_socket.js";
import type { Inflaters } from "./record_batch.js";

/** Of one batch. */
const INFLATED_BYTES_MAX = 256 * 1024 * 1024;

export * from "./index.js";

/** Connect to a server (`http://host:8082`, `wss://…`). Tries until it is reached, refused, or aborted. */
export function connect(url: string, options: ConnectOptions = {}): Promise<Client> {
  const inflaters = { ...ownInflaters(), ...options.inflaters };
  return new Client(url, { ...options, inflaters }, options.WebSocket ?? NodeSocket).open();
}

function ownInflaters(): Inflaters {
  const bound = { maxOutputLength: INFLATED_BYTES_MAX };
  const inflaters: Inflaters = { gzip: (bytes) => zlib.gunzipSync(bytes, bound) };
  const zstd = (zlib as unknown as { zstdDecompressSync?: typeof zlib.gunzipSync }).zstdDecompressSync;
  if (zstd !== undefined) inflaters.zstd = (bytes) => zstd(bytes, bound); // from Node 22.15 on
  return inflaters;
}
