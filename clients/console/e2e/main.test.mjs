/** The main way through the pages, on a server of its own; and that what must not happen fails a test. */
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { Api, Server, Tab, browser, skip, until } from "./console.mjs";

let server;

before(async () => {
  if (browser !== null) server = await new Server().start();
});
after(async () => {
  await browser?.close();
  await server?.end();
});

test("the main way: create a topic, send to it now and later, read, follow, cancel; looking at a name creates nothing", { skip }, async () => {
  const tab = await Tab.at(server.url);
  const { page } = tab;
  for (const path of ["topics/nowhere", "topics/nowhere?tab=live", "topics/nowhere?tab=send", "delays?topic=nowhere", "groups/nowhere", "brokers?topic=nowhere"]) {
    await tab.open(path);
    await page.locator(".empty, .note.error").first().waitFor();
  }
  await tab.open("topics/nowhere");
  await page.getByText("There is no topic nowhere.").waitFor();
  assert.deepEqual((await new Api(server.url).call("GET", "/mq/v1/topics")).topics, [], "nothing was created by looking");
  await tab.go("topics");
  await tab.button("Create topic").first().click();
  await tab.dialog().getByLabel("Name").fill("orders");
  await tab.dialog().getByLabel("Partitions").fill("2");
  await tab.button("Create", tab.dialog()).click();
  await tab.said("Topic orders is there.");

  await page.getByRole("link", { name: "Send", exact: true }).click();
  await page.getByLabel("Key", { exact: true }).fill("u1");
  await page.getByRole("textbox", { name: "Value", exact: true }).fill('{"sku": 9}');
  await tab.button("Send").click();
  await page.getByText("On disk:").first().waitFor();
  await page.getByLabel("Deliver").selectOption("in");
  await page.getByLabel("Delay").fill("1h");
  await tab.button("Schedule").click();
  await page.getByText("Due ", { exact: false }).first().waitFor();

  await page.getByRole("link", { name: "Messages", exact: true }).click();
  const row = page.locator(".list-body .row").first();
  await row.getByText('{"sku":9}').waitFor();
  await row.click();
  await page.locator(".record pre").getByText('"sku": 9').waitFor();
  await tab.button("Hex").click();
  await page.locator(".record pre").getByText("7b 22 73 6b 75").waitFor();
  await tab.axe("a message");

  await page.getByRole("link", { name: "Live", exact: true }).click();
  await page.getByText("following").waitFor();
  await new Api(server.url).send("orders", [{ key: "u2", value: "<img src=x onerror=alert(1)>" }]);
  await page.locator(".list-body .row").getByText("onerror").waitFor();
  assert.equal(await page.locator(".list-body img").count(), 0, "a record is never markup");

  await tab.go("delays?topic=orders");
  await page.getByText("1 record due in this day").waitFor();
  await page.locator(".list-body .row").first().locator("input").check();
  await tab.button("Cancel").first().click();
  await tab.button("Cancel 1", tab.dialog()).click();
  await tab.said("1 record cancelled.");
  await page.getByText("No record waits for its time.").waitFor();
  await tab.axe("delays");

  await tab.go("overview");
  await page.getByText("No alarms").waitFor();
  await page.getByLabel("Theme").selectOption("dark");
  await tab.axe("the overview, dark");
  await page.setViewportSize({ width: 360, height: 720 });
  for (const path of ["overview", "topics", "topics/orders", "delays"]) {
    await tab.go(path);
    await tab.fits(path);
  }
  assert.deepEqual((await new Api(server.url).call("GET", "/mq/v1/topics")).topics.map(({ topic }) => topic), ["orders"], "nothing else was created");
  await tab.end(/status of 404/);
});

test("what must not happen fails a test: a violation of the policy, an error, something stored", { skip }, async () => {
  const wrong = {
    "violations of the policy": () => document.body.setAttribute("style", "color: red"),
    "errors in the console": () => console.error("wrong"),
    "nothing is stored": () => sessionStorage.setItem("token", "1"),
    "requests that failed": () => fetch("/nothing"),
  };
  for (const [said, act] of Object.entries(wrong)) {
    const tab = await Tab.at(server.url);
    await tab.open("overview");
    await tab.page.evaluate(act);
    if (said === "violations of the policy") await until(() => tab.violations.length > 0, "it is noted");
    tab.errors = tab.errors.filter((line) => !line.includes("Content Security Policy"));
    await assert.rejects(tab.end(), (error) => error.message.includes(said), said);
    await tab.context.close();
  }
});
