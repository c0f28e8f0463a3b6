/** The part of the standard WebSocket that this client uses. `node.ts` has another one for Node. */
export interface Socket {
  binaryType: string;
  readonly bufferedAmount: number;
  onopen: ((event: any) => void) | null;
  onmessage: ((event: { data: any }) => void) | null;
  onclose: ((event: { code: number; reason: string }) => void) | null;
  onerror: ((event: any) => void) | null;
  send(data: string | Uint8Array): void;
  close(code?: number, reason?: string): void;
}

export type SocketClass = new (url: string, protocols: string[]) => Socket;
