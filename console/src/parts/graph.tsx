import { memo, startTransition, useCallback, useEffect, useMemo, useRef, useState } from "react";
import { Background, Controls, Handle, Panel, Position, ReactFlow, type Edge, type Node, type NodeProps, type ReactFlowInstance, type Viewport } from "@xyflow/react";
import type { LiveStep } from "../api/types";
import { folded, type Drawn } from "./fold";
import { NODE_HEIGHT, NODE_WIDTH, type Place } from "./layers";
import { useLaid, type Laid } from "./layout";
import { Loading } from "./notes";
import { criticalPath } from "./order";
import { Overview, type Dot } from "./overview";
import { leadingStatus, signOf, wordsOf } from "./status";
import { visible } from "./text";

type Counts = Partial<Record<string, number>>;

interface Box extends Record<string, unknown> {
  title: string;
  words: string;
  status: string;
  isFold: boolean;
  isCritical: boolean;
}

type StepNode = Node<Box, "step">;

interface GraphProps {
  /** The steps that are drawn: items of a map stand in its node. */
  steps: readonly LiveStep[];
  items: ReadonlyMap<string, Counts>;
  selected: string;
  onSelect: (id: string) => void;
}

const TYPES = { step: memo(StepBox) };
const FIT = { padding: 0.1, minZoom: 0.4, maxZoom: 1 };
const LARGE = 300;
const LARGE_VIEW = { x: 20, y: 20, zoom: 0.7 };
/** A large graph is never so small that more than a few hundred boxes are in sight; its overview shows the rest. */
const LARGE_MIN_ZOOM = 0.4;
const MOST_EDGES = 600;
const STRIDE = 600;
const NOTHING: Laid<Drawn> = { steps: [], places: new Map() };

/** The steps as a graph, from left to right; the longest chain so far is drawn stronger. */
export function Graph({ steps, items, selected, onSelect }: GraphProps) {
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  // Places depend on the shape alone: without that a graph of thousands is laid out again at every change.
  const shape = useMemo(() => steps.map((step) => step.id).join("\n"), [steps]);
  const laid = useLaid(useMemo(() => folded(steps, opened), [shape, opened]));
  const { steps: drawn, places } = laid ?? NOTHING;
  const critical = useMemo(() => criticalPath(steps, Date.now()), [steps]);
  const nodes = useNodes({ drawn, places, steps, items, critical, selected });
  const { frame, edges, onMove } = useEdges(drawn, places, nodes);
  const dots = useMemo(() => nodes.map((node): Dot => ({ ...node.position, status: node.data.status })), [nodes]);
  const isLarge = drawn.length > LARGE;
  const flow = useRef<ReactFlowInstance<StepNode> | null>(null);
  const shownNext = useRef("");
  const choose = useCallback(
    (_: unknown, node: StepNode) => {
      if (!node.data.isFold) return onSelect(node.id);
      shownNext.current = drawn.find((one) => one.id === node.id)?.members[0] ?? "";
      startTransition(() => setOpened((before) => new Set([...before, node.id])));
    },
    [onSelect, drawn],
  );
  useEffect(() => {
    const place = places.get(shownNext.current);
    if (!place || !flow.current) return; // what was unfolded is in sight wherever the layout has put it
    shownNext.current = "";
    void flow.current.setCenter(place.x + NODE_WIDTH / 2, place.y + NODE_HEIGHT / 2, { zoom: flow.current.getZoom() });
  }, [places]);
  if (!laid) return <Loading />;
  return (
    <div className="graph" ref={frame}>
      <ReactFlow
        key={isLarge ? "large" : "small"}
        nodes={nodes}
        edges={edges}
        nodeTypes={TYPES}
        onNodeClick={choose}
        onMove={onMove}
        onInit={(instance) => (flow.current = instance)}
        nodesDraggable={false}
        nodesConnectable={false}
        edgesFocusable={false}
        onlyRenderVisibleElements
        fitView={!isLarge}
        fitViewOptions={FIT}
        defaultViewport={LARGE_VIEW}
        minZoom={isLarge ? LARGE_MIN_ZOOM : 0.05}
        colorMode="system"
        proOptions={{ hideAttribution: true }}
      >
        <Background />
        <Controls showInteractive={false} showFitView={!isLarge} />
        {opened.size > 0 && (
          <Panel position="top-right">
            <button onClick={() => startTransition(() => setOpened(new Set()))}>Fold again</button>
          </Panel>
        )}
        {nodes.length > 30 && (
          <Panel position="bottom-right">
            <Overview dots={dots} />
          </Panel>
        )}
      </ReactFlow>
    </div>
  );
}

interface Shown {
  drawn: readonly Drawn[];
  places: ReadonlyMap<string, Place>;
  steps: readonly LiveStep[];
  items: ReadonlyMap<string, Counts>;
  critical: ReadonlySet<string>;
  selected: string;
}

