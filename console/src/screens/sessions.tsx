import { post, query } from "../api/client";
import type { Run, Session, SessionDetail } from "../api/types";
import { useCaller, useMay } from "../parts/caller";
import { readPages, useFetched, useLoaded, usePages } from "../parts/fetched";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { Status } from "../parts/status";
import { Json, Name, visible } from "../parts/text";
import { Ago, Duration } from "../parts/time";
import { linkTo } from "../route";
import { TasksScreen } from "./tasks";

const EVERY_MS = 3_000;
const MOST_RUNS = 2_000;
const PAGE = 200;

export function SessionsScreen() {
  const sessions = usePages<Session>("/v1/sessions?closed=true", { everyMs: EVERY_MS });
  if (sessions.isPending) return <Loading />;
  const found = sessions.data ?? [];
  return (
    <>
      <h1>Sessions</h1>
      <ErrorNote error={sessions.error} />
      {found.length === 0 && <Empty>There is no session yet.</Empty>}
      <table>
        <thead>
          <tr>
            <th>session</th>
            <th>of</th>
            <th>project</th>
            <th>answers</th>
            <th>state</th>
            <th>made</th>
          </tr>
        </thead>
        <tbody>
          {found.map((one) => (
            <tr key={one.id}>
              <td>
                <a href={linkTo("sessions", one.id)}>{one.id.slice(0, 13)}…</a>
              </td>
              <td>{visible(one.principal)}</td>
              <td>
                <Name>{one.project}</Name>
              </td>
              <td>{one.approval_mode}</td>
              <td>{one.is_closed ? "closed" : one.is_owned ? "open" : "waits for an orchestrator"}</td>
              <td>
                <Ago at={one.created} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {sessions.more && <button onClick={sessions.more}>Older sessions</button>}
    </>
  );
}

/** One session: its tasks, the tree of its agents, its rules. */
export function SessionScreen({ id }: { id: string }) {
  const caller = useCaller();
  const mayRun = useMay("run");
  const session = useFetched<SessionDetail>(`/v1/sessions/${id}`, { everyMs: EVERY_MS });
  const runs = useLoaded(`runs of ${id}`, (signal) => newestRuns(id, signal), { everyMs: EVERY_MS });
  if (session.isPending) return <Loading />;
  if (!session.data) return <ErrorNote error={session.error} />;
  const mayClose = mayRun && !session.data.is_closed && (session.data.principal === caller?.principal || caller?.rights.includes("admin"));
  return (
    <>
      <h1>Session of {visible(session.data.principal)}</h1>
      <p className="dim">
        {session.data.id} · {visible(session.data.project)} · questions: {session.data.approval_mode}
      </p>
      {mayClose && (
        <button
          onClick={() => {
            void post(`/v1/sessions/${id}/close`).then(session.again);
          }}
        >
          Close the session
        </button>
      )}
      <TasksScreen session={id} />
      <h2>Agents</h2>
      <ErrorNote error={runs.error} />
      <RunTree runs={runs.data ?? []} />
      {(runs.data?.length ?? 0) >= MOST_RUNS && <p className="dim">Only the newest {MOST_RUNS} runs are shown.</p>}
      <h2>Rules</h2>
      <Json value={session.data.policy} />
    </>
  );
}

async function newestRuns(session: string, signal: AbortSignal): Promise<Run[]> {
  const pages = await readPages<Run>(query("/v1/runs", { session, limit: PAGE }), "cursor", MOST_RUNS / PAGE, signal);
  return pages.items.reverse();
}

function RunTree({ runs }: { runs: readonly Run[] }) {
  const known = new Set(runs.map((run) => run.id));
  const roots = runs.filter((run) => !known.has(run.parent_run));
  if (runs.length === 0) return <Empty>No run has been made.</Empty>;
  return <Branch runs={roots} all={runs} />;
}

function Branch({ runs, all }: { runs: readonly Run[]; all: readonly Run[] }) {
  return (
    <ul className="tree">
      {runs.map((run) => {
        const below = all.filter((one) => one.parent_run === run.id);
        return (
          <li key={run.id}>
            <details open={below.length <= 50}>
              <summary>
                <a href={linkTo("runs", run.id)}>
                  <Name>{run.step || run.definition || run.role}</Name>
                </a>{" "}
                <span className="dim">
                  {run.role}
                  {run.model && `, ${visible(run.model)}`}
                </span>{" "}
                <Status status={run.status} />{" "}
                <span className="dim">
                  <Duration from={run.started} to={run.ended} />
                </span>
                {below.length > 50 && <span className="dim"> {below.length} children</span>}
              </summary>
              {below.length > 0 && <Branch runs={below} all={all} />}
            </details>
          </li>
        );
      })}
    </ul>
  );
}
