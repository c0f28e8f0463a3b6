/** Under a token of each role: every button of every page is there for those who may, greyed with the reason for others, and the server decides the same. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Api, Server, Tab, browser, skip } from "./console.mjs";

const ROLES = {
  admin: ["admin"],
  operator: ["operate", "reader:topic:*", "reader:group:*"],
  sender: ["writer:topic:orders"],
  receiver: ["reader:topic:orders", "reader:group:billing"],
  /** Of one topic and one group, all. */
  owner: ["admin:topic:orders*", "admin:group:billing*"],
  /** Sees what waits, changes what waits for one topic. */
  scheduler: ["describe:topic:*", "send:topic:reminders"],
  keeper: ["access", "audit"],
  nobody: [],
};
const LATER_MS = 86_400_000 / 2;
const tokens = {};
const waiting = {};
let server;
let admin;

before(async () => {
  if (browser === null) return;
  server = new Server(["--auth"], { MQ_STORE_INDEX: "rocksdb" });
  tokens.admin = server.mq("token", "create", "admin", "--allow", "admin");
  await server.start();
  admin = new Api(server.url, tokens.admin);
  for (const [role, scopes] of Object.entries(ROLES).slice(1)) tokens[role] = await admin.token(role, scopes);
  for (const topic of ["orders", "reminders"]) {
    await admin.topic(topic);
    await admin.send(topic, [{ key: "u1", value: { sku: 1 }, queues: ["user/1"] }, { key: "u1", value: { sku: 2 } }]);
    const [{ schedule_id: id }] = await admin.send(topic, [{ key: "later", value: 1, delay_ms: LATER_MS }]);
    waiting[topic] = id;
  }
  await admin.call("PUT", "/mq/v1/recurring/nightly", { topic: "orders", record: { value: {} }, cron: "30 2 * * *" });
  await admin.reject("billing", "orders", 1, "no such sku");
  await admin.call("PUT", "/mq/v1/topics/orders/queues/user%2F1/offsets?group=billing&cursor=orders:0%3D0");
});
after(async () => {
  await browser?.close();
  await server?.end();
});

const row = (page) => page.locator(".list-body .row").first();
const choose = (page) => row(page).locator("input").check();
const open = (page) => row(page).click();
const cancelled = (topic) => async (api) => {
  await api.call("DELETE", `/mq/v1/schedules/${waiting[topic]}`);
  [{ schedule_id: waiting[topic] }] = await admin.send(topic, [{ key: "later", value: 1, delay_ms: LATER_MS }]);
};
const settle = (action) => (api) => api.call("POST", "/mq/v1/groups/billing/dlq:settle", { action, offsets: [0] });
const SEES_ORDERS = ["admin", "operator", "sender", "receiver", "owner", "scheduler"];
const RECEIVES_ORDERS = ["admin", "operator", "receiver", "owner"];
const SENDS_ORDERS = ["admin", "sender", "owner"];
const IN_BILLING = ["admin", "operator", "receiver", "owner"];
const OPERATES = ["admin", "operator"];
const KEEPS = ["admin", "keeper"];

/**
 * Each page: who sees it (`ask` is how the server is asked the same), and its buttons: who may use each, and a request
 * that does the same. `first`: what is to be done to have them. `others`: what they are told who do not see it.
 */
