// Steps that stand at the same place of a plan are drawn as one: a graph of thousands is read by its shape.
import type { LiveStep } from "../api/types";
import { dependents, type Linked } from "./order";

const FEWEST_TO_FOLD = 8;

/** One box of the graph. */
export interface Drawn extends Linked {
  /** The steps that it stands for, in the order of the plan. */
  members: readonly string[];
}

/** Returns what is drawn: steps that depend on the same and that the same depend on are one, unless its id is opened. */
export function folded(steps: readonly LiveStep[], opened: ReadonlySet<string>): Drawn[] {
  const below = dependents(steps);
  const groups = new Map<string, LiveStep[]>();
  for (const step of steps) {
    const key = [step.kind, step.definition, step.depends_on.join("\n"), below.get(step.id)?.join("\n")].join("\0");
    const group = groups.get(key);
    if (group) group.push(step);
    else groups.set(key, [step]);
  }
  const boxes: [string, LiveStep[]][] = [];
  for (const group of groups.values()) {
    const id = `fold ${group[0]!.id}`;
    if (group.length < FEWEST_TO_FOLD || opened.has(id)) boxes.push(...group.map((step): [string, LiveStep[]] => [step.id, [step]]));
    else boxes.push([id, group]);
  }
  const boxOf = new Map(boxes.flatMap(([id, members]) => members.map((step): [string, string] => [step.id, id])));
  return boxes.map(([id, members]) => ({
    id,
    members: members.map((step) => step.id),
    depends_on: [...new Set(members[0]!.depends_on.map((parent) => boxOf.get(parent) ?? parent))],
  }));
}
