/** Nodes that share their topics, and the etcd in which they agree: docs/cluster.md. */
import { spawn, spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { Server, until } from "./console.mjs";

export const skipCluster = spawnSync("etcd", ["--version"]).error === undefined ? false : "there is no etcd here (Debian: apt-get install etcd-server)";

async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

export class Cluster {
  nodes = {};
  #directory = mkdtempSync(join(tmpdir(), "mq-etcd-"));
  #etcd;

  /** `args` and `environment` are those of every node. */
  static async of(names, args = [], environment = {}) {
    const cluster = new Cluster();
    const secret = join(cluster.#directory, "secret");
    writeFileSync(secret, "the secret of nodes in a browser's tests");
    const [client, peer] = [`http://127.0.0.1:${await freePort()}`, `http://127.0.0.1:${await freePort()}`];
    const given = {
      "data-dir": join(cluster.#directory, "data"), "listen-client-urls": client, "advertise-client-urls": client, "listen-peer-urls": peer,
      "initial-advertise-peer-urls": peer, "initial-cluster": `default=${peer}`, "log-level": "error",
    };
    cluster.#etcd = spawn("etcd", Object.entries(given).map(([name, value]) => `--${name}=${value}`), { stdio: "ignore" });
    await until(() => fetch(`${client}/health`).then(({ ok }) => ok, () => false), "etcd");
    for (const name of names) {
      const node = ["--node", name, "--etcd", client, "--secret-file", secret, "--internal-port", `${await freePort()}`];
      cluster.nodes[name] = new Server([...node, ...args], { MQ_KAFKA_ENABLED: "false", ...environment });
    }
    return cluster;
  }

  async start() {
    for (const node of Object.values(this.nodes)) await node.start();
    return this;
  }

  async end() {
    for (const node of Object.values(this.nodes)) await node.end();
    this.#etcd.kill("SIGKILL");
    rmSync(this.#directory, { recursive: true, force: true });
  }
}