const PAGES = [
  { path: "overview", sees: OPERATES, there: ".tile", ask: (api) => api.call("GET", "/mq/v1/stats"), buttons: [] },
  {
    path: "topics", sees: SEES_ORDERS, there: ".list-body .row", buttons: [
      { name: "Create topic", may: ["admin", "owner"], ask: (api) => api.call("PUT", "/mq/v1/topics/orders", { partitions: 2 }) },
    ],
  },
  {
    path: "topics/orders?tab=messages", sees: RECEIVES_ORDERS, there: ".list-body .row", ask: (api) => api.call("GET", "/topics/orders/partitions/0/records"), first: open, buttons: [
      { name: "Send a copy…", may: SENDS_ORDERS, ask: (api) => api.send("orders", [{ key: "u1", value: 1 }]) },
      { name: "Change", may: ["admin", "owner"], ask: (api) => api.call("PATCH", "/mq/v1/topics/orders", { retention_ms: 86_400_000 }) },
      {
        name: "Delete", may: ["admin", "owner"], ask: async (api) => {
          await admin.topic("orders-over");
          await api.call("DELETE", "/mq/v1/topics/orders-over");
        },
      },
    ],
  },
  { path: "topics/orders?tab=live", sees: RECEIVES_ORDERS, there: "text=following", buttons: [] },
  {
    path: "topics/orders?tab=send", sees: SEES_ORDERS, there: "form.card", ask: (api) => api.call("GET", "/mq/v1/topics/orders"), buttons: [
      { name: "Send", may: SENDS_ORDERS, ask: (api) => api.send("orders", [{ key: "u1", value: 1 }]) },
    ],
  },
  { path: "topics/orders?tab=partitions", sees: SEES_ORDERS, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/topics/orders"), buttons: [] },
  { path: "topics/orders?tab=queues", sees: SEES_ORDERS, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/topics/orders/queues"), first: open, buttons: [] },
  { path: "groups", sees: IN_BILLING, there: ".list-body .row", buttons: [] },
  { path: "groups?tab=light", sees: IN_BILLING, there: ".list-body .row", buttons: [] },
  { path: "groups/billing?tab=light", sees: IN_BILLING, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/groups/billing/light-offsets"), buttons: [] },
  {
    path: "groups/billing", sees: IN_BILLING, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/groups/billing"), buttons: [
      { name: "Reset…", may: IN_BILLING, ask: (api) => api.call("POST", "/mq/v1/groups/billing/offsets:reset", { topic: "orders", to: "earliest", dry_run: true }) },
      { name: "Settings", may: ["admin", "owner"], ask: (api) => api.call("PATCH", "/mq/v1/groups/billing", { max_attempts: 16 }) },
      { name: "Delete", may: ["admin", "owner"], ask: (api) => api.call("DELETE", "/mq/v1/groups/billing-over").catch(unlessNotFound) },
    ],
  },
  { path: "groups/billing?tab=members", sees: IN_BILLING, there: ".empty, .small-table", ask: (api) => api.call("GET", "/mq/v1/groups/billing"), buttons: [] },
  { path: "groups/billing?tab=leases", sees: IN_BILLING, there: ".empty, .list-body .row", ask: (api) => api.call("GET", "/mq/v1/groups/billing/leases"), buttons: [] },
  {
    path: "groups/billing?tab=dead", sees: IN_BILLING, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/groups/billing/dlq"),
    first: async (page) => {
      await open(page);
      await choose(page);
    },
    buttons: [
      { name: "Redrive 1", may: IN_BILLING, ask: (api) => api.call("POST", "/mq/v1/groups/billing/dlq:redrive", { max_messages: 1 }).then(() => admin.reject("billing", "orders", 1, "again")) },
      { name: "Purge 1", may: ["admin", "owner"], ask: settle("purge") },
      { name: "Edit and resend…", may: ["admin", "owner"], ask: settle("purge") },
    ],
  },
  {
    path: "delays?topic=orders", sees: SEES_ORDERS, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/schedules?topic=orders"), first: choose,
    buttons: ["Fire now", "Move…", "Cancel"].map((name) => ({ name, may: SENDS_ORDERS, ask: cancelled("orders") })),
  },
  {
    path: "delays?topic=reminders", sees: ["admin", "operator", "scheduler"], there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/schedules?topic=reminders"), first: choose,
    buttons: ["Fire now", "Move…", "Cancel"].map((name) => ({ name, may: ["admin", "scheduler"], ask: cancelled("reminders") })),
  },
  {
    path: "delays?tab=recurring", sees: SEES_ORDERS, there: ".list-body .row", first: open, buttons: [
      { name: "Create recurring", may: [...SENDS_ORDERS, "scheduler"], ask: (api, role) => api.call("PUT", "/mq/v1/recurring/another", { topic: role === "scheduler" ? "reminders" : "orders", record: { value: {} }, every_ms: 86_400_000 }).then(() => admin.call("DELETE", "/mq/v1/recurring/another")) },
      { name: "Pause", may: SENDS_ORDERS, ask: (api) => api.call("POST", "/mq/v1/recurring/nightly:resume") },
      { name: "Delete", may: SENDS_ORDERS, ask: (api) => api.call("POST", "/mq/v1/recurring/nightly:resume") },
    ],
  },
  {
    path: "brokers", sees: OPERATES, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/brokers"),
    buttons: ["Drain local", "Add local", "Move orders/0"].map((name) => ({ name, may: [], because: /This server is alone/ })),
  },
  {
    path: "access?tab=tokens", sees: KEEPS, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/tokens"), buttons: [
      { name: "Create token", may: KEEPS, ask: (api) => api.call("POST", "/mq/v1/tokens", { principal: "made", scopes: ["audit"] }) },
      { name: /^Revoke .* of admin$/, may: KEEPS, ask: (api) => api.call("DELETE", "/mq/v1/tokens/aaaaaaaaaaaaa").catch(unlessNotFound) },
    ],
  },
  {
    path: "access?tab=rules", sees: KEEPS, there: ".empty, .list-body .row", ask: (api) => api.call("GET", "/mq/v1/rules"), buttons: [
      { name: "Add rule", may: KEEPS, ask: (api) => api.call("PUT", "/mq/v1/rules", { rules: [] }).catch(unlessNotFound) },
    ],
  },
  {
    path: "access?tab=connections", sees: OPERATES, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/connections"), buttons: [
      { name: /^Close .* from /, may: OPERATES, ask: (api) => api.call("DELETE", "/mq/v1/connections/none").catch(unlessNotFound) },
    ],
  },
  {
    path: "access?tab=sessions", sees: OPERATES, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/sessions"), buttons: [
      { name: /^End the session/, may: OPERATES, ask: (api) => api.call("DELETE", "/mq/v1/sessions/none").catch(unlessNotFound) },
    ],
  },
  { path: "access?tab=settings", sees: OPERATES, there: ".small-table", ask: (api) => api.call("GET", "/mq/v1/settings"), buttons: [] },
  { path: "access?tab=audit", sees: KEEPS, there: ".list-body .row", ask: (api) => api.call("GET", "/mq/v1/audit"), buttons: [] },
];

