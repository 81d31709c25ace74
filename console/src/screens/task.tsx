import { lazy, Suspense, useCallback, useMemo, useState } from "react";
import { post } from "../api/client";
import type { LiveStep, Task, TaskNews, TaskResult } from "../api/types";
import { useMay } from "../parts/caller";
import { useFetched } from "../parts/fetched";
import { useKeys } from "../parts/keys";
import { Empty, ErrorNote, Loading } from "../parts/notes";
import { CountsBar, Status } from "../parts/status";
import { StepPanel } from "../parts/step-panel";
import { StepTable } from "../parts/step-table";
import { useTask } from "../parts/task-data";
import { TaskLimits } from "../parts/task-limits";
import { Json, visible } from "../parts/text";
import { Ago, Duration } from "../parts/time";
import { linkTo, useRoute } from "../route";
import { FollowUpForm } from "./submit";

const Graph = lazy(() => import("../parts/graph").then(({ Graph }) => ({ default: Graph })));

const VIEWS = ["graph", "steps", "result"] as const;
type View = (typeof VIEWS)[number];

/** A task while it works: its graph or its steps, the chosen step, and what can be done about it. */
export function TaskScreen({ id }: { id: string }) {
  const [again, setAgain] = useState(0);
  const lookAgain = () => setAgain((count) => count + 1);
  const live = useTask(id, again);
  const { parameters } = useRoute();
  const selected = parameters.get("step") ?? "";
  const steps = useMemo(() => [...live.steps.values()], [live.steps]);
  const shown = useMemo(() => steps.filter((step) => !step.map), [steps]);
  const items = useMemo(() => countsByMap(steps), [steps]);
  const [chosen, setView] = useState<View | null>(null);
  const view = chosen ?? (shown.length === 0 ? "steps" : "graph");
  const select = useCallback((step: string) => {
    location.hash = step ? `${linkTo("tasks", id)}?${new URLSearchParams({ step })}` : linkTo("tasks", id);
  }, [id]);

  useKeys(
    useCallback(
      (key) => {
        const at = steps.findIndex((step) => step.id === selected);
        const to = key === "j" ? steps[at + 1] : key === "k" ? steps[at - 1] : undefined;
        if (key === "Escape") select("");
        else if (to) select(to.id);
        else return false;
        return true;
      },
      [steps, selected, select],
    ),
  );

  if (live.failure) return <ErrorNote error={live.failure} />;
  if (!live.news) return <Loading />;
  const step = live.steps.get(selected);
  return (
    <>
      <Head news={live.news} isConnected={live.isConnected} onCommand={lookAgain} />
      <div role="tablist" className="tabs">
        {VIEWS.map((name) => (
          <button key={name} role="tab" aria-selected={view === name} onClick={() => setView(name)}>
            {name}
          </button>
        ))}
      </div>
      <div className={step ? "columns wide" : ""}>
        <div role="tabpanel">
          {view === "graph" && (
            <Suspense fallback={<Loading />}>
              <Graph steps={shown} items={items} selected={selected} onSelect={select} />
            </Suspense>
          )}
          {view === "steps" && <Steps steps={steps} selected={selected} onSelect={select} />}
          {view === "result" && <Result id={id} status={live.news.task.status} onCommand={lookAgain} />}
        </div>
        {step && (
          <StepPanel
            key={step.id}
            task={id}
            step={step}
            items={steps.filter((one) => one.map === step.id)}
            isOver={live.news.task.ended !== null}
            onSelect={select}
            onCommand={lookAgain}
          />
        )}
      </div>
    </>
  );
}

function countsByMap(steps: readonly LiveStep[]): Map<string, Partial<Record<string, number>>> {
  const found = new Map<string, Partial<Record<string, number>>>();
  for (const step of steps) {
    if (!step.map) continue;
    const counts = found.get(step.map) ?? {};
    counts[step.status] = (counts[step.status] ?? 0) + 1;
    found.set(step.map, counts);
  }
  return found;
}

function commandsOf(task: Task): string[] {
  if (!task.ended) return task.status === "paused" ? ["resume", "cancel"] : ["pause", "cancel"];
  // A completed task can hold steps that failed and were kept.
  const isDone = task.status === "completed" && Object.keys(task.step_counts).every((status) => status === "completed");
  return isDone ? [] : ["retry"];
}

