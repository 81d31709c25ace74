import { useEffect, useReducer, useState } from "react";
import { post } from "../api/client";
import { follow } from "../api/stream";
import type { RunDetail, RunEvent, RunLine, RunNode } from "../api/types";
import { useMay } from "../parts/caller";
import { readPages, useFetched, useLoaded } from "../parts/fetched";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { decisionsOf, NodeBody, type Decision } from "../parts/node-body";
import { Status } from "../parts/status";
import { Json, Text, visible } from "../parts/text";
import { Ago, Duration } from "../parts/time";
import { linkTo } from "../route";

const VIEWS = ["transcript", "logs", "events", "tools", "details"] as const;
const PAGE = 200;
const MOST_NODES = 2_000;

interface Delta {
  turn: number;
  at: number;
  text: string;
  is_complete: boolean;
}

interface Log {
  events: RunEvent[];
  turn: number;
  answer: string;
  isConnected: boolean;
  failure: unknown;
}

type News = { event: RunEvent } | { delta: Delta };
type Change = { news: readonly News[] } | { isConnected: boolean } | { failure: unknown };

const NOTHING: Log = { events: [], turn: 0, answer: "", isConnected: true, failure: null };
const FLUSH_EVERY_MS = 100;
/** What ends an answer in the log; the last piece of it need not arrive. */
const ANSWER_OVER = new Set(["soong.model_responded", "soong.model_failed"]);
/** Where a reader has missed the beginning of an answer. */
const GAP = "… ";

function changed(log: Log, change: Change): Log {
  if ("isConnected" in change) return { ...log, isConnected: change.isConnected };
  if ("failure" in change) return { ...log, failure: change.failure };
  const events = change.news.flatMap((one) => ("event" in one ? [one.event] : []));
  let { turn, answer } = log;
  for (const one of change.news) {
    if ("event" in one) {
      if (ANSWER_OVER.has(one.event.type)) answer = "";
      continue;
    }
    const { at, text, is_complete: isComplete } = one.delta;
    const before = one.delta.turn === turn ? answer : "";
    turn = one.delta.turn;
    answer = isComplete ? "" : (at <= before.length ? before.slice(0, at) : GAP) + text;
  }
  return { ...log, events: events.length ? [...log.events, ...events] : log.events, turn, answer };
}