/** Returns the boxes. One that looks as before is the same object, so that only what has changed is drawn again. */
function useNodes({ drawn, places, steps, items, critical, selected }: Shown): StepNode[] {
  const kept = useRef(new Map<string, StepNode>());
  return useMemo(() => {
    const byId = new Map(steps.map((step) => [step.id, step]));
    const next = new Map<string, StepNode>();
    for (const one of drawn) {
      const position = places.get(one.id);
      const members = one.members.map((id) => byId.get(id)).filter((step) => step !== undefined);
      if (!position || !members.length) continue;
      const data = boxOf(members, items.get(one.id), members.some((step) => critical.has(step.id)));
      const isSelected = one.members.includes(selected);
      const before = kept.current.get(one.id);
      const isSame = before?.selected === isSelected && before.position === position && Object.entries(data).every(([name, value]) => before.data[name] === value);
      next.set(one.id, isSame ? before : nodeOf(one.id, position, data, isSelected));
    }
    kept.current = next;
    return [...next.values()];
  }, [drawn, places, steps, items, critical, selected]);
}

function nodeOf(id: string, position: Place, data: Box, isSelected: boolean): StepNode {
  const ariaLabel = `${data.title}: ${data.words || data.status}`;
  return { id, type: "step", position, width: NODE_WIDTH, height: NODE_HEIGHT, selected: isSelected, data, ariaLabel };
}

function boxOf(members: readonly LiveStep[], items: Counts | undefined, isCritical: boolean): Box {
  const [first] = members;
  const title = visible((first!.title || first!.id).slice(0, 200)).slice(0, 60);
  if (members.length === 1) {
    const words = items ? wordsOf(items) : visible(first!.progress.slice(0, 200)).slice(0, 60);
    return { title, words, status: first!.status, isFold: false, isCritical };
  }
  const counts: Counts = {};
  for (const step of members) counts[step.status] = (counts[step.status] ?? 0) + 1;
  return { title: `${members.length} steps like ${title}`, words: wordsOf(counts), status: leadingStatus(counts), isFold: true, isCritical };
}

/** Returns the edges; of very many only those with an end in or near what is in sight. */
function useEdges(drawn: readonly Drawn[], places: ReadonlyMap<string, Place>, nodes: readonly StepNode[]) {
  const frame = useRef<HTMLDivElement>(null);
  const [sight, setSight] = useState({ left: 0, top: 0, right: 4 * STRIDE, bottom: 3 * STRIDE });
  const all = useMemo(
    () => drawn.flatMap((one) => one.depends_on.map((parent): Edge => ({ id: `${parent}>${one.id}`, source: parent, target: one.id }))),
    [drawn],
  );
  const isCut = all.length > MOST_EDGES;
  const onMove = useCallback(
    (_: unknown, { x, y, zoom }: Viewport) => {
      const element = frame.current;
      if (!isCut || !element) return;
      const down = (at: number) => Math.floor(at / STRIDE) * STRIDE;
      const [left, top] = [down(-x / zoom), down(-y / zoom)];
      const right = down((element.clientWidth - x) / zoom) + STRIDE;
      const bottom = down((element.clientHeight - y) / zoom) + STRIDE;
      setSight((now) => (now.left === left && now.top === top && now.right === right && now.bottom === bottom ? now : { left, top, right, bottom }));
    },
    [isCut],
  );
  const near = useMemo(() => {
    if (!isCut) return all;
    const isNear = (id: string) => {
      const place = places.get(id);
      return place && place.x + NODE_WIDTH >= sight.left && place.x <= sight.right && place.y + NODE_HEIGHT >= sight.top && place.y <= sight.bottom;
    };
    return all.filter((edge) => isNear(edge.source) || isNear(edge.target)).slice(0, MOST_EDGES);
  }, [all, isCut, places, sight]);
  const strong = nodes.filter((node) => node.data.isCritical).map((node) => node.id);
  const edges = useMemo(() => {
    const ends = new Set(strong);
    return ends.size === 0 ? near : near.map((edge) => (ends.has(edge.source) && ends.has(edge.target) ? { ...edge, className: "critical" } : edge));
  }, [near, strong.join("\n")]);
  return { frame, edges, onMove };
}

function StepBox({ data }: NodeProps<StepNode>) {
  const { title, words, status, isFold, isCritical } = data;
  return (
    <div className={`step ${status} ${isFold ? "fold" : ""} ${isCritical ? "critical" : ""}`} title={isFold ? `${title}: open` : title}>
      <Handle type="target" position={Position.Left} isConnectable={false} />
      <strong>
        <span aria-hidden="true">{signOf(status)}</span> {title}
      </strong>
      <small>{words || status}</small>
      <Handle type="source" position={Position.Right} isConnectable={false} />
    </div>
  );
}
