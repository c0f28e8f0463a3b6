import assert from "node:assert/strict";
import { test } from "node:test";
import { gunzipSync } from "node:zlib";
import { Undecodable } from "../build/errors.js";
import { decodeBatches } from "../build/record_batch.js";
import { batch, joined } from "./batches.mjs";
import { randomBytes, randomInt } from "./random.mjs";

const T = 1_795_000_000_000;

test("every field of a record comes out as it went in", () => {
  const records = [
    { key: "k1", value: '{"a":1}', timestamp: T, headers: [["mq-tag", "paid"], ["x", null], ["y", new Uint8Array([0, 255])]] },
    { key: null, value: "", timestamp: T + 5 },
    { key: "", value: null, timestamp: T - 300 },
    { key: new Uint8Array([255]), value: new Uint8Array(300).fill(7), timestamp: T + 86_400_000 * 400 },
  ];
  const read = decodeBatches(batch(2 ** 40, records), "t", 3, 0, {});
  assert.deepEqual(read.map(({ offset }) => offset), [0, 1, 2, 3].map((n) => 2 ** 40 + n));
  assert.deepEqual(read.map(({ timestamp }) => timestamp), records.map(({ timestamp }) => timestamp));
  assert.deepEqual(read.map(({ key }) => (key === null ? null : key.length)), [2, null, 0, 1]);
  assert.equal(read[0].keyText, "k1");
  assert.throws(() => read[3].keyText, TypeError);
  assert.deepEqual(read.map(({ value }) => (value === null ? null : value.length)), [7, 0, null, 300]);
  assert.deepEqual(read[0].json(), { a: 1 });
  assert.equal(read[2].json(), null);
  assert.throws(() => read[1].json(), SyntaxError);
  assert.equal(read[0].tag, "paid");
  assert.equal(read[1].tag, null);
  assert.deepEqual(read[0].headers.map(({ key, value }) => [key, value && [...value]]), [["mq-tag", [...Buffer.from("paid")]], ["x", null], ["y", [0, 255]]]);
  assert.ok(read.every(({ topic, partition }) => topic === "t" && partition === 3));
});

test("records below the offset asked for are left out, over several batches", () => {
  const value = (value) => ({ value, timestamp: T });
  const payload = joined(batch(10, [value("a"), value("b")]), batch(12, [value("c")]), batch(13, [value("d")]));
  assert.deepEqual(decodeBatches(payload, "t", 0, 11, {}).map(({ offset, valueText }) => [offset, valueText]), [[11, "b"], [12, "c"], [13, "d"]]);
  assert.deepEqual(decodeBatches(new Uint8Array(), "t", 0, 0, {}), []);
});

test("with log append time all records have the batch's", () => {
  const read = decodeBatches(batch(0, [{ value: "a", timestamp: T }, { value: "b", timestamp: T + 9 }], { isAppendTime: true }), "t", 0, 0, {});
  assert.deepEqual(read.map(({ timestamp }) => timestamp), [T + 9, T + 9]);
});

test("compressed batches are inflated in order, by what was given or by the platform", async () => {
  const payload = joined(batch(0, [{ value: "a" }], { compression: "gzip" }), batch(1, [{ value: "b" }]), batch(2, [{ value: "c" }], { compression: "gzip" }));
  for (const inflaters of [{}, { gzip: (bytes) => gunzipSync(bytes) }, { gzip: async (bytes) => gunzipSync(bytes) }]) {
    const read = decodeBatches(payload, "t", 0, 0, inflaters);
    assert.ok(read instanceof Promise);
    assert.deepEqual((await read).map(({ valueText }) => valueText), ["a", "b", "c"]);
  }
  await assert.rejects(decodeBatches(batch(0, [{ value: "a" }], { compression: "zstd" }), "t", 0, 0, {}), /zstd: give connect\(\) an inflater/);
  const unhandled = [];
  const note = (error) => unhandled.push(error);
  process.on("unhandledRejection", note);
  const torn = batch(1, [{ value: "b" }]).subarray(0, 20);
  assert.throws(() => decodeBatches(joined(batch(0, [{ value: "a" }], { compression: "zstd" }), torn), "t", 0, 0, {}), Undecodable);
  void decodeBatches(batch(0, [{ value: "a" }], { compression: "zstd" }), "t", 0, 0, {});
  await new Promise((resolve) => setTimeout(resolve, 10));
  process.off("unhandledRejection", note);
  assert.deepEqual(unhandled, []);
  const damaged = batch(0, [{ value: "a" }], { compression: "gzip" });
  damaged[61] ^= 0xff; // the first byte of the compressed records
  for (const inflaters of [{}, { gzip: (bytes) => gunzipSync(bytes) }, { gzip: async (bytes) => gunzipSync(bytes) }]) {
    await assert.rejects(decodeBatches(damaged, "t", 0, 0, inflaters), (error) => error instanceof Undecodable && /no gzip/.test(error.message));
  }
});

test("a batch that is cut anywhere, or whose numbers are wrong, is Undecodable and nothing else", () => {
  const whole = batch(0, [{ key: "k", value: "v".repeat(200), headers: [["a", "b"]] }, { value: "w" }]);
  for (let length = 1; length < whole.length; length++) {
    assert.throws(() => decodeBatches(whole.subarray(0, length), "t", 0, 0, {}), Undecodable, `cut at ${length}`);
  }
  assert.throws(() => decodeBatches(batch(0, [{ value: "v" }], { count: 1_000_000 }), "t", 0, 0, {}), Undecodable);
});

test("fuzz: 20,000 damaged batches are read or Undecodable, within the frame", () => {
  for (let round = 0; round < 20_000; round++) {
    const records = Array.from({ length: 1 + randomInt(4) }, () => ({ key: randomBytes(randomInt(5)), value: randomBytes(randomInt(200)), timestamp: T }));
    const damaged = batch(randomInt(1000), records);
    for (let flips = 1 + randomInt(4); flips > 0; flips--) damaged[randomInt(damaged.length)] = randomInt(256);
    let read;
    try {
      read = decodeBatches(damaged, "t", 0, 0, {});
    } catch (error) {
      assert.ok(error instanceof Undecodable, String(error));
      continue;
    }
    if (read instanceof Promise) read.catch((error) => assert.ok(error instanceof Error));
    else for (const record of read) assert.ok((record.value?.length ?? 0) <= damaged.length && (record.key?.length ?? 0) <= damaged.length);
  }
});
