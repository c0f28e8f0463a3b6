import assert from "node:assert/strict";
import { test } from "node:test";
import { ConnectionLost, Refused } from "../build/errors.js";
import { Http } from "../build/http.js";

/** Helpers over a fetch that records what it was asked. */
function recorded(answers = { status: 200, body: "{}" }, options = {}) {
  const asked = [];
  const left = [answers].flat();
  const fetch = async (url, { method, headers, body }) => {
    asked.push({ method, url, headers, body: body && JSON.parse(body) });
    const answer = left.length > 1 ? left.shift() : left[0];
    if (answer instanceof Error) throw answer;
    return new Response(answer.status === 204 ? null : answer.body, { status: answer.status, headers: answer.headers });
  };
  return { asked, http: new Http({ url: "ws://host:8082/ws/v1", fetch, retryMs: 0, ...options }) };
}

test("each helper asks its route, with names escaped", async () => {
  const { http, asked } = recorded();
  await http.topics();
  await http.topic("a/b");
  await http.createTopic("t", 3);
  await http.offsets("t", 5);
  await http.schedules({ topic: "t", limit: 2 });
  await http.schedule("s", true);
  await http.moveSchedule("s", { delayMs: 5 });
  await http.moveSchedule("s", { deliverAt: "2030-01-01T00:00:00Z" });
  await http.fireSchedule("s");
  await http.schedule("k/1", false, "t");
  await http.moveSchedule("k/1", { delayMs: 5 }, "t");
  await http.fireSchedule("k/1", "t");
  await http.cancelSchedule("k/1", "t");
  await http.recurring({ topic: "t", include: "record" });
  await http.recurringSchedule("r.1");
  await http.putRecurring("r.1", { topic: "t", record: { value: 1 }, cron: "@daily", tz: "Europe/Berlin" });
  await http.pauseRecurring("r.1");
  await http.resumeRecurring("r.1");
  await http.deleteRecurring("r.1");
  await http.groups();
  await http.group("%DLQ%g");
  await http.lag("g");
  await http.configureGroup("g", { max_attempts: 3 });
  await http.resetOffsets("g", { topic: "t", to: "earliest" });
  await http.redrive("g", 10);
  assert.deepEqual(asked.map(({ method, url, body }) => [method, url.replace("http://host:8082/mq/v1/", ""), body]), [
    ["GET", "topics", undefined],
    ["GET", "topics/a%2Fb", undefined],
    ["PUT", "topics/t", { partitions: 3 }],
    ["GET", "topics/t/offsets?timestamp=5", undefined],
    ["GET", "schedules?topic=t&limit=2", undefined],
    ["GET", "schedules/s?include=value", undefined],
    ["PATCH", "schedules/s", { delay_ms: 5 }],
    ["PATCH", "schedules/s", { deliver_at: "2030-01-01T00:00:00Z" }],
    ["POST", "schedules/s:fire", undefined],
    ["GET", "schedules/k%2F1?topic=t", undefined],
    ["PATCH", "schedules/k%2F1?topic=t", { delay_ms: 5 }],
    ["POST", "schedules/k%2F1:fire?topic=t", undefined],
    ["DELETE", "schedules/k%2F1?topic=t", undefined],
    ["GET", "recurring?topic=t&include=record", undefined],
    ["GET", "recurring/r.1", undefined],
    ["PUT", "recurring/r.1", { topic: "t", record: { value: 1 }, cron: "@daily", tz: "Europe/Berlin" }],
    ["POST", "recurring/r.1:pause", undefined],
    ["POST", "recurring/r.1:resume", undefined],
    ["DELETE", "recurring/r.1", undefined],
    ["GET", "groups", undefined],
    ["GET", "groups/%25DLQ%25g", undefined],
    ["GET", "groups/g/lag", undefined],
    ["PATCH", "groups/g", { max_attempts: 3 }],
    ["POST", "groups/g/offsets:reset", { topic: "t", to: "earliest" }],
    ["POST", "groups/g/dlq:redrive", { max_messages: 10 }],
  ]);
});

test("a token goes along, from wherever it comes", async () => {
  const { http, asked } = recorded(undefined, { token: async () => "secret" });
  await http.topics();
  assert.equal(asked[0].headers.Authorization, "Bearer secret");
});

test("refusals are Refused with the server's code, also those of something between", async () => {
  const own = await recorded({ status: 409, body: '{"error_code":40950,"message":"delivered already","retriable":false}' }).http.cancelSchedule("s").catch((e) => e);
  assert.ok(own instanceof Refused && own.code === 40950 && own.message === "delivered already");
  const proxy = await recorded({ status: 502, body: "<html>bad gateway" }).http.topics().catch((e) => e);
  assert.ok(proxy instanceof Refused && proxy.code === 502 && /bad gateway/.test(proxy.message));
  assert.equal(await recorded({ status: 204 }).http.deleteTopic("t"), null);
  assert.equal(await recorded({ status: 204 }).http.deleteGroup("g"), null);
});

test("no answer is ConnectionLost; an abort is the platform's own error", async () => {
  await assert.rejects(recorded(new TypeError("fetch failed", { cause: new Error("ECONNREFUSED") })).http.topics(), (error) => error instanceof ConnectionLost && /GET \/mq\/v1\/topics: .*ECONNREFUSED/.test(error.message));
  const aborted = recorded(new DOMException("aborted", "AbortError"), { signal: AbortSignal.abort() });
  await assert.rejects(aborted.http.topics(), { name: "AbortError" });
});

test("what was not done for now, and looks that nobody answered, are asked again", async () => {
  const busy = { status: 503, body: '{"error_code":50301,"message":"it moves","retriable":true}', headers: { "Retry-After": "0" } };
  const done = { status: 200, body: '{"done":true}' };
  const lost = new TypeError("fetch failed");
  const retryMs = 30_000;
  for (const [first, ask] of [[busy, (http) => http.redrive("g")], [lost, (http) => http.topics()]]) {
    const { http, asked } = recorded([first, done], { retryMs });
    assert.deepEqual(await ask(http), { done: true });
    assert.equal(asked.length, 2);
  }
  const never = { status: 503, body: '{"error_code":50301,"message":"for good","retriable":false}' };
  for (const first of [never, lost]) {
    const { http, asked } = recorded([first, done], { retryMs });
    await assert.rejects(http.redrive("g"));
    assert.equal(asked.length, 1);
  }
  const { http, asked } = recorded({ ...busy, headers: { "Retry-After": "60" } }, { retryMs });
  await assert.rejects(http.topics(), (error) => error.retryAfterMs === 60_000);
  assert.equal(asked.length, 1, "it has said that there is no sense in it");
});
