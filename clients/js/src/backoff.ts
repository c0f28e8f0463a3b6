/** How long to wait before the next connection, and whether there is to be one. Pure. */

const FIRST_MS = 250;
const LONGEST_MS = 30_000;

/**
 * Anything from 0 to a bound that doubles with each failure, 0.5 s to 30 s: evenly spread ("full jitter"), so that the
 * clients of a restarted server do not all come back at once.
 */
export function waitMs(failures: number, random: () => number = Math.random): number {
  return random() * Math.min(LONGEST_MS, FIRST_MS * 2 ** Math.min(failures, 20));
}

/** Whether a connection that was closed with this code may be tried again. */
export function mayReconnect(code: number): boolean {
  if (code >= 4500) return false;
  // These are about what this client sent: it would send the same again.
  return code !== 1002 && code !== 1003 && code !== 1007 && code !== 1009;
}
