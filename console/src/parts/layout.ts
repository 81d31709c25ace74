// Where the steps of a graph stand: by dagre where that is quick, in plain layers where there are many.
import { graphlib, layout } from "@dagrejs/dagre";
import type { LiveStep } from "../api/types";

export const NODE_WIDTH = 190;
export const NODE_HEIGHT = 52;
const MOST_FOR_DAGRE = 300;
const GAP_X = 60;
const GAP_Y = 14;
const MOST_IN_COLUMN = 40;

export interface Place {
  x: number;
  y: number;
}

/** Returns a place for each step. It depends on ids and edges alone, so a graph does not jump while it works. */
export function places(steps: readonly LiveStep[]): Map<string, Place> {
  return steps.length <= MOST_FOR_DAGRE ? byDagre(steps) : inLayers(steps);
}

function byDagre(steps: readonly LiveStep[]): Map<string, Place> {
  const graph = new graphlib.Graph();
  graph.setGraph({ rankdir: "LR", nodesep: GAP_Y, ranksep: GAP_X });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const step of steps) graph.setNode(step.id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  for (const step of steps) for (const parent of step.depends_on) if (graph.hasNode(parent)) graph.setEdge(parent, step.id);
  layout(graph);
  return new Map(
    steps.map((step) => {
      const node = graph.node(step.id) as { x: number; y: number };
      return [step.id, { x: node.x - NODE_WIDTH / 2, y: node.y - NODE_HEIGHT / 2 }];
    }),
  );
}

function inLayers(steps: readonly LiveStep[]): Map<string, Place> {
  const layers = new Map<number, string[]>();
  for (const [id, level] of levels(steps)) {
    const layer = layers.get(level);
    if (layer) layer.push(id);
    else layers.set(level, [id]);
  }
  const found = new Map<string, Place>();
  let x = 0;
  for (const level of [...layers.keys()].sort((a, b) => a - b)) {
    const ids = layers.get(level) ?? [];
    ids.forEach((id, number) => {
      const column = Math.floor(number / MOST_IN_COLUMN);
      found.set(id, { x: x + column * (NODE_WIDTH + 20), y: (number % MOST_IN_COLUMN) * (NODE_HEIGHT + GAP_Y) });
    });
    x += Math.ceil(ids.length / MOST_IN_COLUMN) * (NODE_WIDTH + 20) + GAP_X;
  }
  return found;
}

/** Returns by step the length of the longest way to it. */
function levels(steps: readonly LiveStep[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const step of inOrder(steps)) {
    found.set(step.id, Math.max(-1, ...step.depends_on.map((parent) => found.get(parent) ?? -1)) + 1);
  }
  return found;
}

/** Returns the steps so that each comes after all that it depends on (Kahn 1962). */
export function inOrder(steps: readonly LiveStep[]): LiveStep[] {
  const byId = new Map(steps.map((step) => [step.id, step]));
  const open = new Map(steps.map((step) => [step.id, step.depends_on.filter((parent) => byId.has(parent)).length]));
  const below = new Map<string, LiveStep[]>();
  for (const step of steps) for (const parent of step.depends_on) below.set(parent, [...(below.get(parent) ?? []), step]);
  const ready = steps.filter((step) => !open.get(step.id));
  for (let number = 0; number < ready.length; number += 1) {
    for (const next of below.get(ready[number]!.id) ?? []) {
      const left = (open.get(next.id) ?? 1) - 1;
      open.set(next.id, left);
      if (left === 0) ready.push(next);
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