/** The right is there, though what was asked for is not. */
function unlessNotFound(error) {
  if (![400, 404, 412, 422, 428].includes(error.status)) throw error;
}

/** What the server says: whether it is not a matter of rights. */
async function mayAsk(ask, role) {
  try {
    await ask(new Api(server.url, tokens[role]), role);
    return true;
  } catch (error) {
    if (error.status === 403) return false;
    throw error;
  }
}

async function tried(tab, role, page, button) {
  const what = `${role}, ${page.path}, ${button.name}`;
  const found = tab.page.getByRole("button", { name: button.name, exact: true }).first();
  await found.waitFor();
  const isOff = await found.getAttribute("aria-disabled") === "true";
  const may = button.may.includes(role);
  assert.equal(!isOff, may, `${what}: is ${isOff ? "greyed" : "there"}`);
  if (button.ask !== undefined) assert.equal(await mayAsk(button.ask, role), may, `${what}: the server says otherwise`);
  if (may) return;
  await found.focus();
  const told = await found.evaluate((element) => document.getElementById(element.getAttribute("aria-describedby")).textContent);
  assert.match(told, button.because ?? /Your token does not have the right /, what);
  await found.press("Enter");
  assert.equal(await tab.dialog().count(), 0, `${what}: opened a dialog`);
}

for (const role of Object.keys(ROLES)) {
  test(`${role}: each page and each of its buttons`, { skip }, async () => {
    const tab = await Tab.at(server.url);
    const { page } = tab;
    await page.goto(server.url);
    await page.waitForSelector("input[type=password]");
    await tab.signIn(tokens[role]);
    await page.locator(".who", { hasText: role }).waitFor();
    for (const each of PAGES) {
      const sees = each.sees.includes(role);
      if (each.ask !== undefined) assert.equal(await mayAsk(each.ask, role), sees, `${role}: the server, of ${each.path}`);
      await tab.go(each.path);
      if (!sees) {
        await page.locator(".empty, .note.error").first().waitFor();
        const told = (await page.locator(".empty, .note.error").allTextContents()).join(" ");
        assert.match(told, /does not have the right|Not allowed|that you may see|No record waits|Nothing recurs/, `${role}, ${each.path}`);
        for (const { name } of each.buttons) {
          const found = page.getByRole("button", { name, exact: true });
          for (const one of await found.all()) assert.equal(await one.getAttribute("aria-disabled"), "true", `${role}, ${each.path}, ${name}`);
        }
        continue;
      }
      await page.locator(each.there).first().waitFor();
      await each.first?.(page);
      for (const button of each.buttons) await tried(tab, role, each, button);
    }
    await tab.end(/status of 40[13]/);
  });
}

test("signed out: each page asks for a token, and the server refuses all of them", { skip }, async () => {
  const tab = await Tab.at(server.url);
  for (const { path, ask, buttons } of PAGES) {
    await tab.page.goto(`${server.url}/#/${path}`);
    await tab.page.waitForSelector("input[type=password]");
    assert.equal(await tab.page.locator(".side, .list, table").count(), 0, path);
    for (const each of [ask, ...buttons.map((button) => button.ask)]) {
      if (each !== undefined) await assert.rejects(each(new Api(server.url), "nobody"), { status: 401 }, path);
    }
  }
  await tab.end(/status of 401/);
});

test("a right that is taken away while the page is open: the server refuses, the page says so", { skip }, async () => {
  const token = await admin.token("changing", ["writer:topic:orders"]);
  const tab = await Tab.at(server.url);
  await tab.page.goto(`${server.url}/#/topics/orders?tab=send`);
  await tab.page.waitForSelector("input[type=password]");
  await tab.signIn(token);
  await tab.button("Send").click();
  await tab.page.getByText("On disk:").waitFor();
  const answer = await fetch(`${server.url}/mq/v1/rules`, { headers: admin.headers });
  await fetch(`${server.url}/mq/v1/rules`, {
    method: "PUT", headers: { ...admin.headers, "Content-Type": "application/json", "If-Match": answer.headers.get("ETag") },
    body: JSON.stringify({ rules: [{ principal: "changing", allow: [], deny: ["send:topic:orders"] }] }),
  });
  await tab.button("Send").click();
  await tab.page.locator(".note.error").waitFor();
  assert.match(await tab.page.locator(".note.error").textContent(), /send/);
  await tab.end(/status of 40[13]/);
});
