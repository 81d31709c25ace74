// A task as its stream tells it: every step once, then what changes.
import { useEffect, useReducer } from "react";
import type { ApiError } from "../api/client";
import { follow } from "../api/stream";
import type { LiveStep, TaskNews } from "../api/types";

export interface LiveTask {
  news: TaskNews | null;
  /** In the order of the plan; another map whenever something changed. */
  steps: ReadonlyMap<string, LiveStep>;
  isConnected: boolean;
  failure: ApiError | null;
}

type Change =
  | { type: "task" | "change"; news: TaskNews }
  | { type: "connection"; isConnected: boolean }
  | { type: "failure"; failure: ApiError };

const NOTHING: LiveTask = { news: null, steps: new Map(), isConnected: true, failure: null };

function changed(task: LiveTask, change: Change): LiveTask {
  switch (change.type) {
    case "connection":
      return { ...task, isConnected: change.isConnected };
    case "failure":
      return { ...task, failure: change.failure };
    default: {
      const steps = new Map(change.type === "task" ? [] : task.steps);
      for (const step of change.news.steps) steps.set(step.id, step);
      return { ...task, steps, news: change.news, isConnected: true };
    }
  }
}

/** Follows a task; `again` starts over, such as after a retry of a task that had ended. */
export function useTask(id: string, again: number): LiveTask {
  const [task, tell] = useReducer(changed, NOTHING);
  useEffect(
    () =>
      follow(`/v1/tasks/${id}/stream`, {
        onEvent: ({ event, data }) => {
          if (event === "task" || event === "change") tell({ type: event, news: data as TaskNews });
        },
        onConnection: (isConnected) => tell({ type: "connection", isConnected }),
        onFailure: (failure) => tell({ type: "failure", failure }),
      }),
    [id, again],
  );
  return task;
}
