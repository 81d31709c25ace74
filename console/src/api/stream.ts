// Server-sent events over fetch: an EventSource cannot send a token.
import { ApiError, request } from "./client";

export interface ServerEvent {
  id: string;
  event: string;
  data: unknown;
}

const LONGEST_PAUSE_MS = 10_000;
const FIRST_PAUSE_MS = 500;
/** Three of the server's signs of life: a connection that is silent for longer is dead, as after a machine's sleep. */
const SILENCE_MS = 45_000;

async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const text = new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>;
  const reader = body.pipeThrough(text).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await heard(reader.read());
      if (done) return;
      const searched = Math.max(0, rest.length - 1); // is not searched again: an event may have megabytes
      rest += value;
      for (let end = rest.indexOf("\n\n", searched); end >= 0; end = rest.indexOf("\n\n")) {
        const read = eventOf(rest.slice(0, end));
        rest = rest.slice(end + 2);
        if (read) yield read;
      }
    }
  } finally {
    void reader.cancel().catch(() => undefined); // of a connection that is broken already
  }
}

/** Waits for what comes next; raises when nothing does for too long. */
function heard<T>(next: Promise<T>): Promise<T> {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error("the connection is silent")), SILENCE_MS);
    next.then(resolve, reject).finally(() => clearTimeout(timer));
  });
}

function eventOf(text: string): ServerEvent | undefined {
  const found = { id: "", event: "message", data: "" };
  for (const line of text.split("\n")) {
    const colon = line.indexOf(":");
    const name = line.slice(0, colon);
    if (name === "id" || name === "event" || name === "data") found[name] = line.slice(colon + 1).trimStart();
  }
  return found.data ? { ...found, data: JSON.parse(found.data) as unknown } : undefined;
}

export interface Following {
  onEvent: (event: ServerEvent) => void;
  /** The connection is there (true), or lost and tried again (false). */
  onConnection: (isConnected: boolean) => void;
  onFailure: (error: ApiError) => void;
}

/** Follows a stream until its event `end`, connecting again when it breaks; returns what stops it. */
export function follow(path: string, following: Following): () => void {
  const stopping = new AbortController();
  void run(path, following, stopping.signal);
  return () => stopping.abort();
}

async function run(path: string, following: Following, signal: AbortSignal): Promise<void> {
  let pause = FIRST_PAUSE_MS;
  let last = "";
  while (!signal.aborted) {
    try {
      const response = await request(path, { signal, headers: last ? { "Last-Event-ID": last } : {} });
      if (response.status === 204 || !response.body) return;
      following.onConnection(true);
      pause = FIRST_PAUSE_MS;
      for await (const event of events(response.body)) {
        if (signal.aborted || event.event === "end") return;
        if (event.id) last = event.id;
        following.onEvent(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && error.status !== 429) {
        following.onFailure(error);
        return;
      }
    }
    following.onConnection(false);
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
  }
}
