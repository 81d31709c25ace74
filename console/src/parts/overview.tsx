import { useEffect, useMemo, useRef, type PointerEvent } from "react";
import { useReactFlow, useStore, useViewport } from "@xyflow/react";
import { NODE_HEIGHT, NODE_WIDTH, type Place } from "./layers";

const WIDTH = 200;
const HEIGHT = 130;
const COLOURS: Record<string, string> = {
  completed: "--good",
  failed: "--bad",
  blocked: "--warn",
  running: "--busy",
  waiting: "--busy",
  expanding: "--busy",
};

export interface Dot extends Place {
  status: string;
}

function boundsOf(dots: readonly Dot[]) {
  let [left, top, right, bottom] = [Infinity, Infinity, -Infinity, -Infinity];
  for (const { x, y } of dots) {
    left = Math.min(left, x);
    top = Math.min(top, y);
    right = Math.max(right, x + NODE_WIDTH);
    bottom = Math.max(bottom, y + NODE_HEIGHT);
  }
  return { left, top, scale: Math.min(WIDTH / (right - left), HEIGHT / (bottom - top)) };
}

/** The whole graph as dots of colour with the part that is in sight: one canvas, however many steps there are. */
export function Overview({ dots }: { dots: readonly Dot[] }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const { x, y, zoom } = useViewport();
  const [width, height] = [useStore((state) => state.width), useStore((state) => state.height)];
  const { setCenter } = useReactFlow();
  const { left, top, scale } = useMemo(() => boundsOf(dots), [dots]);

  useEffect(() => {
    const context = canvas.current?.getContext("2d");
    const probe = canvas.current?.firstElementChild;
    if (!context || !(probe instanceof HTMLElement)) return;
    const colours = new Map<string, string>();
    for (const name of ["--dim", ...new Set(Object.values(COLOURS))]) {
      probe.style.color = `var(${name})`; // what a theme makes of the variable is known to styles alone
      colours.set(name, getComputedStyle(probe).color);
    }
    context.clearRect(0, 0, WIDTH, HEIGHT);
    for (const dot of dots) {
      context.fillStyle = colours.get(COLOURS[dot.status] ?? "--dim") ?? "gray";
      const size = [Math.max(1, NODE_WIDTH * scale - 0.5), Math.max(1, NODE_HEIGHT * scale - 0.5)] as const;
      context.fillRect((dot.x - left) * scale, (dot.y - top) * scale, ...size);
    }
  }, [dots, left, top, scale]);

  const goTo = (event: PointerEvent<HTMLElement>) => {
    if (!event.buttons) return;
    const box = event.currentTarget.getBoundingClientRect();
    void setCenter(left + (event.clientX - box.left) / scale, top + (event.clientY - box.top) / scale, { zoom });
  };
  const sight = {
    left: (-x / zoom - left) * scale,
    top: (-y / zoom - top) * scale,
    width: (width / zoom) * scale,
    height: (height / zoom) * scale,
  };
  return (
    <div className="overview" aria-hidden="true" onPointerDown={goTo} onPointerMove={goTo}>
      <canvas ref={canvas} width={WIDTH} height={HEIGHT}>
        <i />
      </canvas>
      <div className="sight" style={sight} />
    </div>
  );
}
