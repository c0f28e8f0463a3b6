/** A real server: a process of its own, killed and started again on the same data and port. */
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { existsSync, mkdtempSync, openSync, readFileSync, rmSync } from "node:fs";
import { connect as connectTcp, createServer } from "node:net";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const REPOSITORY = resolve(fileURLToPath(import.meta.url), "../../../..");
const PYTHON = process.env["MQ_PYTHON"] ?? join(REPOSITORY, ".venv/bin/python");
const START_TIMEOUT_MS = 90_000;
const PAUSE_MS_MAX = 100;
/** A test that fails, or is killed, leaves no server behind. */
const DIES_WITH_US = existsSync("/usr/bin/setpriv") ? ["/usr/bin/setpriv", "--pdeathsig", "KILL"] : [];
/** Of ours, but not for servers: they refuse settings that they do not know. */
const ENVIRONMENT = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("MQ_")));

export class Server {
  port = 0;
  #process = null;
  #directory = mkdtempSync(join(tmpdir(), "mq-js-"));

  constructor(args = [], environment = {}) {
    this.args = args;
    this.environment = environment;
  }

  get url() {
    return `http://127.0.0.1:${this.port}`;
  }

  get data() {
    return join(this.#directory, "data");
  }

  async start() {
    const log = openSync(join(this.#directory, "log"), "a");
    const [command, ...args] = [...DIES_WITH_US, PYTHON, "-m", "gateway", "serve", "--data", this.data, "--port", `${this.port}`, ...this.args];
    this.#process = spawn(command, args, {
      cwd: REPOSITORY,
      env: { ...ENVIRONMENT, ...this.environment },
      stdio: ["ignore", "pipe", log],
    });
    const started = this.#process;
    const line = await Promise.race([
      once(started.stdout, "data").then(([chunk]) => String(chunk).trim()),
      once(started, "exit").then(() => "it ended"),
      new Promise((_, reject) => setTimeout(() => reject(new Error("the server did not start")), START_TIMEOUT_MS).unref()),
    ]);
    if (!line.startsWith("http")) throw new Error(`${line}\n${this.log()}`);
    this.port = Number(new URL(line).port);
    return this;
  }

  log() {
    return readFileSync(join(this.#directory, "log"), "utf8");
  }

  signal(name) {
    this.#process.kill(name);
  }

  /** kill -9. */
  async kill() {
    this.#process.kill("SIGKILL");
    await once(this.#process, "exit");
  }

  /** SIGTERM; resolves when it has ended. */
  async stop() {
    this.#process.kill("SIGTERM");
    await once(this.#process, "exit");
  }

  /** Leave nothing behind. */
  async end() {
    if (this.#process !== null && this.#process.exitCode === null && this.#process.signalCode === null) await this.kill();
    rmSync(this.#directory, { recursive: true, force: true });
  }

  /** `mq …` on this server's data; what it printed. */
  mq(...args) {
    const { status, stdout, stderr } = spawnSync(PYTHON, ["-m", "gateway", ...args, "--data", this.data], { cwd: REPOSITORY, encoding: "utf8", env: { ...ENVIRONMENT, ...this.environment } });
    if (status !== 0) throw new Error(stderr);
    return stdout.trim();
  }
}

/** Between client and server: cuts all connections when told to. */
export class Cutter {
  #links = new Set();
  #server;

  static async to(port) {
    const cutter = new Cutter();
    cutter.#server = createServer((client) => {
      const server = connectTcp(port, "127.0.0.1");
      const link = { client, server };
      cutter.#links.add(link);
      for (const [one, other] of [[client, server], [server, client]]) {
        one.on("error", () => {});
        one.on("close", () => {
          cutter.#links.delete(link);
          other.destroy();
        });
        one.pipe(other);
      }
    });
    await new Promise((resolve) => cutter.#server.listen(0, "127.0.0.1", resolve));
    return cutter;
  }

  get url() {
    return `http://127.0.0.1:${this.#server.address().port}`;
  }

  cut() {
    for (const { client, server } of this.#links) {
      client.resetAndDestroy();
      server.resetAndDestroy();
    }
  }

  end() {
    this.cut();
    this.#server.close();
  }
}

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Wait until it is so, looking less and less often: each look may take a request, or a browser its time. Fails with what it was. */
export async function until(isSo, what = "it", timeoutMs = 30_000) {
  let pauseMs = 10;
  for (const end = Date.now() + timeoutMs; Date.now() < end; pauseMs = Math.min(2 * pauseMs, PAUSE_MS_MAX)) {
    if (await isSo()) return;
    await sleep(pauseMs);
  }
  throw new Error(`${typeof what === "function" ? what() : what} did not come to be within ${timeoutMs} ms`);
}
