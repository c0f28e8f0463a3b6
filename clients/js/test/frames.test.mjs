import assert from "node:assert/strict";
import { test } from "node:test";
import { Undecodable } from "../build/errors.js";
import { binaryFrame, countOf, fromBase64, readFrame, toBase64 } from "../build/frames.js";
import { Window } from "../build/window.js";
import { Places, readCursor } from "../build/places.js";
import { randomBytes, randomInt } from "./random.mjs";

test("a binary frame is read as it was written", () => {
  const frame = binaryFrame('{"a":"é"}', [new Uint8Array([1, 2]), new Uint8Array(), new Uint8Array([3])]);
  assert.deepEqual([...frame.subarray(0, 4)], [0, 0, 0, 10]);
  const { fields, payload } = readFrame(frame);
  assert.deepEqual(fields, { a: "é" });
  assert.deepEqual([...payload], [1, 2, 3]);
  const buffer = new Uint8Array([9, 9, ...frame]).subarray(2); // a view that does not begin its buffer
  assert.deepEqual([...readFrame(buffer).payload], [1, 2, 3]);
  assert.deepEqual([...readFrame(frame.buffer).payload], [1, 2, 3]);
});

test("base64 both ways, beyond what one call can take", () => {
  for (const length of [0, 1, 2, 3, 0x8000, 0x8001, 200_000]) {
    const bytes = randomBytes(length);
    const written = toBase64(bytes);
    assert.equal(written, Buffer.from(bytes).toString("base64"));
    assert.deepEqual(fromBase64(written), bytes);
  }
});

test("counts are whole numbers from 0 to 2^53 - 1", () => {
  for (const good of [0, 1, 2 ** 53 - 1]) assert.equal(countOf(good), good);
  for (const bad of [-1, 0.5, 2 ** 53, NaN, Infinity, "1", null, undefined, {}]) assert.throws(() => countOf(bad), Undecodable);
});

test("a cursor is read as the server writes it", () => {
  assert.deepEqual(readCursor("a.b-c:0=101;%DLQ%g:12=0"), [
    { topic: "a.b-c", partition: 0, offset: 101 },
    { topic: "%DLQ%g", partition: 12, offset: 0 },
  ]);
  assert.deepEqual(readCursor(""), []);
  assert.deepEqual(readCursor(undefined), []);
  for (const bad of ["a", "a:0", "a:0=", "a:x=1", "a:0=1;", "a:0=-1", "a:0=9007199254740993", 7]) assert.throws(() => readCursor(bad), Undecodable);
});

test("a window never grants more than its size, and loses no credit, whatever happens", () => {
  for (let round = 0; round < 300; round++) {
    const size = 1 + randomInt(50);
    const window = new Window(size);
    let left = window.opened(); // what the server has left
    let onTheWay = 0;
    let held = 0;
    for (let step = 0; step < 200; step++) {
      const amount = 1 + randomInt(10);
      switch (randomInt(6)) {
        case 0: {
          const sent = Math.min(amount, left);
          left -= sent;
          onTheWay += sent;
          break;
        }
        case 1:
          window.received(onTheWay);
          held += onTheWay;
          onTheWay = 0;
          break;
        case 2: {
          const taken = Math.min(amount, held);
          window.taken(taken);
          held -= taken;
          if (window.isDue) left += window.returned();
          break;
        }
        case 3: // the session was resumed: what was on its way counts as never sent, and a permit may have been lost
          if (held < size && randomInt(2) === 0) window.returned();
          left += onTheWay;
          onTheWay = 0;
          window.resumed(left);
          left += window.returned();
          break;
        case 4: // a new subscription
          onTheWay = 0;
          left = window.opened();
          break;
      }
      assert.ok(left + onTheWay + held <= size, "K1");
    }
    window.received(onTheWay);
    window.taken(held + onTheWay);
    left += window.isDue ? window.returned() : 0;
    assert.ok(left * 2 > size || left === size, "with nothing held the server can send again");
  }
});

test("a place goes on after a lost session where the consumer is, and goes back when the group was set back", () => {
  const places = new Places();
  const place = places.set("t", 0, 10);
  Object.assign(place, { next: 50, given: 40, done: 35, committed: 30 });
  place.rejoin(30); // the last commit was lost: 30 to 39 were given
  assert.deepEqual([place.next, place.given, place.done, place.committed], [30, 40, 35, 30]);
  Object.assign(place, { next: 50 });
  place.rejoin(38); // an ack that came without its answer
  assert.deepEqual([place.given, place.done, place.committed], [40, 38, 38]);
  place.rejoin(60); // another member was there meanwhile
  assert.deepEqual([place.next, place.given, place.done, place.committed], [60, 60, 60, 60]);
  place.rejoin(5); // set back by an operator: 5 is below what was committed
  assert.deepEqual([place.next, place.given, place.done, place.committed], [5, 5, 5, 5]);
  assert.equal(places.cursor((one) => one.next), "t:0=5");
});
