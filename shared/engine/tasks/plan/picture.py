"""A plan drawn as SVG, with nothing but text: steps in layers, each below what it waits for (DAG-08).

Mermaid draws finer where there is something to draw it; this one opens in any browser and needs no program.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from graphlib import TopologicalSorter
from html import escape
from typing import Final

from soong.shared.core.jsontext import blanked
from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.spec import StepSpec, StepStatus

CHAR: Final = 7
"""Width of a character of the fonts named below at their size, a little more than it mostly is."""
HEIGHT: Final = 44
GAP_X: Final = 28
GAP_Y: Final = 56
GAP_ROWS: Final = 16
"""Between the rows of one layer, where no edge begins or ends but their own."""
MAX_WIDTH: Final = 1600
"""The width of a layer. A wider one is broken into rows, so that a plan of any size has the shape of a page."""
MARGIN: Final = 20
MAX_CHARS: Final = 40
SWEEPS: Final = 4

COLOURS: Final[Mapping[StepStatus, str]] = {
    StepStatus.COMPLETED: "#d9f2dc",
    StepStatus.FAILED: "#f9d6d5",
    StepStatus.CANCELLED: "#e6e6e6",
    StepStatus.SKIPPED: "#eeeeee",
    StepStatus.RUNNING: "#d6e6fb",
    StepStatus.WAITING: "#d6e6fb",
    StepStatus.EXPANDING: "#d6e6fb",
    StepStatus.BLOCKED: "#fdf0cc",
    StepStatus.READY: "#ffffff",
    StepStatus.PENDING: "#ffffff",
}


@dataclass(slots=True)
class _Box:
    step: StepSpec
    lines: tuple[str, ...]
    width: int
    x: float = 0.0
    y: float = 0.0


def svg(plan: Plan, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return the picture; ``statuses`` of a task that runs, by step id, colour it."""
    boxes = {step.id: _box(step) for step in plan.steps}
    layers = _layers(plan.steps)
    _order(layers, boxes)
    width, height = _place(_rows(layers, boxes), boxes)
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12" text-anchor="middle">',
        f"<title>{_text(plan.title)}</title>",
        '<rect width="100%" height="100%" fill="#ffffff"/>',
    ]
    for box in boxes.values():
        parts += [_edge(boxes[parent], box) for parent in box.step.depends_on if parent in boxes]
    parts += [_drawn(box, (statuses or {}).get(box.step.id)) for box in boxes.values()]
    return "\n".join((*parts, "</svg>")) + "\n"


