// Runs code in a browser tab as its console does, and prints what the tab logs.
// node readme_tab.mjs CLIENT PAGE FILE     (CLIENT: the folder clients/js, whose packages are installed)
import { readFileSync } from "node:fs";

const [client, page, file] = process.argv.slice(2);
const { launched } = await import(`${client}/e2e/browser.mjs`);
const browser = await launched();
const tab = await browser.newPage();
tab.on("console", async (line) => console.log(...(await Promise.all(line.args().map((one) => one.jsonValue())))));
tab.on("pageerror", (error) => console.error(String(error)));
await tab.goto(page);
await tab.evaluate(`(async () => { ${readFileSync(file, "utf8")} })()`);
