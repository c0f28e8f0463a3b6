/** Brokers and routes as a person would use them, against two nodes and a real etcd: move, drain, add, while nodes freeze and die. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Cluster, skipCluster } from "./cluster.mjs";
import { Api, Tab, browser, skip as skipBrowser, until } from "./console.mjs";

const skip = skipBrowser || skipCluster;
const PARTITIONS = 4;
/** Of a broker's row, its name not counted. */
const GROUPS_CELL = 5;
let cluster;
let api;
let other;
let sent = 0;

before(async () => {
  if (skip) return;
  cluster = await Cluster.of(["n1", "n2"]);
  await cluster.start();
  api = new Api(cluster.nodes.n1.url);
  other = new Api(cluster.nodes.n2.url);
  await api.topic("orders", { partitions: PARTITIONS });
});
after(async () => {
  await browser?.close();
  await cluster?.end();
});

/** More records in partition 0, numbered. */
async function more(count) {
  const records = Array.from({ length: count }, () => ({ value: sent++ }));
  await api.call("POST", "/topics/orders/partitions/0", { records }, "application/vnd.kafka.json.v2+json");
}

/** Every record of partition 0, once and in order, from either node. */
async function whole() {
  for (const each of [api, other]) {
    const seen = [];
    for (let rows = null; rows === null || rows.length > 0; seen.push(...rows.map(({ value }) => value))) {
      rows = await each.call("GET", `/topics/orders/partitions/0/records?offset=${seen.length}&format=json`);
    }
    assert.deepEqual(seen, Array.from({ length: sent }, (_, n) => n));
  }
}

const owners = async () => (await api.call("GET", "/mq/v1/routes?topic=orders")).partitions.map(({ owner }) => owner);
const brokerRow = (page, name) => page.getByRole("region", { name: "Brokers" }).getByRole("row").filter({ has: page.getByRole("rowheader", { name }) });
const routeRow = (page, partition) => page.getByRole("table", { name: "Routes" }).getByRole("row").filter({ hasText: `orders/${partition}` });

async function moveTo(tab, partition, to) {
  await tab.button(`Move orders/${partition}`).click();
  await tab.dialog().getByLabel("To").selectOption(to);
  await tab.button("Move", tab.dialog()).click();
}

test("move a partition, drain a broker and add it again", { skip }, async () => {
  await more(10);
  const tab = await Tab.at(cluster.nodes.n1.url);
  const { page } = tab;
  await tab.open("brokers");
  await brokerRow(page, "n1").getByText("embedded").waitFor();
  await brokerRow(page, "n2").getByText("peer").waitFor();
  await brokerRow(page, "n2").getByText("● up").waitFor();
  const [from] = await owners();
  const to = from === "n1" ? "n2" : "n1";
  await moveTo(tab, 0, to);
  await tab.said(`orders/0 is on ${to}.`);
  await routeRow(page, 0).getByText(`${from} 0–9 sealed`).waitFor();
  await routeRow(page, 0).getByText(`${to} 10–… open`).waitFor();
  await more(10);
  await whole();
  await tab.axe("brokers and routes");

  await api.call("POST", "/mq/v1/groups/billing/messages:receive", { topics: ["orders"], max_messages: 1 });
  const groups = (name) => brokerRow(page, name).getByRole("cell").nth(GROUPS_CELL);
  await until(async () => (await groups("n1").textContent()) === "1", "the group of n1");
  await tab.button("Drain n1").click();
  await tab.dialog().getByText("n1 → n2").first().waitFor();
  await tab.axe("draining");
  await tab.button("Cancel", tab.dialog()).click();
  await brokerRow(page, "n1").getByText("● up").waitFor();
  await tab.button("Drain n1").click();
  await tab.button("Drain", tab.dialog()).click();
  await tab.said("n1 gives its partitions and groups to the others.");
  await brokerRow(page, "n1").getByText("○ drained").waitFor({ timeout: 30_000 });
  await brokerRow(page, "n1").getByText("may be stopped for a while").waitFor();
  assert.deepEqual(await owners(), Array(PARTITIONS).fill("n2"));
  await until(async () => (await groups("n1").textContent()) === "0" && (await groups("n2").textContent()) === "1", "the group is of n2");
  assert.equal(await tab.button("Drain n1").getAttribute("aria-disabled"), "true");
  await tab.axe("a drained broker");
  await tab.button("Add n1").click();
  await tab.button("Add", tab.dialog()).click();
  await tab.said("n1 takes its share.");
  await until(async () => (await owners()).sort().join() === "n1,n1,n2,n2", "its share");
  await brokerRow(page, "n1").getByText("● up").waitFor();
  await whole();
  await page.setViewportSize({ width: 360, height: 740 });
  await tab.fits("brokers and routes");
  await tab.end();
});

