/** Headless Chromium of this machine, through playwright-core. Null with the reason where there is none. */
import { existsSync } from "node:fs";
import { chromium } from "playwright-core";

const PLACES = [process.env["MQ_CHROMIUM"], "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export async function launched() {
  const executablePath = PLACES.find((place) => place !== undefined && existsSync(place));
  if (executablePath === undefined) return null;
  return chromium.launch({ executablePath, args: ["--no-sandbox"] }); // root, in a container
}
