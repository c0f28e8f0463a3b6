/** Light, dark, or as the system is. Kept for this page only: the console stores nothing in the browser. */
import { computed, effect, signal } from "@preact/signals";

export type Theme = "system" | "light" | "dark";
export const theme = signal<Theme>("system");

const system = matchMedia("(prefers-color-scheme: dark)");
const systemIsDark = signal(system.matches);
system.addEventListener("change", () => {
  systemIsDark.value = system.matches;
});

export const isDark = computed(() => theme.value === "dark" || (theme.value === "system" && systemIsDark.value));

effect(() => {
  document.documentElement.dataset["theme"] = isDark.value ? "dark" : "light";
});

/** A colour of the current theme, for canvases. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}
