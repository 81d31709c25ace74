// Where the reader is: the address behind the `#`, such as #/tasks/task_1?step=review. It never holds a token.
import { useSyncExternalStore } from "react";

export interface Route {
  parts: string[];
  parameters: URLSearchParams;
}

function subscribe(changed: () => void): () => void {
  addEventListener("hashchange", changed);
  return () => removeEventListener("hashchange", changed);
}

export function parseRoute(hash: string): Route {
  const [path = "", search = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  return { parts: path.split("/").filter(Boolean).map(decodeURIComponent), parameters: new URLSearchParams(search) };
}

export function useRoute(): Route {
  return parseRoute(useSyncExternalStore(subscribe, () => location.hash));
}

export function linkTo(...parts: string[]): string {
  return `#/${parts.map(encodeURIComponent).join("/")}`;
}

export function go(...parts: string[]): void {
  location.hash = linkTo(...parts);
}

/** Takes the code of a sign-in out of the address, and out of the history; returns it, or "". */
export function takeCode(): string {
  const found = /^#code=([A-Za-z0-9_-]+)(?:&to=(.*))?$/.exec(location.hash);
  if (!found) return "";
  history.replaceState(null, "", found[2] ? `#${decodeURIComponent(found[2])}` : location.pathname);
  return found[1] ?? "";
}
