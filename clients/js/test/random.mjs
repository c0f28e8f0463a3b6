/** Chance that can be repeated: MQ_SEED=<n> runs the same again. */
const seed = Number(process.env["MQ_SEED"] ?? Math.floor(Math.random() * 2 ** 31));
let state = seed;
process.on("exit", (code) => {
  if (code !== 0) console.error(`repeat with MQ_SEED=${seed}`);
});

/** From 0 up to, not including, `bound` (mulberry32). */
export function randomInt(bound) {
  state = (state + 0x6d2b79f5) | 0;
  let mixed = Math.imul(state ^ (state >>> 15), state | 1);
  mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
  return Math.floor((((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32) * bound);
}

export function randomBytes(length) {
  return Uint8Array.from({ length }, () => randomInt(256));
}

export function pick(list) {
  return list[randomInt(list.length)];
}
