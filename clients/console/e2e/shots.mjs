/** Every page in both themes to docs/console/: at a fixed clock, with the same records each time. `make shots`. */
import { mkdirSync } from "node:fs";
import { resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { Cluster } from "./cluster.mjs";
import { Api, Server, Tab, browser, libfaketime, sleep } from "./console.mjs";

const OUT = resolve(fileURLToPath(import.meta.url), "../../../../docs/console");
const CLOCK = "2026-11-24 09:00:00";
/** So long there are sends: the charts have something to show. */
const LOAD_MS = Number(process.env["SHOTS_LOAD_MS"] ?? 125_000);
/** All of them, or those that are named, by commas. */
const named = process.argv[2]?.split(",");
const isWanted = (name) => named === undefined || named.includes(name);
const THEMES = ["light", "dark"];
const VIEWS = [["", { width: 1280, height: 800 }], ["-phone", { width: 360, height: 740 }]];

/** The same numbers each time. */
let seed = 27;
function random() {
  seed = (Math.imul(seed, 1_103_515_245) + 12_345) >>> 0;
  return seed / 2 ** 32;
}
const pick = (list) => list[Math.floor(random() * list.length)];

if (browser === null) throw new Error("there is no Chromium here (Debian: apt-get install chromium)");
if (libfaketime === undefined) throw new Error("needs libfaketime (Debian: apt-get install faketime)");
const clock = { LD_PRELOAD: libfaketime, FAKETIME: `@${CLOCK}`, FAKETIME_DONT_FAKE_MONOTONIC: "1", TZ: "UTC" };
const server = new Server(["--auth"], { ...clock, MQ_STORE_INDEX: "rocksdb" });
const token = server.mq("token", "create", "ann", "--allow", "admin");
await server.start();
try {
  const api = new Api(server.url, token);
  for (const [principal, scope] of [["billing", "reader:topic:orders"], ["shop", "writer:topic:*"], ["reports", "reader:topic:*"]]) {
    await api.call("POST", "/mq/v1/tokens", { principal, scopes: [scope], expires_in_ms: 90 * 86_400_000 });
  }
  await api.topic("chat");
  const names = ["orders", "payments", "shipments", "reminders", "clicks", "invoices", "returns", "stock", "emails", "audit"];
  for (const [index, name] of names.entries()) await api.topic(name, { partitions: [4, 4, 8, 2, 16, 2, 2, 4, 4, 1][index], ...(name === "clicks" ? { retention_ms: 86_400_000 } : {}) });
  const order = () => ({ key: `u${Math.floor(random() * 500)}`, value: { order: Math.floor(random() * 90_000) + 10_000, sku: pick(["chair", "table", "lamp", "shelf"]), qty: 1 + Math.floor(random() * 4), paid: random() > 0.3 }, tag: pick(["paid", "new", "gift"]), headers: [{ key: "source", text: pick(["shop", "app", "phone"]) }] });
  await api.send("orders", Array.from({ length: 400 }, order));
  const delayed = (count, spread, least = 60_000) => Array.from({ length: count }, () => ({ key: `u${Math.floor(random() * 500)}`, value: { remind: pick(["pay", "pick up", "review"]) }, delay_ms: Math.floor(least + random() ** 2 * spread) }));
  for (let round = 0; round < 6; round++) await api.send("reminders", delayed(900, 86_400_000));
  await api.send("reminders", delayed(900, 30 * 86_400_000));
  await api.send("reminders", delayed(900, 360 * 86_400_000));
  await api.send("reminders", delayed(60, 3_000_000));
  await api.call("PUT", "/mq/v1/recurring/daily-report", { topic: "emails", record: { value: { kind: "daily" } }, cron: "30 2 * * *", tz: "Europe/Berlin" });
  await api.call("PUT", "/mq/v1/recurring/poll", { topic: "stock", record: { value: {} }, every_ms: 30_000 });
  await api.call("PUT", "/mq/v1/recurring/month-end", { topic: "invoices", record: { value: {} }, cron: "0 6 1 * *", paused: true });
  for (const reason of ["timeout after 30 s", "no such sku", "card declined"]) await api.reject("billing", "orders", 3, reason);
  await api.call("POST", "/mq/v1/groups/billing/messages:receive", { topics: ["orders"], max_messages: 6, consumer: "worker-1", invisible_ms: 600_000 });
  await api.call("POST", "/mq/v1/groups/billing/messages:receive", { topics: ["orders"], max_messages: 3, consumer: "worker-2", invisible_ms: 600_000 });
  await api.call("POST", "/mq/v1/groups/reports/messages:receive", { topics: ["orders", "payments"], start: "earliest", max_messages: 1 });
  for (let n = 0; n < 40; n++) {
    await api.send("chat", [{ value: { from: pick(["ann", "bob", "eve"]), text: "hello" }, queues: [`user/${n % 12}`, `room/${n % 3}`] }]);
  }
  for (let n = 0; n < 24; n++) {
    for (const queue of [`user/${n % 12}`, `room/${n % 3}`]) {
      const path = `/mq/v1/topics/chat/queues/${encodeURIComponent(queue)}`;
      const { partitions } = await api.call("GET", path);
      const cursor = partitions.map((one) => `chat:${one.partition}=${one.end_offset - Math.floor(random() * Math.min(3, one.end_offset - one.beginning_offset + 1))}`).join(";");
      await api.call("PUT", `${path}/offsets?group=phone-${String(n).padStart(3, "0")}&cursor=${encodeURIComponent(cursor)}`);
    }
  }
  await api.call("PATCH", "/mq/v1/groups/by-room", { strategy: "machine_room_nearby" });
  for (const [name, room] of [["worker-1", "east"], ["worker-2", "west"]]) {
    await api.call("POST", "/consumers/by-room", { name, format: "json", "client.rack": room }, "application/vnd.kafka.v2+json");
    await api.call("POST", `/consumers/by-room/instances/${name}/subscription`, { topics: ["payments"] }, "application/vnd.kafka.v2+json");
    await api.call("GET", `/consumers/by-room/instances/${name}/records?timeout=0`);
  }
  let isSending = true;
  const sending = (async () => {
    for (let turn = 0; isSending; turn++) {
      const wave = 1 + Math.sin(turn / 40) + random() * 0.4;
      await api.send(pick(names.slice(0, 8)), Array.from({ length: 1 + Math.round(30 * wave) }, order));
      if (turn % 2 === 0) {
        const { messages } = await api.call("POST", "/mq/v1/groups/billing/messages:receive", { topics: ["orders"], max_messages: 40, consumer: "worker-1" });
        if (messages.length > 0) await api.call("POST", "/mq/v1/groups/billing/messages:ack", { receipts: messages.map(({ receipt }) => receipt) });
      }
      await sleep(100);
    }
  })();
  await sleep(named?.join() === "brokers" ? 0 : LOAD_MS);

  mkdirSync(OUT, { recursive: true });
  const first = (page) => page.locator(".list-body .row").first().click();
  const SHOTS = [
    ["overview", "overview"],
    ["topics", "topics?sort=records"],
    ["messages", "topics/orders", first],
    ["live", "topics/orders?tab=live", async (page) => {
      await page.getByText("following").waitFor();
      for (let turn = 0; turn < 14; turn++) await api.send("orders", [order()]);
    }],
    ["send", "topics/orders?tab=send", (page) => page.getByLabel("Deliver").selectOption("at")],
    ["groups", "groups"],
    ["group", "groups/billing"],
    ["groups-light", "groups?tab=light"],
    ["group-light", "groups/phone-003"],
    ["group-rooms", "groups/by-room?tab=members"],
    ["leases", "groups/billing?tab=leases"],
    ["dead-letters", "groups/billing?tab=dead", first],
    ["delays", "delays"],
    ["delays-month", "delays?span=month"],
    ["recurring", "delays?tab=recurring", first],
    ["access", "access"],
    ["settings", "access?tab=settings"],
  ];
  for (const colorScheme of THEMES) {
    const { time_ms: now } = await api.call("GET", "/mq/v1/stats");
    for (const [suffix, viewport] of VIEWS) {
      const tab = await Tab.at(server.url, { colorScheme, viewport, timezoneId: "UTC" });
      await tab.context.clock.install({ time: now });
      await tab.page.goto(server.url);
      await tab.page.waitForSelector("input[type=password]");
      if (suffix === "" && isWanted("sign-in")) await tab.page.screenshot({ path: `${OUT}/sign-in-${colorScheme}.png` });
      await tab.signIn(token);
      await tab.page.locator(".side").waitFor();
      for (const [name, path, act] of SHOTS) {
        if (!isWanted(name)) continue;
        if (suffix !== "" && !["overview", "messages", "delays"].includes(name)) continue;
        await tab.go(path);
        await sleep(700);
        await tab.page.waitForFunction(() => document.querySelector(".skeleton") === null);
        if (act !== undefined && suffix === "") await act(tab.page);
        await sleep(500);
        await tab.page.screenshot({ path: `${OUT}/${name}${suffix}-${colorScheme}.png` });
      }
      await tab.end(/./);
    }
  }
  isSending = false;
  await sending;
} finally {
  await server.end();
}
if (isWanted("brokers")) await shootBrokers();
await browser.close();

/** Three nodes, one of which stands still while a partition is moved to it: each picture is taken while that lasts. */
async function shootBrokers() {
  const cluster = await (await Cluster.of(["n1", "n2", "n3"], [], { ...clock, MQ_ROOM: "east" })).start();
  try {
    const api = new Api(cluster.nodes.n1.url);
    for (const [name, partitions] of [["orders", 6], ["payments", 4], ["stock", 3]]) await api.topic(name, { partitions });
    const load = async (count) => {
      for (let turn = 0; turn < count; turn++) await api.send(pick(["orders", "payments", "stock"]), Array.from({ length: 200 }, (_, n) => ({ value: n })));
    };
    const move = (topic, partition, to) => api.call("POST", `/mq/v1/topics/${topic}/partitions/${partition}/move`, { to });
    await load(20);
    for (const [topic, partition, to] of [["orders", 0, "n2"], ["orders", 0, "n1"], ["orders", 3, "n2"], ["payments", 1, "n3"], ["payments", 1, "n1"], ["stock", 2, "n1"]]) {
      await load(4);
      await move(topic, partition, to);
    }
    await load(10);
    const { partitions } = await api.call("GET", "/mq/v1/routes?topic=orders");
    const { partition } = partitions.find(({ owner }) => owner === "n1");
    for (const colorScheme of THEMES) {
      for (const [suffix, viewport] of VIEWS) {
        const tab = await Tab.at(cluster.nodes.n1.url, { colorScheme, viewport, timezoneId: "UTC" });
        await tab.context.clock.install({ time: (await api.call("GET", "/mq/v1/stats")).time_ms });
        await tab.open("brokers");
        await tab.page.getByRole("row").filter({ has: tab.page.getByRole("rowheader", { name: "n3" }) }).getByText("● up").waitFor();
        cluster.nodes.n3.signal("SIGSTOP"); // the same state in each picture: it stands still, and its session has not ended
        try {
          const stuck = move("orders", partition, "n3");
          await tab.page.getByRole("region", { name: "Moves in progress" }).getByText("warm …").waitFor();
          await tab.page.screenshot({ path: `${OUT}/brokers${suffix}-${colorScheme}.png` });
          cluster.nodes.n3.signal("SIGCONT");
          await stuck;
        } finally {
          cluster.nodes.n3.signal("SIGCONT");
        }
        await move("orders", partition, "n1");
        await tab.end(/./);
      }
    }
  } finally {
    await cluster.end();
  }
}
