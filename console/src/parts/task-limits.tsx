import { useState } from "react";
import { post } from "../api/client";
import type { TaskResult } from "../api/types";
import { useMay } from "./caller";
import { ErrorNote } from "./notes";
import { durationText } from "./time";

type Limits = NonNullable<TaskResult["limits"]>;
type Name = keyof Limits;

const WORDS: Readonly<Record<Name, string>> = {
  max_turns: "model turns",
  tokens: "tokens",
  cost_usd: "US dollars",
  wall_s: "seconds",
};
const NAMES = Object.keys(WORDS) as Name[];
const RESUMABLE = ["failed", "cancelled", "paused"];

/** What a task has used of the limits of its plan, and a form that raises them and resumes it. */
export function TaskLimits({ task, limits, onCommand }: { task: TaskResult; limits: Limits; onCommand: () => void }) {
  const mayRun = useMay("run");
  const mayApprove = useMay("approve");
  const [given, setGiven] = useState<Partial<Record<Name, string>>>({});
  const [failure, setFailure] = useState<unknown>(null);
  const mayRaise = mayRun && mayApprove && RESUMABLE.includes(task.status);
  const named = NAMES.filter((name) => given[name]);
  const raise = () => {
    setFailure(null);
    const raised = Object.fromEntries(named.map((name) => [name, Number(given[name])]));
    post(`/v1/tasks/${task.id}/resume`, { limits: raised }).then(onCommand, setFailure);
  };
  return (
    <form
      className="form"
      onSubmit={(event) => {
        event.preventDefault();
        raise();
      }}
    >
      <h2>Limits</h2>
      <table>
        <thead>
          <tr>
            <th>of</th>
            <th>used</th>
            <th>at most</th>
            {mayRaise && <th>raise to</th>}
          </tr>
        </thead>
        <tbody>
          {NAMES.map((name) => {
            const limit = limits[name];
            return (
              limit && (
                <tr key={name}>
                  <td>{WORDS[name]}</td>
                  <td>{amount(name, limit.used)}</td>
                  <td>{amount(name, limit.limit)}</td>
                  {mayRaise && (
                    <td>
                      <input
                        type="number"
                        min={0}
                        step={name === "cost_usd" ? "any" : 1}
                        aria-label={`Most ${WORDS[name]}`}
                        value={given[name] ?? ""}
                        onChange={(event) => setGiven({ ...given, [name]: event.target.value })}
                      />
                    </td>
                  )}
                </tr>
              )
            );
          })}
        </tbody>
      </table>
      <ErrorNote error={failure} />
      {mayRaise && (
        <p className="controls">
          <button disabled={named.length === 0}>Raise and continue</button>
        </p>
      )}
    </form>
  );
}

function amount(name: Name, value: number): string {
  return name === "wall_s" ? durationText(value * 1000) : String(value);
}
