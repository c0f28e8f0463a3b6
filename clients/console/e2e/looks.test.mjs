/** How pages look: each in both themes, wide and on a phone, without a finding of axe; alarms, months in which the clocks change, the API's reference. */
import assert from "node:assert/strict";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { after, before, test } from "node:test";
import { Api, Server, Tab, browser, libfaketime, skip } from "./console.mjs";

let open;
let api;

before(async () => {
  if (browser === null) return;
  open = await new Server([], { MQ_STORE_INDEX: "rocksdb" }).start();
  api = new Api(open.url);
  await api.topic("orders", { partitions: 4 });
  await api.topic("events");
  await api.send("orders", Array.from({ length: 60 }, (_, n) => ({ key: `u${n % 7}`, value: { sku: n }, tag: n % 3 === 0 ? "paid" : "new", headers: [{ key: "trace", text: `t${n}` }], queues: [`user/${n}`] })));
  await api.send("events", Array.from({ length: 12 }, (_, n) => ({ key: `d${n}`, value: `later-${n}`, delay_ms: 3_600_000 + n * 1000 })));
  await api.reject("shipping", "orders", 3, "no such sku");
  await api.call("PUT", "/mq/v1/topics/orders/queues/user%2F1/offsets?group=shipping&cursor=orders:0%3D0");
  await api.call("PUT", "/mq/v1/recurring/nightly", { topic: "events", record: { value: {} }, cron: "30 2 * * *", tz: "Europe/Berlin" });
});
after(async () => {
  await browser?.close();
  await open?.end();
});

for (const day of ["2027-03-20T12:00:00Z", "2027-10-20T12:00:00Z"]) {
  test(`a month in which the clocks change, from ${day} in Berlin`, { skip }, async () => {
    const tab = await Tab.at(open.url, { timezoneId: "Europe/Berlin" });
    await tab.context.clock.install({ time: day });
    await tab.open("delays?span=month");
    await tab.page.getByText("due in this month").waitFor();
    assert.equal(await tab.page.locator(".note.error").count(), 0);
    await tab.end();
  });
}

test("an alarm: the disk is full, said first and with where to go", { skip }, async () => {
  const full = await new Server([], { MQ_STORE_DISK_FLOOR_BYTES: "1000000000000000" }).start();
  try {
    const tab = await Tab.at(full.url);
    await tab.open("overview");
    await tab.page.getByRole("region", { name: "Alarms" }).getByRole("alert").waitFor();
    await tab.axe("an alarm");
    await tab.page.getByRole("link", { name: "See the largest topics" }).click();
    await tab.page.getByRole("heading", { name: "Topics" }).waitFor();
    assert.match(tab.page.url(), /sort=appended_bytes/);
    await tab.end();
  } finally {
    await full.end();
  }
});

test("every alarm says what to do and leads there", { skip }, async () => {
  const LEADS = {
    store_stopped: ["error", /brokers/], timer_stopped: ["error", /delays/], disk_full: ["error", /topics\?sort=appended_bytes/], disk_floor: ["warning", /topics\?sort=appended_bytes/],
    timer_behind: ["warning", /delays/], clock_step: ["warning", /delays/], group_lagging: ["warning", /groups\/shipping/], trail_failing: ["warning", /access\?tab=audit/],
  };
  await api.call("POST", "/mq/v1/groups/shipping/messages:receive", { topics: ["orders"], max_messages: 1 });
  const alarms = Object.entries(LEADS).map(([code, [severity]]) => ({ code, severity, since_ms: Date.now() - 60_000, message: `This is ${code}.`, help: `Do ${code}.`, group: code === "group_lagging" ? "shipping" : null }));
  const tab = await Tab.at(open.url);
  const { page } = tab;
  await page.route(/mq\/v1\/stats(\?|$)/, async (route) => {
    const answer = await route.fetch();
    await route.fulfill({ response: answer, json: { ...await answer.json(), alarms } });
  });
  await page.route(/mq\/v1\/stats\/stream/, (route) => route.fulfill({ status: 204 }));
  for (const [code, [severity, where]] of Object.entries(LEADS)) {
    await tab.open("overview");
    const alarm = page.getByRole("region", { name: "Alarms" }).locator(".note", { hasText: `This is ${code}.` });
    await alarm.getByText(`Do ${code}.`).waitFor();
    assert.equal(await alarm.getAttribute("role"), severity === "error" ? "alert" : null);
    if (code === "store_stopped") await tab.axe("all alarms");
    await alarm.getByRole("link").click();
    await page.locator("main h1", { hasNotText: "Overview" }).waitFor();
    assert.match(page.url(), where);
    assert.equal(await page.locator(".note.error").count(), 0);
  }
  await tab.end();
});

test("an alarm of a real server: its clock is set", { skip: skip || libfaketime === undefined && "there is no libfaketime (Debian: apt-get install faketime)" }, async () => {
  const clock = join(mkdtempSync(join(tmpdir(), "mq-clock-")), "offset");
  writeFileSync(clock, "+0");
  const server = await new Server([], {
    LD_PRELOAD: libfaketime, FAKETIME_TIMESTAMP_FILE: clock, FAKETIME_CACHE_DURATION: "1", FAKETIME_DONT_FAKE_MONOTONIC: "1",
  }).start();
  try {
    const tab = await Tab.at(server.url);
    await tab.open("overview");
    await tab.page.getByText("No alarms").waitFor();
    writeFileSync(clock, "+600");
    await tab.page.getByRole("region", { name: "Alarms" }).getByText("clock_step").waitFor({ timeout: 30_000 });
    await tab.end(/./);
  } finally {
    await server.end();
    rmSync(dirname(clock), { recursive: true });
  }
});

