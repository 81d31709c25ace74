// The questions that wait, kept by a long poll: the server answers as soon as the list changes.
import { useEffect, useState } from "react";
import { ApiError, query, request } from "../api/client";
import type { Approval, Page } from "../api/types";
import { useMay } from "./caller";

const PAUSE_MS = 2_000;

export interface Inbox {
  questions: Approval[];
  isConnected: boolean;
  isLoaded: boolean;
}

export function useInbox(): Inbox {
  const [inbox, setInbox] = useState<Inbox>({ questions: [], isConnected: true, isLoaded: false });
  const mayApprove = useMay("approve");
  useEffect(() => {
    const stopping = new AbortController();
    void poll(mayApprove, setInbox, stopping.signal);
    return () => stopping.abort();
  }, [mayApprove]);
  return inbox;
}

async function poll(attends: boolean, set: (change: (inbox: Inbox) => Inbox) => void, signal: AbortSignal) {
  let tag = "";
  while (!signal.aborted) {
    try {
      const path = query("/v1/approvals", {
        state: "pending",
        limit: 200,
        wait: tag ? 50 : 0,
        attend: attends ? "true" : "false",
      });
      const response = await request(path, { signal, headers: tag ? { "If-None-Match": tag } : {} });
      tag = response.headers.get("ETag") ?? "";
      if (response.status === 304) {
        set((inbox) => ({ ...inbox, isConnected: true }));
        continue;
      }
      const page = (await response.json()) as Page<Approval>;
      set(() => ({ questions: page.items, isConnected: true, isLoaded: true }));
      if (!tag) await pause(signal);
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status === 401) return;
      set((inbox) => ({ ...inbox, isConnected: false }));
      tag = "";
      await pause(signal);
    }
  }
}

function pause(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    const timer = setTimeout(resolve, PAUSE_MS);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      resolve();
    });
  });
}
