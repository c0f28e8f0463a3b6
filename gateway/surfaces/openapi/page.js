"use strict";
// A filter over routes and shapes, and opening what a link points to. The page is complete without it.
const filter = document.getElementById("filter");
const rows = [...document.querySelectorAll("[data-find]")];
const groups = [...document.querySelectorAll("nav details")];
const sections = [...document.querySelectorAll("main section")];

function show() {
  const words = filter.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
  for (const row of rows) row.hidden = !words.every((word) => row.dataset.find.includes(word));
  for (const group of groups) {
    const found = group.querySelector("li:not([hidden])") !== null;
    group.hidden = !found;
    group.open = found && words.length > 0;
  }
  for (const section of sections) {
    const operations = [...section.querySelectorAll(".operation")];
    section.hidden = words.length > 0 && !operations.some((one) => !one.hidden);
  }
}

function openTarget() {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target === null) return;
  if (target.hidden) {
    filter.value = "";
    show();
  }
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView();
}

filter.hidden = false;
filter.addEventListener("input", show);
addEventListener("hashchange", openTarget);
addEventListener("keydown", (event) => {
  if (event.key === "/" && document.activeElement !== filter) {
    event.preventDefault();
    filter.focus();
  }
});
openTarget();

// Try it: a form for each route, made when it is asked for out of the document beside this page. Nothing is sent before Send is pressed, and the
// token stays in this page's memory; a console that has opened this page hands its own over.
const SHOWN_MAX = 256 * 1024;
const HEADERS_SHOWN = ["content-type", "etag", "location", "retry-after", "x-request-id"];
let token = "";
let documented = null;

function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

function labelled(text, input) {
  return element("label", {}, element("span", { textContent: text }), input);
}

async function resolver() {
  documented ??= fetch("openapi.json").then((answer) => answer.json());
  const openapi = await documented;
  return [openapi, (node) => {
    while (node.$ref !== undefined) node = node.$ref.slice(2).split("/").reduce((found, step) => found[step], openapi);
    return node;
  }];
}

function routeOf(openapi, operationId) {
  for (const [path, item] of Object.entries(openapi.paths)) {
    for (const [method, one] of Object.entries(item)) if (one.operationId === operationId) return { path, method, item, one };
  }
  throw new Error(`no route ${operationId}`);
}

function exampleOf(schema, resolved) {
  const found = resolved(schema);
  const example = (found.examples ?? found["x-item-schema"]?.examples)?.[0];
  return example === undefined ? "" : typeof example === "string" ? example : JSON.stringify(example, null, 2);
}

async function tryForm(operation) {
  const [openapi, resolved] = await resolver();
  const { path, method, item, one } = routeOf(openapi, operation.id);
  const parameters = [...(item.parameters ?? []), ...(one.parameters ?? [])].map(resolved).filter(({ name }) => name !== "X-Request-Id");
  const inputs = parameters.map((parameter) => {
    const example = resolved(parameter.schema).examples?.[0] ?? "";
    const input = element("input", { type: "text", autocomplete: "off", spellcheck: false, required: parameter.required });
    if (parameter.in === "path") input.value = example;
    else input.placeholder = example;
    return { parameter, input };
  });
  const form = element("form", { className: "try" }, ...inputs.map(({ parameter, input }) => labelled(`${parameter.name}${parameter.required ? " *" : ""}`, input)));
  const content = one.requestBody?.content ?? {};
  const type = element("select", {}, ...Object.keys(content).map((media) => element("option", { textContent: media })));
  const body = element("textarea", { rows: 6, spellcheck: false, value: content[type.value] === undefined ? "" : exampleOf(content[type.value].schema, resolved) });
  type.onchange = () => (body.value = exampleOf(content[type.value].schema, resolved));
  if (type.options.length > 0) form.append(labelled("Content-Type", type), labelled("Body", body));
  const send = element("button", { type: "submit", textContent: `Send ${method.toUpperCase()}` });
  const stop = element("button", { type: "button", textContent: "Stop", hidden: true });
  const status = element("p", { className: "status" });
  status.setAttribute("role", "status");
  const shown = element("code");
  const output = element("pre", { hidden: true }, shown);
  output.tabIndex = 0;
  form.append(element("p", {}, send, " ", stop), status, output);
  form.onsubmit = (event) => {
    event.preventDefault();
    const address = new URL(path.slice(1), document.baseURI);
    const headers = new Headers(token === "" ? {} : { Authorization: `Bearer ${token}` });
    for (const { parameter, input } of inputs) {
      if (parameter.in === "path") address.pathname = address.pathname.replace(encodeURI(`{${parameter.name}}`), encodeURIComponent(input.value));
      else if (input.value !== "" && parameter.in === "query") address.searchParams.append(parameter.name, input.value);
      else if (input.value !== "") headers.set(parameter.name, input.value);
    }
    const hasBody = body.value !== "" && type.options.length > 0;
    if (hasBody) headers.set("Content-Type", type.value);
    void exchange(address, { method: method.toUpperCase(), headers, ...(hasBody ? { body: body.value } : {}) }, { send, stop, status, shown, output });
  };
  return form;
}