def _box(step: StepSpec) -> _Box:
    about = "" if step.title == step.id else step.title
    about = f"for each of {step.over}" if step.kind.traits.has_items else about
    lines = list(filter(None, (step.id, ", ".join(filter(None, (about, step.terms))))))
    short = tuple(line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…" for line in lines)
    return _Box(step, short, max(80, CHAR * max(map(len, short)) + 24))


def _layers(steps: Sequence[StepSpec]) -> list[list[str]]:
    """Return step ids by layer: each step one below the lowest of those it waits for."""
    known = {step.id: step for step in steps}
    parents = {name: [parent for parent in step.depends_on if parent in known] for name, step in known.items()}
    depth: dict[str, int] = {}
    for name in TopologicalSorter(parents).static_order():
        depth[name] = max((depth[parent] + 1 for parent in parents[name]), default=0)
    layers: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for name in known:
        layers[depth[name]].append(name)
    return layers


def _children(steps: Mapping[str, StepSpec]) -> Mapping[str, list[str]]:
    children: dict[str, list[str]] = {name: [] for name in steps}
    for name, step in steps.items():
        for parent in step.depends_on:
            if parent in children:
                children[parent].append(name)
    return children


def _order(layers: Sequence[list[str]], boxes: Mapping[str, _Box]) -> None:
    """Put each step near the middle of its neighbours, down and up again, so that fewer edges cross."""
    children = _children({name: box.step for name, box in boxes.items()})
    place = {name: at for layer in layers for name, at in _places(layer)}
    for sweep in range(SWEEPS):
        is_down = sweep % 2 == 0
        for layer in layers if is_down else reversed(layers):
            near = {name: (boxes[name].step.depends_on if is_down else children[name]) for name in layer}
            middle = {name: _mean([place[one] for one in near[name] if one in place], place[name]) for name in layer}
            layer.sort(key=middle.__getitem__)
            place.update(_places(layer))


def _places(layer: Sequence[str]) -> list[tuple[str, float]]:
    return [(name, index / max(1, len(layer) - 1)) for index, name in enumerate(layer)]


def _mean(values: Sequence[float], otherwise: float) -> float:
    return sum(values) / len(values) if values else otherwise


class _Row(Value):
    """Boxes side by side. ``gap`` is the room above them."""

    names: tuple[str, ...]
    gap: int


def _rows(layers: Sequence[Sequence[str]], boxes: Mapping[str, _Box]) -> list[_Row]:
    """Break each layer into rows: up to ``MAX_WIDTH``, or as wide as the picture is high if that is wider."""
    area = sum((box.width + GAP_X) * (HEIGHT + GAP_ROWS) for box in boxes.values())
    widest = max(MAX_WIDTH, math.isqrt(area))
    rows: list[_Row] = []
    for layer in layers:
        gap = GAP_Y if rows else 0
        names: list[str] = []
        taken = 0
        for name in layer:
            if names and taken + boxes[name].width > widest:
                rows.append(_Row(tuple(names), gap))
                names, taken, gap = [], 0, GAP_ROWS
            names.append(name)
            taken += boxes[name].width + GAP_X
        rows.append(_Row(tuple(names), gap))
    return rows


def _place(rows: Sequence[_Row], boxes: Mapping[str, _Box]) -> tuple[int, int]:
    """Give every box its place; return the size of the picture."""
    widths = [sum(boxes[name].width for name in row.names) + GAP_X * (len(row.names) - 1) for row in rows]
    width = max(widths, default=0) + 2 * MARGIN + 2 * _bend(rows, boxes)
    y = MARGIN
    for row, taken in zip(rows, widths, strict=True):
        x, y = (width - taken) / 2, y + row.gap
        for name in row.names:
            boxes[name].x, boxes[name].y = x, y
            x += boxes[name].width + GAP_X
        y += HEIGHT
    return width, y + MARGIN


def _bend(rows: Sequence[_Row], boxes: Mapping[str, _Box]) -> int:
    """Return the room that edges need which go round a row; none when there are none."""
    at = {name: number for number, row in enumerate(rows) for name in row.names}
    edges = [(at[name], at[parent]) for name in at for parent in boxes[name].step.depends_on if parent in at]
    return GAP_X if any(low - high > 1 for low, high in edges) else 0


def _edge(start: _Box, end: _Box) -> str:
    x1, y1 = start.x + start.width / 2, start.y + HEIGHT
    x2, y2 = end.x + end.width / 2, end.y
    half = (y2 - y1) / 2
    # One that goes past a layer swings out to the right of its ends, so as not to hide behind the box between them.
    out = (max(start.width, end.width) / 2 + GAP_X) / 0.75 if y2 - y1 > GAP_Y else 0.0
    c1, c2 = x1 + out, x2 + out
    path = f"M {x1:.0f} {y1:.0f} C {c1:.0f} {y1 + half:.0f}, {c2:.0f} {y2 - half:.0f}, {x2:.0f} {y2:.0f}"
    head = f"M {x2 - 4:.0f} {y2 - 7:.0f} L {x2:.0f} {y2:.0f} L {x2 + 4:.0f} {y2 - 7:.0f}"
    return f'<path d="{path} {head}" fill="none" stroke="#667788"/>'


def _drawn(box: _Box, status: StepStatus | None) -> str:
    fill = "#f4f6fa" if status is None else COLOURS[status]
    radius = HEIGHT // 2 if box.step.kind.traits.is_round else 4
    dashes = ' stroke-dasharray="5 3"' if box.step.kind.traits.has_items else ""
    middle = box.x + box.width / 2
    first = box.y + HEIGHT / 2 + (4 if len(box.lines) == 1 else -3)
    said = f"{box.step.title or box.step.id}" + (f" ({status})" if status else "")
    lines = [
        f'<text x="{middle:.0f}" y="{first + 15 * number:.0f}"{"" if number == 0 else _SMALL}>{_text(line)}</text>'
        for number, line in enumerate(box.lines)
    ]
    frame = (
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width}" height="{HEIGHT}" rx="{radius}" '
        f'fill="{fill}" stroke="#334455"{dashes}/>'
    )
    return f"<g><title>{_text(said)}</title>{frame}{''.join(lines)}</g>"


_SMALL: Final = ' font-size="10" fill="#556677"'


def _text(text: str) -> str:
    """Return text for a document: escaped, without invisible characters and those that XML does not have."""
    return escape(blanked(text))
