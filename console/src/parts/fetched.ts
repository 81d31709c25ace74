// Documents of the API that a screen shows: read when it opens, and again while it is looked at.
import { useCallback, useEffect, useState } from "react";
import { get, query } from "../api/client";
import type { Page } from "../api/types";

export interface Fetched<T> {
  data: T | undefined;
  error: unknown;
  isPending: boolean;
  again: () => void;
}

interface Options {
  /** Read again after so long; 0: once. Nothing is read while the page is hidden. */
  everyMs?: number;
  /** Read again when this changes; what was read before stays until then. */
  version?: string | number;
}

/** Reads what `load` returns, as long as the screen is open; `key` says what is read. */
export function useLoaded<T>(key: string, load: (signal: AbortSignal) => Promise<T>, { everyMs = 0, version = "" }: Options = {}): Fetched<T> {
  const [state, setState] = useState<{ key: string; data: T | undefined; error: unknown }>({ key, data: undefined, error: null });
  const [round, setRound] = useState(0);
  useEffect(() => {
    const stopping = new AbortController();
    let timer: ReturnType<typeof setTimeout> | undefined;
    const read = async () => {
      if (!document.hidden) {
        try {
          const data = await load(stopping.signal);
          setState({ key, data, error: null });
        } catch (error) {
          if (stopping.signal.aborted) return;
          setState((before) => ({ key, data: before.key === key ? before.data : undefined, error }));
        }
      }
      if (everyMs && !stopping.signal.aborted) timer = setTimeout(() => void read(), everyMs);
    };
    void read();
    return () => {
      stopping.abort();
      clearTimeout(timer);
    };
    // `load` is another function at each rendering; `key` names what it reads.
  }, [key, everyMs, version, round]);
  const isOld = state.key !== key;
  const data = isOld ? undefined : state.data;
  const error = isOld ? null : state.error;
  return { data, error, isPending: data === undefined && !error, again: useCallback(() => setRound((count) => count + 1), []) };
}

export function useFetched<T>(path: string, options: Options = {}): Fetched<T> {
  return useLoaded(path, (signal) => get<T>(path, signal), options);
}

/** Reads a list page by page: the first, and one more with each `more`. `cursor` is the name of the parameter. */
export function usePages<T>(path: string, options: Options & { cursor?: string } = {}): Fetched<T[]> & { more: (() => void) | null } {
  const [pages, setPages] = useState(1);
  const found = useLoaded(`${path} ${pages}`, (signal) => readPages<T>(path, options.cursor ?? "cursor", pages, signal), options);
  const more = useCallback(() => setPages((count) => count + 1), []);
  return { ...found, data: found.data?.items, more: found.data?.next ? more : null };
}

/** Reads pages from the first on, at most `most` of them. */
export async function readPages<T>(path: string, cursor: string, most: number, signal: AbortSignal): Promise<Page<T>> {
  const items: T[] = [];
  let next: string | null = "";
  for (let number = 0; number < most && next !== null; number += 1) {
    const separator: string = path.includes("?") ? "&" : "?";
    const page: Page<T> = await get(next ? `${path}${separator}${query("", { [cursor]: next }).slice(1)}` : path, signal);
    items.push(...page.items);
    next = page.next;
  }
  return { items, next };
}
