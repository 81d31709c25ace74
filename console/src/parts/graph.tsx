import { memo, useMemo } from "react";
import { Background, Controls, Handle, MiniMap, Position, ReactFlow, type Edge, type Node, type NodeProps } from "@xyflow/react";
import type { LiveStep } from "../api/types";
import { criticalPath, NODE_HEIGHT, NODE_WIDTH, places } from "./layout";
import { signOf } from "./status";
import { visible } from "./text";

interface StepNodeData extends Record<string, unknown> {
  step: LiveStep;
  items: Partial<Record<string, number>> | undefined;
  isCritical: boolean;
}

type StepNode = Node<StepNodeData, "step">;

interface GraphProps {
  /** The steps that are drawn: items of a map stand in its node. */
  steps: readonly LiveStep[];
  items: ReadonlyMap<string, Partial<Record<string, number>>>;
  selected: string;
  onSelect: (id: string) => void;
}

const TYPES = { step: memo(StepBox) };
const FIT = { padding: 0.1, minZoom: 0.4, maxZoom: 1 };

/** The steps as a graph, from left to right; the longest chain so far is drawn stronger. */
export function Graph({ steps, items, selected, onSelect }: GraphProps) {
  const shape = steps.map((step) => step.id).join("\n");
  // Places depend on the shape alone: without that a graph of thousands is laid out again at every change.
  const where = useMemo(() => places(steps), [shape]);
  const critical = criticalPath(steps, Date.now());
  const nodes: StepNode[] = steps.map((step) => ({
    id: step.id,
    type: "step",
    position: where.get(step.id) ?? { x: 0, y: 0 },
    width: NODE_WIDTH,
    height: NODE_HEIGHT,
    selected: step.id === selected,
    data: { step, items: items.get(step.id), isCritical: critical.has(step.id) },
    ariaLabel: `${step.title || step.id}: ${step.status}`,
  }));
  const edges: Edge[] = useMemo(
    () => steps.flatMap((step) => step.depends_on.map((parent) => ({ id: `${parent}>${step.id}`, source: parent, target: step.id }))),
    [shape],
  );
  return (
    <div className="graph">
      <ReactFlow
        nodes={nodes}
        edges={edges.map((edge) => (critical.has(edge.source) && critical.has(edge.target) ? { ...edge, className: "critical" } : edge))}
        nodeTypes={TYPES}
        onNodeClick={(_, node) => onSelect(node.id)}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        onlyRenderVisibleElements
        fitView
        fitViewOptions={FIT}
        minZoom={0.05}
        colorMode="system"
        proOptions={{ hideAttribution: true }}
      >
        <Background />
        <Controls showInteractive={false} />
        {steps.length > 30 && <MiniMap pannable zoomable />}
      </ReactFlow>
    </div>
  );
}

function StepBox({ data }: NodeProps<StepNode>) {
  const { step, items, isCritical } = data;
  const words = items && Object.entries(items).map(([status, count]) => `${count} ${status}`).join(", ");
  return (
    <div className={`step ${step.status} ${isCritical ? "critical" : ""}`} title={visible(step.title || step.id)}>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      <strong>
        <span aria-hidden="true">{signOf(step.status)}</span> {visible(step.title || step.id).slice(0, 60)}
      </strong>
      <small>{words || visible(step.progress).slice(0, 60) || step.status}</small>
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </div>
  );
}