/** Follows the log of a run. What comes at once is told at once, so that a long log is not drawn event by event. */
function useLog(id: string): Log {
  const [log, tell] = useReducer(changed, NOTHING);
  useEffect(() => {
    let waiting: News[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      timer = undefined;
      tell({ news: waiting });
      waiting = [];
    };
    const stop = follow(`/v1/runs/${id}/stream`, {
      onEvent: ({ event, data }) => {
        waiting.push(event === "delta" ? { delta: data as Delta } : { event: data as RunEvent });
        timer ??= setTimeout(flush, FLUSH_EVERY_MS);
      },
      onConnection: (isConnected) => tell({ isConnected }),
      onFailure: (failure) => tell({ failure }),
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [id]);
  return log;
}

/** One run: what the model read and wrote, its calls and who allowed them, its tools and why it has them. */
export function RunScreen({ id }: { id: string }) {
  const [view, setView] = useState<(typeof VIEWS)[number]>("transcript");
  const log = useLog(id);
  const run = useFetched<RunDetail>(`/v1/runs/${id}`, { version: log.events.length });
  if (run.isPending) return <Loading />;
  if (!run.data) return <ErrorNote error={run.error} />;
  return (
    <>
      <Head run={run.data} isConnected={log.isConnected} events={log.events} />
      <ErrorNote error={log.failure} />
      <div role="tablist" className="tabs">
        {VIEWS.map((name) => (
          <button key={name} role="tab" aria-selected={view === name} onClick={() => setView(name)}>
            {name}
          </button>
        ))}
      </div>
      <div role="tabpanel">
        {view === "transcript" && <Transcript id={id} count={run.data.nodes} answer={run.data.ended ? "" : log.answer} decisions={decisionsOf(log.events)} />}
        {view === "logs" && <Logs id={id} />}
        {view === "events" && <Events events={log.events} />}
        {view === "tools" && <Tools run={run.data} />}
        {view === "details" && <Details run={run.data} />}
      </div>
    </>
  );
}

function Head({ run, isConnected, events }: { run: RunDetail; isConnected: boolean; events: readonly RunEvent[] }) {
  const mayRun = useMay("run");
  const [failure, setFailure] = useState<unknown>(null);
  const call = openCall(events);
  const abort = (goesOn: boolean) => void post(`/v1/runs/${run.id}/abort`, { call: call?.id, continue: goesOn }).catch(setFailure);
  return (
    <header>
      <h1>
        {visible(run.step || run.definition || run.role)} <Status status={run.status} />
      </h1>
      <p className="dim">
        {run.role} {visible(run.definition)}
        {run.model && ` · ${visible(run.model)}`} · attempt {run.attempt} · <Duration from={run.started} to={run.ended} />
        {run.end_reason && ` · ended: ${run.end_reason}`} · <a href={linkTo("tasks", run.task)}>task</a> · <a href={linkTo("sessions", run.session)}>session</a>
        {run.parent_run && (
          <>
            {" "}
            · <a href={linkTo("runs", run.parent_run)}>parent</a>
          </>
        )}
        {run.retry_of && (
          <>
            {" "}
            · <a href={linkTo("runs", run.retry_of)}>the attempt before</a>
          </>
        )}
      </p>
      {losses(events).map((event) => (
        <p key={event.id} className="note warn">
          It lost its worker <Ago at={event.time} />: {visible(String((event.data as { reason?: string }).reason ?? ""))}. What it had done was kept.
        </p>
      ))}
      {run.is_tainted && <p className="note warn">It has read content of strangers.</p>}
      {run.malformed && <p className="note error">Part of its row cannot be read: {visible(run.malformed)}</p>}
      {!isConnected && !run.ended && <p className="note">The connection is lost; it is tried again.</p>}
      {mayRun && call && !run.ended && (
        <>
          <button className="deny" onClick={() => abort(false)}>
            Abort {call.tool} and the run
          </button>
          <button className="deny" onClick={() => abort(true)}>
            Abort the call alone
          </button>
        </>
      )}
      <ErrorNote error={failure} />
    </header>
  );
}

/** Returns the last times that the run lost its worker. */
function losses(events: readonly RunEvent[]): readonly RunEvent[] {
  return events.filter((event) => event.type === "soong.step_lease_expired").slice(-3);
}

/** Returns the tool call that started last and has not ended. */
function openCall(events: readonly RunEvent[]): { id: string; tool: string } | undefined {
  const open = new Map<string, string>();
  for (const event of events) {
    const data = event.data as { tool_call_id?: string; tool?: string };
    if (!data.tool_call_id) continue;
    if (event.type.endsWith("tool_started")) open.set(data.tool_call_id, data.tool ?? "");
    if (/tool_(completed|failed|denied)$/.test(event.type)) open.delete(data.tool_call_id);
  }
  const last = [...open].pop();
  return last && { id: last[0], tool: last[1] };
}

interface TranscriptProps {
  id: string;
  /** How many nodes the run has: more are read when it grows. */
  count: number;
  answer: string;
  decisions: ReadonlyMap<string, Decision>;
}

function Transcript({ id, count, answer, decisions }: TranscriptProps) {
  const path = `/v1/runs/${id}/nodes?limit=${PAGE}`;
  const nodes = useLoaded(path, async (signal) => (await readPages<RunNode>(path, "after", MOST_NODES / PAGE, signal)).items, { version: count });
  if (nodes.isPending) return <Loading />;
  const found = nodes.data ?? [];
  return (
    <>
      <ErrorNote error={nodes.error} />
      {found.length === 0 && !answer && <Empty>Nothing has been said yet. A Python step says nothing.</Empty>}
      <ol className="transcript">
        {found.map((node) => (
          <li key={node.number} className={node.kind}>
            <h3>
              {node.kind.replaceAll("_", " ")} <Ago at={node.created} />
            </h3>
            <NodeBody node={node} decisions={decisions} />
          </li>
        ))}
        {answer && (
          <li className="assistant streaming" aria-live="polite">
            <h3>writes …</h3>
            <Text>{answer}</Text>
          </li>
        )}
      </ol>
      {found.length >= MOST_NODES && <p className="dim">Only the first {MOST_NODES} entries are shown.</p>}
    </>
  );
}

/** What the code of the run printed, logged and raised. A run keeps a few thousand lines, however much it writes. */
function Logs({ id }: { id: string }) {
  const [lines, setLines] = useState<readonly RunLine[]>([]);
  const [failure, setFailure] = useState<unknown>(null);
  useEffect(() => {
    let waiting: RunLine[] = [];
    let timer: ReturnType<typeof setTimeout> | undefined;
    const flush = () => {
      const news = waiting;
      timer = undefined;
      waiting = [];
      setLines((before) => [...before, ...news]);
    };
    const stop = follow(`/v1/runs/${id}/logs/stream`, {
      onEvent: ({ data }) => {
        waiting.push(data as RunLine);
        timer ??= setTimeout(flush, FLUSH_EVERY_MS);
      },
      onConnection: () => undefined,
      onFailure: setFailure,
    });
    return () => {
      stop();
      clearTimeout(timer);
    };
  }, [id]);
  return (
    <>
      <ErrorNote error={failure} />
      {lines.length === 0 && <Empty>Nothing has been printed or logged.</Empty>}
      <ol className="lines">
        {lines.map((line) => (
          <li key={line.number} className={line.stream}>
            <span className="dim">
              {line.time.slice(11, 23)} {line.level || line.stream}
            </span>{" "}
            {visible(line.text)}
          </li>
        ))}
      </ol>
    </>
  );
}

function Events({ events }: { events: readonly RunEvent[] }) {
  const [text, setText] = useState("");
  const found = events.filter((event) => event.type.includes(text));
  return (
    <>
      <p className="controls">
        <label>
          type <input value={text} onChange={(event) => setText(event.target.value)} />
        </label>
        <span className="dim">
          {found.length} of {events.length}
        </span>
      </p>
      <ul className="audit">
        {found.slice(-1_000).map((event) => (
          <li key={event.id}>
            <details>
              <summary>
                <span className="dim">{event.id}</span> <strong>{event.type}</strong> <Ago at={event.time} />{" "}
                {visible(String((event.data as { tool?: string }).tool ?? ""))}
              </summary>
              <Json value={event.data} />
            </details>
          </li>
        ))}
      </ul>
      {found.length > 1_000 && <p className="dim">The newest 1,000 are shown.</p>}
    </>
  );
}

function Tools({ run }: { run: RunDetail }) {
  const shown = [...run.surface].sort((a, b) => Number(b.is_in) - Number(a.is_in));
  return (
    <table>
      <thead>
        <tr>
          <th>tool</th>
          <th>may it?</th>
          <th>the rule that decided</th>
        </tr>
      </thead>
      <tbody>
        {shown.map((one) => (
          <tr key={one.tool} className={one.is_in ? "" : "dim"}>
            <td>{visible(one.tool)}</td>
            <td>{one.is_in ? "✓ yes" : "✗ no"}</td>
            <td>{visible(one.rule)}</td>
          </tr>
        ))}
      </tbody>
    </table>
  );
}

function Details({ run }: { run: RunDetail }) {
  const { surface: _surface, tools: _tools, ...rest } = run;
  return <Json value={rest} />;
}
