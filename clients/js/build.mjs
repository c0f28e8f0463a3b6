// Builds dist/ (what is published) and build/ (the modules one by one, for the unit tests), and brings the browser's
// bundle to where the gateway serves it from. Prints the size that a browser downloads, and fails when it is too large.
// `npm install` of this folder runs it (package.json, "prepare"), so that an import from a clone works.
import { execFileSync } from "node:child_process";
import { copyFileSync, existsSync, readFileSync, readdirSync, rmSync, statSync } from "node:fs";
import { createRequire } from "node:module";
import { gzipSync } from "node:zlib";

const GZIP_BYTES_MAX = 12.5 * 1024;
const SERVED = "../../gateway/examples/mq.js";
const PUBLISHED = ["dist/mq.js", "dist/node.js", "dist/index.d.ts"];

const changedMs = Math.max(...readdirSync("src").map((name) => statSync(`src/${name}`).mtimeMs));
const isBuilt = PUBLISHED.every((name) => existsSync(name) && statSync(name).mtimeMs > changedMs);
if (process.argv.includes("--unless-built") && isBuilt) process.exit(0);
const { build } = await import("esbuild");

const begunMs = Date.now();
const common = { format: "esm", target: "es2022", legalComments: "none", logLevel: "warning" };
const bundle = { ...common, bundle: true };
await build({ ...bundle, entryPoints: ["src/index.ts"], outfile: "dist/mq.js", platform: "browser", minify: true });
await build({ ...bundle, entryPoints: ["src/node.ts"], outfile: "dist/node.js", platform: "node" });
const modules = readdirSync("src").map((name) => `src/${name}`);
await build({ ...common, entryPoints: modules, outdir: "build", platform: "node" });
// Resolved, not named by its path: `npm install` of this folder puts its packages into the folder of who installs it.
execFileSync(process.execPath, [createRequire(import.meta.url).resolve("typescript/bin/tsc")], { stdio: "inherit" });

// Afterwards, not before: who imports from dist/ meanwhile finds each file.
for (const folder of ["dist", "build"]) {
  for (const name of readdirSync(folder)) if (statSync(`${folder}/${name}`).mtimeMs < begunMs) rmSync(`${folder}/${name}`);
}

const bytes = readFileSync("dist/mq.js");
const zipped = gzipSync(bytes, { level: 9 }).length;
console.log(`dist/mq.js: ${bytes.length} bytes minified, ${zipped} bytes gzip (at most ${GZIP_BYTES_MAX})`);
if (zipped > GZIP_BYTES_MAX) {
  console.error(`the bundle is ${zipped - GZIP_BYTES_MAX} bytes too large`);
  process.exit(1);
}
if (!process.argv.includes("--dist-only")) copyFileSync("dist/mq.js", SERVED);
