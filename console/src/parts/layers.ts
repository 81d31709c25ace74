// Places in plain layers, which takes milliseconds for thousands of steps.
import { inOrder, type Linked } from "./order";

export const NODE_WIDTH = 190;
export const NODE_HEIGHT = 52;
export const GAP_X = 60;
export const GAP_Y = 14;
const MOST_IN_COLUMN = 40;

export interface Place {
  x: number;
  y: number;
}

export function inLayers(steps: readonly Linked[]): Map<string, Place> {
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
function levels(steps: readonly Linked[]): Map<string, number> {
  const found = new Map<string, number>();
  for (const step of inOrder(steps)) {
    let level = 0;
    for (const parent of step.depends_on) level = Math.max(level, (found.get(parent) ?? -1) + 1);
    found.set(step.id, level);
  }
  return found;
}
