import { query } from "../api/client";
import type { Task } from "../api/types";
import { usePages } from "../parts/fetched";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { CountsBar, Status } from "../parts/status";
import { Name } from "../parts/text";
import { Ago, Duration } from "../parts/time";
import { linkTo } from "../route";

const EVERY_MS = 3_000;

/** Tasks, newest first. */
export function TasksScreen({ session = "" }: { session?: string }) {
  const tasks = usePages<Task>(query("/v1/tasks", { session, limit: 50 }), { everyMs: EVERY_MS });
  if (tasks.isPending) return <Loading />;
  const found = tasks.data ?? [];
  return (
    <>
      {!session && <h1>Tasks</h1>}
      <ErrorNote error={tasks.error} />
      {found.length === 0 && (
        <Empty>
          There is no task yet. <a href={linkTo("submit")}>Submit a plan or a goal</a>, or run <code>soong demo</code>.
        </Empty>
      )}
      {found.length > 0 && (
        <table>
          <thead>
            <tr>
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
                <td>
                  <a href={linkTo("tasks", task.id)}>
                    <Name>{task.title || task.id}</Name>
                  </a>
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
