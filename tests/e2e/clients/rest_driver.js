// Drives npm's kafka-rest, Confluent's own client of REST Proxy v1: a script of its own, see test_clients.py.
// usage: node rest_driver.js URL TOPIC

"use strict";

const KafkaRest = require("kafka-rest");

const [url, topic] = process.argv.slice(2);
const client = new KafkaRest({ url });
const call = (object, method, ...rest) =>
  new Promise((resolve, reject) => object[method](...rest, (error, answer) => (error ? reject(error) : resolve(answer))));
const check = (holds, what) => {
  if (!holds) throw new Error(what);
};

async function produce(from, to) {
  const values = [];
  for (let number = from; number < to; number++) values.push({ key: "k", value: String(number) });
  await call(client.topic(topic), "produce", values);
}

function read(stream, count) {
  return new Promise((resolve, reject) => {
    const values = [];
    const take = (messages) => {
      for (const message of messages) values.push(Number(message.value.toString()));
      if (values.length >= count) {
        stream.removeListener("data", take);
        stream.pause();
        resolve(values);
      }
    };
    stream.on("data", take);
    stream.on("error", reject);
    stream.resume();
  });
}

const same = (values, from, to) =>
  values.length === to - from && values.sort((a, b) => a - b).every((value, at) => value === from + at);

async function main() {
  check((await call(client.brokers, "list")).length === 1, "one broker");
  check((await call(client.topics, "list")).some((found) => found.name === topic), "the topic is listed");
  check((await call(client.topic(topic).partitions, "list")).length === 2, "two partitions");
  await produce(0, 10);
  const options = { format: "binary", "auto.offset.reset": "smallest", "auto.commit.enable": "false" };
  const instance = await call(client.consumer("rest"), "join", options);
  const stream = instance.subscribe(topic, { requestDelay: 50 });
  check(same(await read(stream, 10), 0, 10), "all that was sent");
  await call(instance, "commit");
  console.log("restart");
  await new Promise((resolve) => process.stdin.once("data", resolve));
  await produce(10, 20);
  const again = instance.subscribe(topic, { requestDelay: 50 });
  const values = [...new Set(await read(again, 10))];
  check(same(values, 10, 20), "and what was sent after the restart: " + values);
  await call(instance, "commit");
  console.log("done");
  process.exit(0);
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
