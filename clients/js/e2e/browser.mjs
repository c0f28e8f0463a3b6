/** Headless Chromium of this machine, through playwright-core. Null with the reason where there is none. */
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

/** The first of these that there is. The shell is Chromium without what draws windows: the same pages for half the processor time. */
const PLACES = [process.env["MQ_CHROMIUM"], ...["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"].map((name) => `/usr/bin/${name}`)];

export async function launched() {
  const executablePath = PLACES.find((place) => place !== undefined && existsSync(place));
  if (executablePath === undefined) return null;
  return chromium.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] }); // root in a container; no GPU process
}
