import type { JSX } from "preact";

export function AccessPage(): JSX.Element {
  return <h1>Access</h1>;
}
