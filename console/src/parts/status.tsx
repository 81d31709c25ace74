import type { StepStatus } from "../api/types";

const SIGNS: Record<string, string> = {
  pending: "·",
  ready: "○",
  running: "▸",
  blocked: "…",
  expanding: "◌",
  waiting: "◌",
  completed: "✓",
  failed: "✗",
  cancelled: "⊘",
  skipped: "⤼",
  paused: "‖",
};

const ORDER: readonly StepStatus[] = [
  "completed",
  "running",
  "blocked",
  "expanding",
  "waiting",
  "ready",
  "failed",
  "cancelled",
  "skipped",
  "pending",
];

export function signOf(status: string): string {
  return SIGNS[status] ?? "?";
}

/** Statuses from the one that a reader is to see first. */
const LOUDEST = ["failed", "blocked", "running", "expanding", "waiting", "ready", "pending", "cancelled", "skipped", "completed"] as const;

/** Returns the status that stands for several steps. */
export function leadingStatus(counts: Partial<Record<string, number>>): string {
  return LOUDEST.find((status) => counts[status]) ?? "pending";
}

/** Returns how many steps are in which status, as words. */
export function wordsOf(counts: Partial<Record<string, number>>): string {
  return ORDER.filter((status) => counts[status]).map((status) => `${counts[status]} ${status}`).join(", ");
}

/** A status as a sign, a word and a colour: none of them alone. */
export function Status({ status, outcome }: { status: string; outcome?: string | null | undefined }) {
  return (
    <span className={`status ${status}`}>
      <span aria-hidden="true">{signOf(status)}</span> {status}
      {outcome === "partial" && <span className="partial"> partial</span>}
    </span>
  );
}

/** How many steps are in which status, as one bar with its words. */
export function CountsBar({ counts }: { counts: Partial<Record<string, number>> }) {
  const total = Object.values(counts).reduce<number>((sum, count) => sum + (count ?? 0), 0);
  const shown = ORDER.filter((status) => counts[status]);
  const words = wordsOf(counts);
  return (
    <div className="counts">
      <svg className="bar" role="img" aria-label={words || "no steps"} viewBox="0 0 100 1" preserveAspectRatio="none">
        {shown.map((status, number) => {
          const before = shown.slice(0, number).reduce((sum, one) => sum + (counts[one] ?? 0), 0);
          const x = (100 * before) / total;
          return <rect key={status} className={status} x={x} y="0" height="1" width={(100 * (counts[status] ?? 0)) / total} />;
        })}
      </svg>
      <span className="dim">{words}</span>
    </div>
  );
}
