// The order of steps by what they depend on, and the chain of them that took longest.
import type { LiveStep } from "../api/types";

/** What has a place in a graph: a step, or several that are drawn as one. */
export interface Linked {
  id: string;
  depends_on: readonly string[];
}

/** Returns by id what depends on it. */
export function dependents(steps: readonly Linked[]): Map<string, string[]> {
  const found = new Map<string, string[]>(steps.map((step) => [step.id, []]));
  for (const step of steps) for (const parent of step.depends_on) found.get(parent)?.push(step.id);
  return found;
}

/** Returns the steps so that each comes after all that it depends on (Kahn 1962). */
export function inOrder<T extends Linked>(steps: readonly T[]): T[] {
  const byId = new Map(steps.map((step) => [step.id, step]));
  const open = new Map(steps.map((step) => [step.id, step.depends_on.filter((parent) => byId.has(parent)).length]));
  const below = dependents(steps);
  const ready = steps.filter((step) => !open.get(step.id));
  for (let number = 0; number < ready.length; number += 1) {
    for (const next of below.get(ready[number]!.id) ?? []) {
      const left = (open.get(next) ?? 1) - 1;
      open.set(next, left);
      if (left === 0) ready.push(byId.get(next)!);
    }
  }
  return ready;
}

function spentMs(step: LiveStep, now: number): number {
  if (!step.started) return 0;
  return Math.max(0, (step.ended ? Date.parse(step.ended) : now) - Date.parse(step.started));
}

/** Returns the steps of the chain that took longest: what to make faster if the task is to end earlier. */
export function criticalPath(steps: readonly LiveStep[], now: number): Set<string> {
  const total = new Map<string, number>();
  const via = new Map<string, string>();
  let last: string | undefined;
  for (const step of inOrder(steps)) {
    let before = 0;
    for (const parent of step.depends_on) {
      const spent = total.get(parent) ?? 0;
      if (spent >= before && total.has(parent)) {
        before = spent;
        via.set(step.id, parent);
      }
    }
    total.set(step.id, before + spentMs(step, now));
    if (step.started && (last === undefined || total.get(step.id)! > total.get(last)!)) last = step.id;
  }
  const path = new Set<string>();
  for (let id = last; id !== undefined && !path.has(id); id = via.get(id)) path.add(id);
  return path.size > 1 ? path : new Set();
}
