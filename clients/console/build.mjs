// Builds the console into the folder from which the gateway serves it. Prints what a browser downloads, and fails when it is too much.
// With --out DIRECTORY it builds there instead: the tests compare that with what is committed.
import { copyFileSync, mkdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";
import { build } from "esbuild";

const GZIP_BYTES_MAX = 150_000;
const SERVED = "../../gateway/surfaces/console/static";

const given = process.argv.indexOf("--out");
const out = given < 0 ? SERVED : process.argv[given + 1];
mkdirSync(out, { recursive: true });
await build({
  entryPoints: { console: "src/main.tsx" },
  outdir: out,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "none",
  logLevel: "warning",
  jsx: "automatic",
  jsxImportSource: "preact",
  alias: { "mq-client": "../js/src/index.ts" },
});
for (const name of ["index.html", "icon.svg"]) copyFileSync(join("src", name), join(out, name));
const files = ["index.html", "console.js", "console.css", "icon.svg"];
const sizes = files.map((name) => [name, gzipSync(readFileSync(join(out, name)), { level: 9 }).length]);
const total = sizes.reduce((sum, [, size]) => sum + size, 0);
for (const [name, size] of sizes) console.log(`${name}: ${size} bytes gzip`);
console.log(`in all: ${total} bytes gzip (at most ${GZIP_BYTES_MAX})`);
if (total > GZIP_BYTES_MAX) {
  console.error(`the console is ${total - GZIP_BYTES_MAX} bytes too large`);
  process.exit(1);
}
