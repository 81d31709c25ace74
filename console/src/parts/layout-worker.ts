// Runs beside the page: says where the steps of a graph stand, by dagre where that is quick, in plain layers elsewhere.
import { graphlib, layout } from "@dagrejs/dagre";
import { GAP_X, GAP_Y, inLayers, NODE_HEIGHT, NODE_WIDTH, type Place } from "./layers";
import type { Linked } from "./order";

const MOST_FOR_DAGRE = 300;

function byDagre(steps: readonly Linked[]): Map<string, Place> {
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

self.onmessage = ({ data }: MessageEvent<readonly Linked[]>) => {
  const places = data.length <= MOST_FOR_DAGRE ? byDagre(data) : inLayers(data);
  postMessage(places);
};
