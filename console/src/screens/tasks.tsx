import { useState } from "react";
import { post, query } from "../api/client";
import type { Task } from "../api/types";
import { useMay } from "../parts/caller";
import { usePages } from "../parts/fetched";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { CountsBar, Status } from "../parts/status";
import { Name, visible } from "../parts/text";
import { Ago, Duration } from "../parts/time";
import { linkTo, useRoute } from "../route";

const EVERY_MS = 3_000;
const STATUSES = ["running", "paused", "completed", "failed", "cancelled"];
const FILTERS = ["status", "title", "tag", "since"] as const;

/** Tasks, newest first; the filter is in the address. */
export function TasksScreen({ session = "" }: { session?: string }) {
  const { parameters } = useRoute();
  const only = Object.fromEntries(FILTERS.map((name) => [name, session ? "" : (parameters.get(name) ?? "")]));
  const isFiltered = Object.values(only).some(Boolean);
  const tasks = usePages<Task>(query("/v1/tasks", { session, ...only, limit: 50 }), { everyMs: EVERY_MS });
  const [chosen, setChosen] = useState<ReadonlySet<string>>(new Set());
  const mayRun = useMay("run");
  if (tasks.isPending) return <Loading />;
  const found = tasks.data ?? [];
  const selected = found.filter((task) => chosen.has(task.id));
  const choose = (ids: string[], isChosen: boolean) => {
    const next = new Set(chosen);
    for (const id of ids) {
      if (isChosen) next.add(id);
      else next.delete(id);
    }
    setChosen(next);
  };
  return (
    <>
      {!session && <h1>Tasks</h1>}
      {!session && <Filter only={only} />}
      <ErrorNote error={tasks.error} />
      {found.length === 0 && isFiltered && <Empty>No task is like this.</Empty>}
      {found.length === 0 && !isFiltered && (
        <Empty>
          There is no task yet. <a href={linkTo("submit")}>Submit a plan or a goal</a>, or run <code>soong demo</code>.
        </Empty>
      )}
      {selected.length > 0 && <Bulk tasks={selected} onDone={() => { setChosen(new Set()); tasks.again(); }} />}
      {found.length > 0 && (
        <table>
          <thead>
            <tr>
              {mayRun && (
                <th>
                  <input
                    type="checkbox"
                    aria-label="all tasks"
                    checked={selected.length === found.length}
                    onChange={(event) => choose(found.map((task) => task.id), event.target.checked)}
                  />
                </th>
              )}
              <th>task</th>
              <th>status</th>
              <th>steps</th>
              <th>made</th>
              <th>took</th>
            </tr>
          </thead>
          <tbody>
            {found.map((task) => (
              <tr key={task.id}>
                {mayRun && (
                  <td>
                    <input
                      type="checkbox"
                      aria-label={`select ${visible(task.title || task.id)}`}
                      checked={chosen.has(task.id)}
                      onChange={(event) => choose([task.id], event.target.checked)}
                    />
                  </td>
                )}
                <td>
                  <a href={linkTo("tasks", task.id)}>
                    <Name>{task.title || task.id}</Name>
                  </a>{" "}
                  {task.tags.map((tag) => (
                    <a key={tag} className="dim" href={`${linkTo("tasks")}?${new URLSearchParams({ tag }).toString()}`}>
                      {visible(tag)}{" "}
                    </a>
                  ))}
                </td>
                <td>
                  <Status status={task.status} />
                </td>
                <td>
                  <CountsBar counts={task.step_counts} />
                </td>
                <td>
                  <Ago at={task.created} />
                </td>
                <td>
                  <Duration from={task.created} to={task.ended} />
                </td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
      {tasks.more && <button onClick={tasks.more}>Older tasks</button>}
    </>
  );
}

function Filter({ only }: { only: Record<string, string> }) {
  const set = (name: string, value: string) => {
    const given = Object.entries({ ...only, [name]: value.trim() }).filter(([, text]) => text);
    location.hash = given.length ? `${linkTo("tasks")}?${new URLSearchParams(given).toString()}` : linkTo("tasks");
  };
  const field = (name: string, label: string) => (
    <input
      key={`${name} ${only[name]}`}
      type="search"
      aria-label={label}
      placeholder={label}
      defaultValue={only[name]}
      onBlur={(event) => event.target.value.trim() !== only[name] && set(name, event.target.value)}
      onKeyDown={(event) => event.key === "Enter" && set(name, event.currentTarget.value)}
    />
  );
  return (
    <p className="controls">
      <select aria-label="status" value={only.status} onChange={(event) => set("status", event.target.value)}>
        <option value="">every status</option>
        {STATUSES.map((status) => (
          <option key={status}>{status}</option>
        ))}
      </select>
      {field("title", "in the title")}
      {field("tag", "tag")}
      {field("since", "age: 12h, 30d")}
    </p>
  );
}

/** Acts on the selected tasks: what is meant is shown, and one more press does it. */
function Bulk({ tasks, onDone }: { tasks: Task[]; onDone: () => void }) {
  const [act, setAct] = useState("");
  const [failures, setFailures] = useState<unknown[]>([]);
  const fits = (name: string) => tasks.filter((task) => (name === "cancel" ? !task.ended : task.ended && task.status !== "completed"));
  const go = async () => {
    const done = await Promise.allSettled(fits(act).map((task) => post(`/v1/tasks/${task.id}/${act}`)));
    const failed = done.filter((one) => one.status === "rejected").map((one) => one.reason as unknown);
    setAct("");
    setFailures(failed);
    if (failed.length === 0) onDone();
  };
  return (
    <p className="controls" role="group" aria-label="selected tasks">
      {act === "" &&
        ["cancel", "retry"].map((name) => (
          <button key={name} disabled={fits(name).length === 0} onClick={() => setAct(name)} className={name === "cancel" ? "deny" : ""}>
            {name} {fits(name).length} of {tasks.length}
          </button>
        ))}
      {act !== "" && (
        <>
          {act} {fits(act).map((task) => visible(task.title || task.id)).join(", ")}? <button onClick={() => void go()}>yes, {act}</button>{" "}
          <button onClick={() => setAct("")}>no</button>
        </>
      )}
      {failures.map((failure, index) => (
        <ErrorNote key={index} error={failure} />
      ))}
    </p>
  );
}
