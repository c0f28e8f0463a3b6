/** A program that uses the package as others do. It is compiled, strictly, against what `npm pack` ships; never run. */
import {
  Client, Closed, connect, ConnectionLost, Message, MqError, QueueFull, RawRecord, Refused, Subscription, Undecodable,
  type ConnectionState, type ConnectOptions, type ProduceRecord, type Receipt, type SubscribeOptions,
} from "mq-client";

const states: ConnectionState[] = [];
const options: ConnectOptions = { token: async () => "t", binary: true, onState: (state, reason: Error | null) => void states.push(state) };
const mq: Client = await connect("http://127.0.0.1:8082", options);
const record: ProduceRecord = { key: "k", value: { a: 1 }, headers: { h: "v" }, delayMs: 5 };
const one: Receipt = await mq.produce("t", record);
const several: Receipt[] = await mq.produce("t", [record, { value: null }]);
const place: [number, number | null, string | null] = [one.partition, several[0]!.offset, one.scheduleId];

const how: SubscribeOptions = { topics: ["t"], group: "g", mode: "queue", onMessage: async (message) => void (await message.ack()) };
const queue: Subscription = mq.subscribe(how);
for await (const message of mq.subscribe({ topics: "t" })) {
  const typed: Message = message;
  const time: number = typed.timestamp;
  await message.nack({ delayMs: time, reason: typed.key });
}
const raw: Subscription<RawRecord> = mq.subscribe({ topics: "t", format: "batch" });
for await (const records of raw.batches()) for (const { value, tag } of records) console.log(value?.length, tag?.length, place);
// @ts-expect-error: a raw record has no receipt
mq.subscribe({ topics: "t", format: "batch", onMessage: (message) => message.ack() });
// @ts-expect-error: no such mode
mq.subscribe({ topics: "t", mode: "lazy" });

try {
  await mq.http.createTopic("t", 3);
  const { schedules } = await mq.http.schedules({ topic: "t" });
  for (const { schedule_id, deliver_at } of schedules) console.log(schedule_id.length, deliver_at + 1);
} catch (error) {
  if (error instanceof Refused) console.log(error.code + 1, error.retriable, error.validationErrors.length);
  else if (error instanceof ConnectionLost || error instanceof QueueFull || error instanceof Undecodable) console.log(error.message);
  else if (error instanceof Closed) console.log(error.code + 1);
  else if (error instanceof MqError) throw error;
}
await queue.close();
await mq.close();