test("a move to a node that stands still shows its step; the server of the page is killed meanwhile; nothing is lost or twice", { skip }, async () => {
  await api.call("POST", "/mq/v1/topics/orders/partitions/0/move", { to: "n1" });
  await more(5);
  const tab = await Tab.at(cluster.nodes.n1.url);
  const { page } = tab;
  await tab.open("brokers");
  await routeRow(page, 0).waitFor();
  cluster.nodes.n2.signal("SIGSTOP");
  try {
    await moveTo(tab, 0, "n2");
    const moves = page.getByRole("region", { name: "Moves in progress" });
    await moves.getByText("n1 → n2").waitFor();
    await moves.getByText("warm …").waitFor();
    await routeRow(page, 0).getByText("to n2").waitFor();
    await tab.axe("a move");
    await cluster.nodes.n1.kill();
    await page.locator(".banner").waitFor();
    await cluster.nodes.n1.start();
  } finally {
    cluster.nodes.n2.signal("SIGCONT");
  }
  await tab.button("Cancel", tab.dialog()).click();
  await until(async () => (await page.locator(".banner").count()) === 0, "the page is back");
  await until(async () => (await api.call("GET", "/mq/v1/moves")).total === 0, "the move is over");
  await until(() => more(5).then(() => true, ({ status }) => assert.equal(status, 503)), "the partition takes records");
  await whole();
  await tab.end(/./);
});

test("a node that is gone is offline; a move to it is refused and changes nothing; back, it takes the partition", { skip }, async () => {
  const tab = await Tab.at(cluster.nodes.n1.url);
  const { page } = tab;
  await api.call("POST", "/mq/v1/topics/orders/partitions/0/move", { to: "n1" });
  await tab.open("brokers");
  await cluster.nodes.n2.kill();
  await brokerRow(page, "n2").getByText("■ offline").waitFor({ timeout: 30_000 });
  for (const width of [360, 1280]) {
    await page.setViewportSize({ width, height: 740 });
    await tab.fits("an offline broker");
    await tab.wholeWords("an offline broker");
  }
  assert.equal(await tab.button("Add n2").count(), 0);
  await moveTo(tab, 0, "n2");
  await tab.dialog().getByText("cannot be reached").waitFor();
  await tab.button("Cancel", tab.dialog()).click();
  await more(5);
  await cluster.nodes.n2.start();
  await brokerRow(page, "n2").getByText("■ offline").waitFor({ state: "detached", timeout: 30_000 });
  await moveTo(tab, 0, "n2");
  await tab.said("orders/0 is on n2.");
  await more(5);
  await whole();
  await tab.end(/status of 503/);
});

test("a node that does not come back: one partition is gone on with, then all that it had; back, it hinders nobody", { skip }, async () => {
  for (const partition of [0, 1, 2]) await api.call("POST", `/mq/v1/topics/orders/partitions/${partition}/move`, { to: "n2" });
  const tab = await Tab.at(cluster.nodes.n1.url);
  const { page } = tab;
  await tab.open("brokers");
  assert.equal(await tab.button("Take over n2").count(), 0);
  await cluster.nodes.n2.kill();
  await brokerRow(page, "n2").getByText("Start it again").waitFor({ timeout: 30_000 });
  await tab.axe("an offline broker");

  await tab.button("Take over orders/0").click();
  await tab.dialog().getByText("cannot be read until it is back").waitFor();
  await tab.axe("a takeover");
  const really = tab.button("Take over", tab.dialog());
  assert.equal(await really.getAttribute("aria-disabled"), "true");
  await tab.dialog().getByLabel("Type orders/0 to confirm").fill("orders/0");
  await really.click();
  await tab.said("orders/0 goes on on n1.");
  await more(5);
  await tab.button("Take over n2").click();
  await tab.dialog().getByLabel("Type n2 to confirm").fill("n1");
  assert.equal(await really.getAttribute("aria-disabled"), "true");
  await tab.dialog().getByLabel("Type n2 to confirm").fill("n2");
  await really.click();
  await tab.said("of n2 are taken over.");
  assert.deepEqual(await owners(), Array(PARTITIONS).fill("n1"));
  assert.equal(await tab.button("Take over n2").getAttribute("aria-disabled"), "true");
  await page.setViewportSize({ width: 360, height: 740 });
  await tab.fits("brokers after a takeover");

  await cluster.nodes.n2.start();
  await brokerRow(page, "n2").getByText("● up").waitFor({ timeout: 30_000 });
  await more(5);
  const { offsets: [{ end_offset: end }] } = await api.call("GET", "/mq/v1/topics/orders");
  for (const each of [api, other]) {
    const rows = await each.call("GET", `/topics/orders/partitions/0/records?offset=${end - 10}&format=json`);
    assert.deepEqual(rows.map(({ value }) => value), Array.from({ length: 10 }, (_, n) => sent - 10 + n));
  }
  await tab.end(/./);
});
