/**
 * An application in JavaScript that uses one node of a cluster: it sends, reads, works a queue and asks over HTTP, until
 * its input has the line `over`, and reads and works on until all is done when its input ends; then it prints what it
 * saw as one line of JSON. Whatever reaches it as an error is in `errors`. A line with a number is answered by `gone on`
 * when so many more of its sends, and of what it asks, have been answered, or something has failed.
 *
 *     node rolling_client.mjs <the client's module> <url> <topic> <group> <name> <partitions> <retryMs>
 */
import { createInterface } from "node:readline";

const [module, url, topic, group, name, partitions, retryMs] = process.argv.slice(2);
const { connect } = await import(module);

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const seen = { sent: [], read: [], worked: [], asked: 0, errors: [] };
const failed = (what) => (error) => void seen.errors.push(`${name} ${what}: ${error?.stack ?? error}`);

const mq = await connect(url, { idempotent: true, retryMs: Number(retryMs) });
let isOver = false;
const input = createInterface({ input: process.stdin });
input.on("line", (line) => (line === "over" ? (isOver = true) : goOn(Number(line))));
const allStopped = new Promise((resolve) => input.on("close", resolve));

async function goOn(more) {
  const [sent, asked] = [seen.sent.length + more, seen.asked + more];
  while (!seen.errors.length && (seen.sent.length < sent || seen.asked < asked)) await sleep(20);
  console.log("gone on");
}

async function send() {
  for (let number = 0; !isOver; number++) {
    const value = `${name}-${number}`;
    const partition = number % Number(partitions);
    const begun = performance.now();
    const receipt = await mq.produce(topic, { value, partition });
    seen.sent.push([value, receipt.partition, receipt.offset, begun, performance.now()]);
    await sleep(20);
  }
}

async function ask() {
  while (!isOver) {
    await mq.http.topic(topic);
    seen.asked++;
    await sleep(100);
  }
}

const reader = mq.subscribe({
  topics: topic,
  from: "earliest",
  onMessage: ({ partition, offset, value }) => void seen.read.push([partition, offset, value]),
  onEnd: (error) => error && failed("reader")(error),
});
const worker = mq.subscribe({
  topics: topic,
  group,
  mode: "queue",
  start: "earliest",
  concurrency: 20,
  onMessage: ({ partition, offset, value }) => void seen.worked.push([partition, offset, value]),
  onEnd: (error) => error && failed("worker")(error),
});
await Promise.all([reader.ready, worker.ready]).catch(failed("ready"));
console.log("ready");
await Promise.all([send().catch(failed("send")), ask().catch(failed("ask"))]);
console.log("stopped");
await allStopped;

// What there is now is read, and worked on.
const { partitions: ends } = await mq.http.offsets(topic).catch((error) => (failed("offsets")(error), { partitions: [] }));
const total = ends.reduce((sum, { end_offset: end }) => sum + end, 0);
const isDone = () => [seen.read, seen.worked].every((rows) => new Set(rows.map(([partition, offset]) => `${partition}:${offset}`)).size >= total);
for (const until = Date.now() + Number(retryMs); !isDone() && Date.now() < until; await sleep(50));
if (!isDone()) failed("end")(`${seen.read.length} read and ${seen.worked.length} worked on, of ${total}`);
await mq.close();
process.stdout.write(`${JSON.stringify(seen)}\n`, () => process.exit(0)); // a pipe takes 64 KiB at a time
