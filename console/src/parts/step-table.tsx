import { useEffect, useRef, useState } from "react";
import type { LiveStep } from "../api/types";
import { Status } from "./status";
import { Name } from "./text";
import { Duration } from "./time";

const ROW_PX = 34;
const OVERSCAN = 10;

/** Returns which rows of a scrolled frame are in sight: all are of one height. */
function useSight(count: number) {
  const frame = useRef<HTMLDivElement>(null);
  const [sight, setSight] = useState({ first: 0, last: 40 });
  useEffect(() => {
    const element = frame.current;
    if (!element) return;
    const look = () => {
      const first = Math.max(0, Math.floor(element.scrollTop / ROW_PX) - OVERSCAN);
      setSight({ first, last: first + Math.ceil(element.clientHeight / ROW_PX) + 2 * OVERSCAN });
    };
    const watch = new ResizeObserver(look);
    watch.observe(element);
    element.addEventListener("scroll", look, { passive: true });
    return () => {
      watch.disconnect();
      element.removeEventListener("scroll", look);
    };
  }, []);
  return { frame, first: Math.min(sight.first, Math.max(0, count - 1)), last: Math.min(sight.last, count) };
}

/** Any number of steps as rows; only those in sight are in the page. */
export function StepTable({ steps, selected, onSelect }: { steps: readonly LiveStep[]; selected: string; onSelect: (id: string) => void }) {
  const { frame, first, last } = useSight(steps.length);
  return (
    <div className="step-table" ref={frame} role="table" aria-label="Steps" aria-rowcount={steps.length} tabIndex={0}>
      <div role="rowgroup" style={{ height: ROW_PX * steps.length, position: "relative" }}>
        {steps.slice(first, last).map((step, number) => (
            <div
              key={step.id}
              role="row"
              aria-rowindex={first + number + 1}
              className={step.id === selected ? "row current" : "row"}
              style={{ position: "absolute", top: ROW_PX * (first + number), height: ROW_PX, insetInline: 0 }}
            >
              <span role="cell">
                <button className="plain" onClick={() => onSelect(step.id)}>
                  <Name>{step.title || step.id}</Name>
                </button>
              </span>
              <span role="cell">
                <Status status={step.status} outcome={step.outcome} />
              </span>
              <span role="cell" className="dim">
                <Name>{step.error?.message ?? step.progress}</Name>
              </span>
              <span role="cell" className="dim">
                <Duration from={step.started} to={step.ended} />
              </span>
            </div>
        ))}
      </div>
    </div>
  );
}