function Head({ news, isConnected, onCommand }: { news: TaskNews; isConnected: boolean; onCommand: () => void }) {
  const { task } = news;
  const [failure, setFailure] = useState<unknown>(null);
  const mayRun = useMay("run");
  const command = (name: string, body: unknown = {}) => {
    setFailure(null);
    post(`/v1/tasks/${task.id}/${name}`, body).then(onCommand, setFailure);
  };
  const commands = commandsOf(task);
  return (
    <header>
      <h1>
        {visible(task.title || task.id)} <Status status={task.status} />
      </h1>
      <CountsBar counts={task.step_counts} />
      <p className="dim">
        {task.id} · made <Ago at={task.created} /> · took <Duration from={task.created} to={task.ended} /> ·{" "}
        <a href={linkTo("sessions", task.session)}>session</a> · <a href={linkTo("runs", news.root_run)}>{news.kind === "ask" ? "its agent" : "root run"}</a>
        {!isConnected && !task.ended && <strong> · the connection is lost, it is tried again</strong>}
      </p>
      {task.reason && <p className="note">{visible(task.reason)}</p>}
      {news.planned.length > 0 && (
        <p>
          Its agent made:{" "}
          {news.planned.map((one) => (
            <a key={one} href={linkTo("tasks", one)}>
              {one.slice(0, 14)}…{" "}
            </a>
          ))}
        </p>
      )}
      {news.approvals.length > 0 && (
        <p className="note warn">
          <a href={linkTo("inbox", news.approvals[0] ?? "")}>
            {news.approvals.length === 1 ? "A question waits" : `${news.approvals.length} questions wait`} for an answer
          </a>
        </p>
      )}
      {mayRun && (
        <p className="controls">
          {commands.map((name) => (
            <button key={name} onClick={() => command(name)} className={name === "cancel" ? "deny" : ""}>
              {name === "retry" ? "run again what did not complete" : name}
            </button>
          ))}
          {!task.ended && (
            <input
              type="number"
              min={-1000}
              max={1000}
              aria-label="priority of the steps that have not ended"
              placeholder="priority"
              onKeyDown={(event) => {
                if (event.key === "Enter") command("priority", { priority: event.currentTarget.valueAsNumber });
              }}
            />
          )}
        </p>
      )}
      <ErrorNote error={failure} />
    </header>
  );
}

function Steps({ steps, selected, onSelect }: { steps: readonly LiveStep[]; selected: string; onSelect: (id: string) => void }) {
  const [text, setText] = useState("");
  const [status, setStatus] = useState("");
  const found = steps.filter((step) => (!status || step.status === status) && `${step.id} ${step.title}`.toLowerCase().includes(text.toLowerCase()));
  return (
    <>
      <p className="controls">
        <label>
          find <input value={text} onChange={(event) => setText(event.target.value)} />
        </label>
        <label>
          status{" "}
          <select value={status} onChange={(event) => setStatus(event.target.value)}>
            <option value="">any</option>
            {[...new Set(steps.map((step) => step.status))].map((name) => (
              <option key={name}>{name}</option>
            ))}
          </select>
        </label>
        <span className="dim">
          {found.length} of {steps.length}
        </span>
      </p>
      {steps.length === 0 ? <Empty>This task has no steps.</Empty> : <StepTable steps={found} selected={selected} onSelect={onSelect} />}
    </>
  );
}

function Result({ id, status, onCommand }: { id: string; status: string; onCommand: () => void }) {
  const mayRun = useMay("run");
  const { data, error, isPending } = useFetched<TaskResult>(`/v1/tasks/${id}/result`, { version: status });
  if (isPending) return <Loading />;
  if (!data) return <ErrorNote error={error} />;
  const waitedFor = new Set(data.steps.flatMap((step) => step.depends_on));
  const last = data.steps.filter((step) => step.output !== null && !step.map && !waitedFor.has(step.id));
  return (
    <>
      {data.limits && <TaskLimits task={data} limits={data.limits} onCommand={onCommand} />}
      {data.answer !== null && (
        <>
          <h2>Answer</h2>
          <Json value={data.answer} />
          {mayRun && <FollowUpForm session={data.session} />}
        </>
      )}
      {last.map((step) => (
        <section key={step.id}>
          <h2>{visible(step.title || step.id)}</h2>
          <Json value={step.output} />
        </section>
      ))}
      {data.deliverables.length > 0 && (
        <>
          <h2>Files</h2>
          <ul>
            {data.deliverables.map((file) => (
              <li key={file.run + file.path}>
                <code>{visible(file.path)}</code> <a href={linkTo("runs", file.run)}>run</a>
              </li>
            ))}
          </ul>
        </>
      )}
      {data.denials.length > 0 && (
        <>
          <h2>Denied</h2>
          <ul>
            {data.denials.map((denial, number) => (
              <li key={number}>
                <strong>{denial.tool}</strong> {visible(denial.sentence)} <span className="dim">{visible(denial.message)}</span>
              </li>
            ))}
          </ul>
        </>
      )}
      {last.length === 0 && data.answer === null && <Empty>There is no result yet.</Empty>}
    </>
  );
}
