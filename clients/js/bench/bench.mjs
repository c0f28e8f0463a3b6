/**
 * How fast the client is: alone, against a server that only replays frames (bench/stub.mjs), and with a real server.
 *
 *     node bench/bench.mjs [--records 1000000] [--json FILE] [--stub-only]
 *
 * Each way is measured after a warm-up, several times; the median counts. Beside the rate by the clock stands the rate by
 * the client's own CPU time: what it would do if it had a core for itself and never waited for the other side.
 */
import { fork } from "node:child_process";
import { once } from "node:events";
import { writeFileSync } from "node:fs";
import { cpus } from "node:os";
import { parseArgs } from "node:util";
import { connect } from "../dist/node.js";
import { Server } from "../e2e/server.mjs";

const { values: args } = parseArgs({
  options: { records: { type: "string", default: "1000000" }, rounds: { type: "string", default: "5" }, json: { type: "string" }, "stub-only": { type: "boolean", default: false } },
});
const RECORDS = Number(args.records);
const ROUNDS = Number(args.rounds);
const VALUE = "v".repeat(98);
const GOALS = { "consume JSON frames": 300_000, "consume raw batches": 1_000_000, "produce, batched": 200_000 };

const median = (list) => list.toSorted((a, b) => a - b)[list.length >> 1];

/** Rates of `run`, which handles `count` records: by the clock, and by this process's CPU time. */
async function measure(count, run) {
  const walls = [];
  const cpuTimes = [];
  for (let round = 0; round <= ROUNDS; round++) {
    const cpu = process.cpuUsage();
    const began = performance.now();
    const done = await run(round);
    if (done < count) throw new Error(`${done} of ${count}`);
    const wallS = (performance.now() - began) / 1000;
    const { user, system } = process.cpuUsage(cpu);
    if (round === 0) continue; // warm-up
    walls.push(done / wallS);
    cpuTimes.push(done / ((user + system) / 1e6));
  }
  return { wall: Math.round(median(walls)), cpu: Math.round(median(cpuTimes)) };
}

/** Ways to take messages; all must look at each value. */
const ways = {
  "for await": async (subscription, count) => {
    let taken = 0;
    let bytes = 0;
    for await (const message of subscription) {
      bytes += message.value.length;
      if (++taken === count) break;
    }
    return bytes > 0 ? taken : 0;
  },
  batches: async (subscription, count) => {
    let taken = 0;
    let bytes = 0;
    for await (const messages of subscription.batches()) {
      for (const message of messages) bytes += message.value.length;
      if ((taken += messages.length) >= count) break;
    }
    return bytes > 0 ? taken : 0;
  },
};

const callback = (mq, options, count) =>
  new Promise((resolve, reject) => {
    let taken = 0;
    let bytes = 0;
    const subscription = mq.subscribe({
      ...options,
      onMessage: (message) => {
        bytes += message.value.length;
        if (++taken === count) void subscription.close().then(() => resolve(bytes > 0 ? taken : 0));
      },
      onEnd: (error) => error && reject(error),
    });
  });

async function produce(mq, topic, count) {
  const sends = [];
  for (let n = 0; n < count; n++) {
    if (mq.isFull) await mq.room();
    sends.push(mq.produce(topic, { key: `k${n % 1000}`, value: VALUE }));
  }
  return (await Promise.all(sends)).length;
}

const results = [];
function report(side, what, how, rates, goal) {
  results.push({ side, what, how, ...rates, goal: goal ?? null });
  const per = (rate) => `${rate.toLocaleString("en").padStart(11)}/s`;
  console.log(`${side.padEnd(12)} ${what.padEnd(20)} ${how.padEnd(10)} ${per(rates.wall)} ${per(rates.cpu)}${goal ? `  goal ${goal.toLocaleString("en")}: ${Math.max(rates.cpu, rates.wall) >= goal ? "reached" : "MISSED"}` : ""}`);
}

async function both(side, url, topics, count, isFixed) {
  for (const [kind, what] of [["json", "consume JSON frames"], ["batch", "consume raw batches"]]) {
    const options = { topics: topics[kind], from: "earliest", ...(kind === "batch" ? { format: "batch" } : {}) };
    const total = count[kind];
    for (const how of ["for await", "callback", "batches"]) {
      const rates = await measure(total, async () => {
        const mq = await connect(url, { binary: kind === "batch" });
        const done = how === "callback" ? await callback(mq, options, total) : await ways[how](mq.subscribe(options), total);
        await mq.close();
        return done;
      });
      report(side, what, how, rates, how === "batches" ? GOALS[what] : undefined);
    }
  }
  for (const idempotent of [false, true]) {
    const rates = await measure(count.produce, async () => {
      const mq = await connect(url, { idempotent });
      const done = await produce(mq, topics.produce, count.produce);
      await mq.close();
      return done;
    });
    report(side, "produce, batched", idempotent ? "with ids" : "each", rates, idempotent ? undefined : GOALS["produce, batched"]);
  }
}

const { model } = cpus()[0];
console.log(`Node ${process.version}, ${cpus().length} × ${model}; values of 100 bytes\n${" ".repeat(44)} ${"by the clock".padStart(13)} ${"by its CPU".padStart(13)}`);

const stub = fork(new URL("stub.mjs", import.meta.url), { stdio: "inherit" });
const [port] = await once(stub, "message");
const jsonCount = Math.floor(RECORDS / 2 / 256) * 256;
const batchCount = Math.floor(RECORDS / 2000) * 2000;
for (const [kind, count] of [["json", jsonCount], ["batch", batchCount]]) {
  stub.send([kind, count]);
  await once(stub, "message");
}
await both("client alone", `http://127.0.0.1:${port}`, { json: `json-${jsonCount}`, batch: `batch-${batchCount}`, produce: "p" }, { json: jsonCount, batch: batchCount, produce: RECORDS / 5 });
stub.disconnect();

if (!args["stub-only"]) {
  // More ids than a server remembers by default: it would tell the client to wait until some are ten minutes old.
  const server = await new Server([], { MQ_STORE_DEDUP_IDS_MAX: "10000000" }).start();
  try {
    const count = RECORDS / 5;
    const mq = await connect(server.url);
    await mq.http.createTopic("bench", 1);
    await mq.http.createTopic("sink", 1);
    await produce(mq, "bench", count);
    await mq.close();
    await both("with server", server.url, { json: "bench", batch: "bench", produce: "sink" }, { json: count, batch: count, produce: count });
  } finally {
    await server.end();
  }
}
if (args.json !== undefined) {
  writeFileSync(args.json, `${JSON.stringify({ node: process.version, cpu: model, cores: cpus().length, records: RECORDS, results }, null, 2)}\n`);
  const rate = (number) => number.toLocaleString("en");
  const rows = results.map(({ side, what, how, wall, cpu, goal }) => `| ${side} | ${what} | ${how} | ${rate(wall)} | ${rate(cpu)} | ${goal === null ? "" : rate(goal)} |`);
  const text = `# The JavaScript client

Made by \`make bench-js\`: Node ${process.version}, ${cpus().length} × ${model}, values of 100 bytes, records a second, median of ${ROUNDS} rounds.
*Alone* is against a process that only replays frames; *by its CPU* is by the client's own CPU time: what it would do with a
core for itself, never waiting for the other side.

| | | | by the clock | by its CPU | goal |
|---|---|---|---|---|---|
${rows.join("\n")}
`;
  writeFileSync(args.json.replace(/json$/, "md"), text);
}
