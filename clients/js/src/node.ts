/** Entry for Node: as `index.ts`, with a WebSocket of our own, and zlib's inflaters. */
import * as zlib from "node:zlib";
import { Client, type ConnectOptions } from "./client.js";
import { NodeSocket } from "./node_socket.js";
import type { Inflaters } from "./record_batch.js";

export * from "./index.js";

/** Connect to a server (`http://host:8082`, `wss://…`). Tries until it is reached, refused, or aborted. */
export function connect(url: string, options: ConnectOptions = {}): Promise<Client> {
  const inflaters = { ...ownInflaters(), ...options.inflaters };
  return new Client(url, { ...options, inflaters }, options.WebSocket ?? NodeSocket).open();
}

function ownInflaters(): Inflaters {
  const inflaters: Inflaters = { gzip: (bytes) => zlib.gunzipSync(bytes) };
  const zstd = (zlib as unknown as { zstdDecompressSync?: (bytes: Uint8Array) => Uint8Array }).zstdDecompressSync;
  if (zstd !== undefined) inflaters.zstd = zstd; // from Node 22.15 on
  return inflaters;
}
