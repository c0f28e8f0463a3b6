// KafkaJS for tests/e2e/test_kafka_clients.py: lines in, what is acknowledged or consumed out.
//
//     kafka_lines.js produce ADDRESS TOPIC         sends each line of standard input; prints it when it is acknowledged
//     kafka_lines.js consume ADDRESS TOPIC GROUP   prints what it consumes, until it is killed

const readline = require("node:readline");
const { Kafka, logLevel } = require("kafkajs");

const [way, address, topic, group] = process.argv.slice(2);
const retry = { initialRetryTime: 100, maxRetryTime: 1000, retries: 60 };
const kafka = new Kafka({ clientId: "lines", brokers: [address], logLevel: logLevel.NOTHING, retry });

async function produce() {
  // Its idempotent producer repeats a request that failed with its numbers only when no other send takes them meanwhile,
  // and no partition is chosen anew for its records: so one send at a time, and a partitioner that repeats its choice.
  // A send has one partition: of several it would resolve without having sent those whose leader moves, while it is
  // under way, to a broker that has answered for another of them (it remembers answers by broker, not by partition).
  let sends = 0;
  const createPartitioner = () => ({ partitionMetadata }) => sends % partitionMetadata.length;
  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1, createPartitioner });
  await producer.connect();
  let waiting = [];
  let ended = false;
  readline
    .createInterface({ input: process.stdin })
    .on("line", (line) => waiting.push(line))
    .on("close", () => (ended = true));
  while (!ended || waiting.length) {
    const lines = waiting.splice(0, 500);
    if (!lines.length) {
      await new Promise((resolve) => setTimeout(resolve, 5));
      continue;
    }
    await producer.send({ topic, acks: -1, messages: lines.map((line) => ({ key: line, value: line })) });
    sends += 1;
    process.stdout.write(lines.join("\n") + "\n");
  }
  await producer.disconnect();
}

async function consume() {
  const consumer = kafka.consumer({ groupId: group, sessionTimeout: 6000, heartbeatInterval: 500, retry });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  await consumer.run({
    autoCommitInterval: 200,
    eachMessage: async ({ message }) => process.stdout.write(message.value + "\n"),
  });
}

(way === "produce" ? produce() : consume()).catch((error) => {
  console.error(error);
  process.exit(1);
});
