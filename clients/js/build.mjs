// Builds dist/: mq.js (browsers, minified), node.js, type declarations. Prints the size that a browser downloads.
import { execFileSync } from "node:child_process";
import { rmSync } from "node:fs";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";
import { readFileSync } from "node:fs";

const GZIP_BYTES_MAX = 12 * 1024;

rmSync("dist", { recursive: true, force: true });
const common = { bundle: true, format: "esm", target: "es2022", legalComments: "none" };
await build({ ...common, entryPoints: ["src/index.ts"], outfile: "dist/mq.js", platform: "browser", minify: true });
await build({ ...common, entryPoints: ["src/node.ts"], outfile: "dist/node.js", platform: "node" });
execFileSync(process.execPath, ["node_modules/typescript/bin/tsc"], { stdio: "inherit" });
const bytes = readFileSync("dist/mq.js");
const zipped = gzipSync(bytes, { level: 9 }).length;
console.log(`dist/mq.js: ${bytes.length} bytes minified, ${zipped} bytes gzip (at most ${GZIP_BYTES_MAX})`);
if (zipped > GZIP_BYTES_MAX) process.exit(1);
