/** How long to wait before the next connection, and whether there is to be one. Pure. */

const FIRST_MS = 250;
const LONGEST_MS = 30_000;

/** Full jitter: anything from 0 to twice the last bound, so that clients of a restarted server come back spread out. */
export function waitMs(failures: number, random: () => number = Math.random): number {
  return random() * Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 20));
}

/** Whether a connection that was closed with this code may be tried again. */
export function mayReconnect(code: number): boolean {
  if (code >= 4500) return false;
  // 1003, 1007 and 1009 are about what this client sent: it would send the same again. 1002 too.
  return code !== 1002 && code !== 1003 && code !== 1007 && code !== 1009;
}
