/** What the caller may do, by the rules of docs/security.md: a deny wins, else any allow. Only for the look of buttons: the server decides. */
import { me, type Scope } from "./session.js";

export type Permission = "describe" | "send" | "receive" | "create" | "delete" | "operate" | "audit" | "access";

function matches(pattern: string, name: string): boolean {
  return pattern.endsWith("*") ? name.startsWith(pattern.slice(0, -1)) : pattern === name;
}

function covers(scope: Scope, permission: Permission, kind: "topic" | "group" | null, name: string): boolean {
  if (!scope.permissions.includes(permission)) return false;
  if (scope.kind === null) return true;
  return kind === scope.kind && matches(scope.pattern, name);
}

/** Null when it is allowed, else the reason why not, in words for the button. */
export function denied(permission: Permission, what: { topic?: string; group?: string } = {}): string | null {
  const who = me.value;
  if (who === null) return "Not signed in.";
  const kind = what.topic !== undefined ? "topic" : what.group !== undefined ? "group" : null;
  const name = what.topic ?? what.group ?? "";
  if (permission === "send" && kind === "topic" && name.startsWith("%")) return "System topics take no records from clients.";
  const isAllowed = who.allow.some((scope) => covers(scope, permission, kind, name));
  const isDenied = who.deny.some((scope) => covers(scope, permission, kind, name));
  if ((isAllowed && !isDenied) || !who.is_whole) return null;
  const right = kind === null ? permission : `${permission}:${kind}:${name}`;
  return `Your token does not have the right ${right}.`;
}

/** Whether some name could be allowed: for pages and forms that name none yet. */
export function deniedEverywhere(permission: Permission): string | null {
  const who = me.value;
  if (who === null) return "Not signed in.";
  if (!who.is_whole || who.allow.some((scope) => scope.permissions.includes(permission))) return null;
  return `Your token does not have the right ${permission} for anything.`;
}

export function firstDenied(...reasons: (string | null)[]): string | null {
  return reasons.find((reason) => reason !== null) ?? null;
}