for (const colorScheme of ["light", "dark"]) {
  test(`the API's reference, ${colorScheme}: no finding of axe, closed and with a route open to try, no sideways scroll`, { skip }, async () => {
    const tab = await Tab.at(open.url, { colorScheme });
    const { page } = tab;
    await page.goto(`${open.url}/docs`);
    const parts = ["nav", "#top", "#create_topic"]; // all of it takes minutes
    await tab.axe(`the reference, ${colorScheme}`, parts);
    const operation = page.locator("#create_topic");
    await operation.locator("summary").first().click();
    await operation.getByRole("button", { name: "Try it" }).click();
    await operation.getByLabel("topic *").fill("tried-in-colour");
    await operation.getByRole("button", { name: "Send PUT" }).click();
    await operation.locator(".try .status").getByText(/^20[01] /).waitFor();
    await tab.axe(`a route tried, ${colorScheme}`, parts);
    await page.setViewportSize({ width: 360, height: 740 });
    await tab.fits("the reference");
    await tab.end();
    await api.call("DELETE", "/mq/v1/topics/tried-in-colour");
  });
}

const EVERY = [
  "overview", "topics", "topics/orders", "topics/orders?tab=live", "topics/orders?tab=send", "topics/orders?tab=partitions", "topics/orders?tab=queues", "groups", "groups?tab=light", "groups/shipping",
  "groups/shipping?tab=light", "groups/shipping?tab=members", "groups/shipping?tab=leases", "groups/shipping?tab=dead", "delays", "delays?view=table", "delays?span=month", "delays?span=year", "delays?tab=recurring",
  "brokers", "access", "access?tab=connections", "access?tab=sessions", "access?tab=settings", "access?tab=audit", "nowhere",
];
/** A time of day, and what stands before it: "Tue 24 Nov " or "Tue 24 Nov 2026 ". */
const TIME = /.{0,16}\b\d\d:\d\d:\d\d/g;
const WITH_DAY = /(Mon|Tue|Wed|Thu|Fri|Sat|Sun) \d\d (Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)( \d{4})? \d\d:\d\d:\d\d$/;

for (const colorScheme of ["light", "dark"]) {
  test(`every page, ${colorScheme}: no finding of axe, no sideways scroll at 360 pixels, no date without its day`, { skip }, async () => {
    const tab = await Tab.at(open.url, { colorScheme });
    await tab.open("overview");
    await api.call("POST", "/mq/v1/groups/shipping/messages:receive", { topics: ["orders"], max_messages: 1, invisible_ms: 600_000 });
    let times = 0;
    for (const [width, height] of [[1280, 800], [360, 740]]) {
      await tab.page.setViewportSize({ width, height });
      for (const path of EVERY) {
        await tab.go(path);
        await tab.page.waitForTimeout(400);
        assert.equal(await tab.page.locator(".note.error").count(), 0, `${path}: ${await tab.page.locator(".note.error").allTextContents()}`);
        await tab.axe(`${path}, ${width} pixels, ${colorScheme}`);
        await tab.fits(`${path}, ${width} pixels`);
        await tab.wholeWords(`${path}, ${width} pixels`);
        for (const [found] of (await tab.page.locator("main").innerText()).matchAll(TIME)) {
          assert.match(found, WITH_DAY, `${path}: a date is shown with its day`);
          times++;
        }
      }
    }
    assert.ok(times > 100, `${times} times were looked at`);
    await tab.end(/status of 409/);
  });
}

test("every page: Tab reaches all that can be used, and what has the focus shows it", { skip }, async () => {
  const tab = await Tab.at(open.url);
  const { page } = tab;
  await tab.open("overview");
  for (const path of EVERY) {
    await tab.go(path);
    await page.waitForTimeout(400);
    await page.evaluate(() => {
      window.seen = new Set();
      document.addEventListener("focusin", ({ target }) => window.seen.add(target));
      document.activeElement.blur();
    });
    const missed = () => page.evaluate(() => [...document.querySelectorAll("a[href], button, input, select, textarea, canvas[tabindex]")]
      .filter((element) => element.tabIndex >= 0 && element.checkVisibility() && !window.seen.has(element)).map((element) => element.outerHTML.slice(0, 120)));
    for (let presses = 0; presses < 300 && (await missed()).length > 0; presses++) {
      await page.keyboard.press("Tab");
      if (presses < 20) {
        const shown = await page.evaluate(() => document.activeElement === document.body || getComputedStyle(document.activeElement).outlineStyle !== "none");
        assert.ok(shown, `${path}: ${await page.evaluate(() => document.activeElement.outerHTML.slice(0, 120))}`);
      }
    }
    assert.deepEqual(await missed(), [], path);
  }
  await tab.end(/status of 409/);
});