/** Send a request, and show what comes as it comes: some answers never end. */
async function exchange(address, request, { send, stop, status, shown, output }) {
  const stopping = new AbortController();
  const began = performance.now();
  [send.disabled, stop.hidden, output.hidden, status.textContent, shown.textContent] = [true, false, true, "Sent; waiting for the answer …", ""];
  stop.onclick = () => stopping.abort();
  let line = "";
  try {
    const answer = await fetch(address, { ...request, signal: stopping.signal, credentials: "omit", cache: "no-store" });
    line = `${answer.status} ${answer.statusText}, ${Math.round(performance.now() - began)} ms`;
    for (const name of HEADERS_SHOWN) if (answer.headers.has(name)) line += `, ${name}: ${answer.headers.get(name)}`;
    status.textContent = line;
    const reader = answer.body?.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader?.read(); part !== undefined && !part.done; part = await reader.read()) {
      output.hidden = false;
      shown.append(part.value);
      if (shown.textContent.length > SHOWN_MAX) {
        line += "; only the beginning is shown";
        stopping.abort();
        break;
      }
    }
    if (/json$/.test(answer.headers.get("content-type") ?? "")) shown.textContent = JSON.stringify(JSON.parse(shown.textContent), null, 2);
    status.textContent = line;
  } catch (error) {
    status.textContent = stopping.signal.aborted ? `${line === "" ? "No answer" : line}; stopped` : line === "" ? `No answer: ${error.message}` : line;
  }
  [send.disabled, stop.hidden] = [false, true];
}

for (const operation of document.querySelectorAll("[data-try]")) {
  const button = element("button", { type: "button", className: "open-try", textContent: "Try it" });
  button.onclick = async () => {
    button.disabled = true;
    try {
      button.replaceWith(await tryForm(operation));
    } catch (error) {
      [button.disabled, button.textContent] = [false, `Try it (${error.message})`];
    }
  };
  operation.querySelector(".inside > pre").after(button);
}

const tokenField = document.getElementById("token");
if (tokenField !== null) {
  tokenField.hidden = false;
  const input = tokenField.querySelector("input");
  const told = tokenField.querySelector("[role=status]");
  input.addEventListener("input", () => {
    token = input.value.trim();
    told.textContent = token === "" ? "" : "Kept in this page's memory only.";
  });
  addEventListener("message", ({ origin, source, data }) => {
    if (origin !== location.origin || source !== opener || typeof data?.mqToken !== "string") return;
    token = data.mqToken;
    input.value = token;
    told.textContent = "The token of the console that opened this page.";
  });
  opener?.postMessage("mq-docs", location.origin);
}
