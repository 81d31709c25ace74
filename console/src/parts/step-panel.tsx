import { useState } from "react";
import { post, query } from "../api/client";
import type { LiveStep, StepDetail } from "../api/types";
import { linkTo } from "../route";
import { useMay } from "./caller";
import { useFetched } from "./fetched";
import { ErrorNote, Loading } from "./notes";
import { CountsBar, Status } from "./status";
import { StepTable } from "./step-table";
import { Json, visible } from "./text";
import { Duration } from "./time";

interface StepPanelProps {
  task: string;
  step: LiveStep;
  /** Items of a map step. */
  items: readonly LiveStep[];
  isOver: boolean;
  onSelect: (id: string) => void;
  onCommand: () => void;
}

/** One step: why it waits, what it gave, what it was denied. */
export function StepPanel({ task, step, items, isOver, onSelect, onCommand }: StepPanelProps) {
  const [failure, setFailure] = useState<unknown>(null);
  const mayRun = useMay("run");
  const detail = useFetched<StepDetail>(query(`/v1/tasks/${task}/step`, { id: step.id }), { version: `${step.status} ${step.attempt}` });
  const retry = () => {
    setFailure(null);
    post(`/v1/tasks/${task}/retry`, { from: step.id }).then(onCommand, setFailure);
  };
  return (
    <aside aria-label={`Step ${step.id}`} className="detail">
      <button className="plain close" aria-label="Close the step" onClick={() => onSelect("")}>
        ✕
      </button>
      <h2>{visible(step.title || step.id)}</h2>
      <p>
        <Status status={step.status} outcome={step.outcome} />{" "}
        <span className="dim">
          {step.id} · {step.kind}
          {step.definition && ` · ${visible(step.definition)}`} · <Duration from={step.started} to={step.ended} />
          {step.attempt > 1 && ` · attempt ${step.attempt}`}
        </span>
      </p>
      <p>{reason(step, detail.data)}</p>
      {step.run && (
        <p>
          <a href={linkTo("runs", step.run)}>Its run: transcript, calls, tools</a>
        </p>
      )}
      {step.error && (
        <p className="note error">
          <strong>{visible(step.error.type)}</strong> {visible(step.error.message)}
        </p>
      )}
      {items.length > 0 && (
        <>
          <CountsBar counts={countsOf(items)} />
          <StepTable steps={items} selected="" onSelect={onSelect} />
        </>
      )}
      {detail.isPending && <Loading />}
      <ErrorNote error={detail.error ?? failure} />
      {detail.data && <Left detail={detail.data} />}
      {mayRun && isOver && !step.map && <button onClick={retry}>Run this step again, and what depends on it</button>}
    </aside>
  );
}

function Left({ detail }: { detail: StepDetail }) {
  const parts: [string, unknown][] = [
    ["Output", detail.output],
    ["Output as far as it came", detail.partial],
    ["Denied", detail.denials.length ? detail.denials : null],
    ["May or may not have happened", detail.unknown_effects.length ? detail.unknown_effects : null],
    ["Tools", detail.tools],
  ];
  return (
    <>
      {parts
        .filter(([, value]) => value !== null && value !== undefined)
        .map(([name, value]) => (
          <section key={name}>
            <h3>{name}</h3>
            <Json value={value} />
          </section>
        ))}
    </>
  );
}

function countsOf(steps: readonly LiveStep[]): Partial<Record<string, number>> {
  const counts: Partial<Record<string, number>> = {};
  for (const step of steps) counts[step.status] = (counts[step.status] ?? 0) + 1;
  return counts;
}

/** Says why a step does not work now, as far as one can see. */
function reason(step: LiveStep, detail: StepDetail | undefined): string {
  switch (step.status) {
    case "pending":
      return `Waits for ${step.depends_on.length ? step.depends_on.map(visible).join(", ") : "its time"}.`;
    case "ready":
      return detail?.lacks ? visible(detail.lacks) : "Waits for a free slot of a worker.";
    case "blocked":
      return "Waits for an answer, without a slot.";
    case "waiting":
      return "Waits for its items.";
    case "running":
      return visible(step.progress);
    default:
      return "";
  }
}
