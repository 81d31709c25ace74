import { useState } from "react";
import { post } from "../api/client";
import type { Workers } from "../api/types";
import { useMay } from "../parts/caller";
import { useFetched } from "../parts/fetched";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { Name, visible } from "../parts/text";
import { Ago, Duration } from "../parts/time";
import { linkTo } from "../route";

/** Workers with what each holds, the queues, and the limits on what runs at once. */
export function WorkersScreen() {
  const found = useFetched<Workers>("/v1/workers", { everyMs: 2_000 });
  if (found.isPending) return <Loading />;
  const { workers = [], pools = [], limits = [], parked = 0 } = found.data ?? {};
  const isPaused = (scope: string) => limits.some((limit) => limit.scope === scope && limit.is_paused);
  return (
    <>
      <h1>Workers</h1>
      <ErrorNote error={found.error} />
      {workers.length === 0 && (
        <Empty>
          No worker lives. <code>soong worker</code> starts one.
        </Empty>
      )}
      {workers.map((worker) => (
        <section key={worker.id} className="card" aria-label={worker.name}>
          <h2>
            {visible(worker.name)} <span className={`status ${worker.state}`}>{worker.state}</span>
          </h2>
          <p>
            <meter min={0} max={worker.slots} value={worker.used} aria-label="slots in use" /> {worker.used} of {worker.slots} slots
            <span className="dim">
              {" "}
              · {visible(worker.host)}, process {worker.pid} · queues {worker.queues.map(visible).join(", ")}
              {worker.labels.length > 0 && ` · ${worker.labels.map(visible).join(", ")}`} · since <Ago at={worker.started} />
            </span>
          </p>
          <ul>
            {unendedFirst(worker.runs).slice(0, 20).map((run) => (
              <li key={run.run}>
                <a href={linkTo("runs", run.run)}>
                  <Name>{run.title || run.step}</Name>
                </a>{" "}
                <span className="dim">
                  <Duration from={run.started} to={null} />
                  {run.attempt > 1 && `, attempt ${run.attempt}`}
                </span>
                {run.unended && <p className="note warn">{visible(run.unended)}</p>}
              </li>
            ))}
          </ul>
          {worker.runs.length > 20 && <p className="dim">and {worker.runs.length - 20} more</p>}
        </section>
      ))}
      <h2>Queues</h2>
      <table>
        <thead>
          <tr>
            <th>queue</th>
            <th>waiting steps</th>
            <th>free slots</th>
            <th />
          </tr>
        </thead>
        <tbody>
          {pools.map((pool) => (
            <tr key={pool.pool}>
              <td>{visible(pool.queue)}</td>
              <td>{pool.waiting}</td>
              <td>{pool.free_slots}</td>
              <td>
                <Pause scope={`pool:${pool.pool}`} isPaused={isPaused(`pool:${pool.pool}`)} onDone={found.again} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      <p className="dim">{parked} runs wait for consent without a slot.</p>
      {limits.length > 0 && (
        <>
          <h2>Limits</h2>
          <table>
            <thead>
              <tr>
                <th>of</th>
                <th>in use</th>
                <th>at most</th>
                <th />
              </tr>
            </thead>
            <tbody>
              {limits.map((limit) => (
                <tr key={limit.scope}>
                  <td>{visible(limit.scope)}</td>
                  <td>{limit.used}</td>
                  <td>{limit.limit || "no limit"}</td>
                  <td>
                    <Pause scope={limit.scope} isPaused={limit.is_paused} onDone={found.again} />
                  </td>
                </tr>
              ))}
            </tbody>
          </table>
        </>
      )}
    </>
  );
}

/** Says whether a scope is paused, and changes that for those who may. */
function Pause({ scope, isPaused, onDone }: { scope: string; isPaused: boolean; onDone: () => void }) {
  const [failure, setFailure] = useState<unknown>(null);
  const mayChange = useMay("admin");
  const act = isPaused ? "resume" : "pause";
  return (
    <>
      {isPaused && <span className="status paused">paused</span>}{" "}
      {mayChange && (
        <button aria-label={`${act} ${visible(scope)}`} onClick={() => post(`/v1/limits/${act}`, { scope }).then(onDone, setFailure)}>
          {act}
        </button>
      )}
      <ErrorNote error={failure} />
    </>
  );
}

/** Runs that were asked to end and whose functions still run come before the others. */
function unendedFirst(runs: Workers["workers"][number]["runs"]) {
  return [...runs].sort((one, other) => Number(other.unended !== "") - Number(one.unended !== ""));
}
