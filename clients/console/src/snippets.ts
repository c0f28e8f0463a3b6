/** The same in a shell, in Python, in JavaScript: what the console does can be taken along. Tokens never are. */
import { address } from "./api.js";
import { me } from "./session.js";

export type Language = "curl" | "python" | "js";
export const LANGUAGES: readonly (readonly [Language, string])[] = [["curl", "curl"], ["python", "Python"], ["js", "JavaScript"]];

export interface SendSpec {
  topic: string;
  /** JSON, or text. */
  value: { json: unknown } | { text: string } | null;
  key?: string;
  tag?: string;
  partition?: number;
  headers?: { key: string; text: string }[];
  delay_ms?: number;
  deliver_at?: number;
  schedule_key?: string;
}

/** A record as POST /topics/{topic} takes it. */
export function recordOf(spec: SendSpec): Record<string, unknown> {
  const { topic: _, value, headers, ...rest } = spec;
  return {
    ...Object.fromEntries(Object.entries(rest).filter(([, given]) => given !== undefined && given !== "")),
    ...(headers === undefined || headers.length === 0 ? {} : { headers }),
    ...(value === null ? {} : { value: "json" in value ? value.json : value.text }),
  };
}

const JSON_TYPE = "application/vnd.kafka.json.v2+json";
const TEXT_TYPE = "application/vnd.kafka.text.v2+json";

export function typeOf(spec: SendSpec): string {
  return spec.value !== null && "text" in spec.value ? TEXT_TYPE : JSON_TYPE;
}

const shell = (text: string) => `'${text.replaceAll("'", `'\\''`)}'`;
const hasToken = () => me.value?.is_authenticated === true;
const origin = () => address("").replace(/\/$/, "");
const python = (value: unknown): string => {
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value as object).map(([name, one]) => `${JSON.stringify(name)}: ${python(one)}`).join(", ")}}`;
  return JSON.stringify(value);
};

function curl(method: string, path: string, headers: string[], body?: string): string {
  const lines = [`curl ${method === "GET" ? "" : method === "POST" && body !== undefined ? "" : `-X ${method} `}${shell(origin() + path)}`];
  if (hasToken()) lines.push(`-H "Authorization: Bearer $MQ_TOKEN"`);
  for (const header of headers) lines.push(`-H ${shell(header)}`);
  if (body !== undefined) lines.push(`-d ${shell(body)}`);
  return lines.join(" \\\n     ");
}

export function sendSnippet(language: Language, spec: SendSpec): string {
  const record = recordOf(spec);
  if (language === "curl") {
    return curl("POST", `/topics/${encodeURIComponent(spec.topic)}`, [`Content-Type: ${typeOf(spec)}`], JSON.stringify({ records: [record] }));
  }
  const headers = Object.fromEntries((spec.headers ?? []).map(({ key, text }) => [key, text]));
  if (language === "python") {
    const value = spec.value === null ? "None" : "text" in spec.value ? `${JSON.stringify(spec.value.text)}.encode()` : python(spec.value.json);
    const options = [
      ...(["key", "tag", "partition", "schedule_key"] as const).filter((name) => record[name] !== undefined).map((name) => `${name}=${python(record[name])}`),
      ...(spec.delay_ms === undefined ? [] : [`delay="${spec.delay_ms}ms"`]),
      ...(spec.deliver_at === undefined ? [] : [`at=${spec.deliver_at / 1000}`]),
      ...(Object.keys(headers).length === 0 ? [] : [`headers=${python(headers)}`]),
    ];
    return [
      `import asyncio${hasToken() ? ", os" : ""}`,
      "import mq",
      "",
      "async def main():",
      `    async with mq.connect(${JSON.stringify(origin())}${hasToken() ? `, token=os.environ["MQ_TOKEN"]` : ""}) as client:`,
      `        print(await client.send(${[JSON.stringify(spec.topic), value, ...options].join(", ")}))`,
      "",
      "asyncio.run(main())",
    ].join("\n");
  }
  const value = spec.value === null ? "null" : "text" in spec.value ? `new TextEncoder().encode(${JSON.stringify(spec.value.text)})` : JSON.stringify(spec.value.json);
  const named: [string, unknown][] = [
    ["key", spec.key], ["tag", spec.tag], ["partition", spec.partition], ["delayMs", spec.delay_ms], ["deliverAt", spec.deliver_at],
    ["scheduleKey", spec.schedule_key], ["headers", Object.keys(headers).length === 0 ? undefined : headers],
  ];
  const fields = [`value: ${value}`, ...named.filter(([, given]) => given !== undefined && given !== "").map(([name, given]) => `${name}: ${JSON.stringify(given)}`)];
  return [
    `import { connect } from "mq-client";`,
    `const mq = await connect(${JSON.stringify(origin())}${hasToken() ? ", { token: process.env.MQ_TOKEN }" : ""});`,
    `console.log(await mq.produce(${JSON.stringify(spec.topic)}, { ${fields.join(", ")} }));`,
    "await mq.close();",
  ].join("\n");
}

export function readSnippet(language: Language, topic: string, partition: number, offset: number): string {
  const path = `/topics/${encodeURIComponent(topic)}/partitions/${partition}/records?offset=${offset}&max_records=1`;
  if (language === "curl") return curl("GET", path, ["Accept: application/x-ndjson"]);
  if (language === "python") {
    return [
      "import json, os, urllib.request",
      "",
      `request = urllib.request.Request(${JSON.stringify(origin() + path)}, headers={"Accept": "application/x-ndjson"${hasToken() ? `, "Authorization": "Bearer " + os.environ["MQ_TOKEN"]` : ""}})`,
      "print(json.loads(urllib.request.urlopen(request).readline()))",
    ].join("\n");
  }
  return [
    `const answer = await fetch(${JSON.stringify(origin() + path)}, { headers: { Accept: "application/x-ndjson"${hasToken() ? ", Authorization: `Bearer ${process.env.MQ_TOKEN}`" : ""} } });`,
    "console.log(JSON.parse(await answer.text()));",
  ].join("\n");
}
