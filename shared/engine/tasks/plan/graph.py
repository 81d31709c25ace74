"""The graph of a plan's steps: cycles, and its picture as Mermaid text (DAG-02, DAG-08)."""

from collections.abc import Mapping, Sequence
from typing import Final

from soong.shared.core.inert import blanked
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.status import StepStatus


def find_cycle(edges: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the nodes of one cycle in the order of its edges, first one repeated at the end; empty when there is none.

    ``edges`` maps a node to what it depends on; names that are not nodes are skipped.
    """
    done: set[str] = set()
    for start, parents in edges.items():
        if done.issuperset(parents):  # as in a plan whose steps stand in their order
            done.add(start)
            continue
        # Depth first with a stack of our own: a chain of ten thousand steps is a legal plan.
        trail: list[str] = []
        on_trail: set[str] = set()
        stack: list[tuple[str, bool]] = [(start, True)]
        while stack:
            node, is_entered = stack.pop()
            if not is_entered:
                on_trail.discard(trail.pop())
                done.add(node)
            elif node in on_trail:
                return (*trail[trail.index(node) :], node)
            elif node in edges and node not in done:
                trail.append(node)
                on_trail.add(node)
                stack.append((node, False))
                stack.extend((parent, True) for parent in edges[node])
    return ()


_CLASSES: Final[Mapping[str, str]] = {
    "done": "fill:#d9f2dc,stroke:#2e7d32",
    "bad": "fill:#f9d6d5,stroke:#b71c1c",
    "off": "fill:#eeeeee,stroke:#9e9e9e",
    "busy": "fill:#d6e6fb,stroke:#1565c0",
    "asks": "fill:#fdf0cc,stroke:#f9a825",
}
_CLASS_OF: Final[Mapping[StepStatus, str]] = {
    StepStatus.COMPLETED: "done",
    StepStatus.FAILED: "bad",
    StepStatus.CANCELLED: "off",
    StepStatus.SKIPPED: "off",
    StepStatus.RUNNING: "busy",
    StepStatus.EXPANDING: "busy",
    StepStatus.WAITING: "busy",
    StepStatus.BLOCKED: "asks",
}


def mermaid(plan: Plan, statuses: Mapping[str, StepStatus] | None = None) -> str:
    """Return the plan as a Mermaid flowchart, steps in plan order; ``statuses`` by step id colour it."""
    names = {step.id: f"s{index}" for index, step in enumerate(plan.steps)}
    lines = ["flowchart TD"]
    lines += [f"    {names[step.id]}{_shape(step)}" for step in plan.steps]
    lines += [
        f"    {names[parent]} --> {names[step.id]}"
        for step in plan.steps
        for parent in step.depends_on
        if parent in names
    ]
    classes = {_CLASS_OF[status] for status in (statuses or {}).values() if status in _CLASS_OF}
    lines += [f"    classDef {name} {_CLASSES[name]}" for name in sorted(classes)]
    lines += [
        f"    class {names[step_id]} {_CLASS_OF[status]}"
        for step_id, status in (statuses or {}).items()
        if step_id in names and status in _CLASS_OF
    ]
    return "\n".join(lines) + "\n"


def _shape(step: StepSpec) -> str:
    label = f"{_escape(step.id)}<br/><i>{_escape(step.title)}</i>" if step.title != step.id else _escape(step.id)
    if step.kind.traits.has_items:
        label += f"<br/>one for each of {_escape(str(step.over))}"
    opening, closing = step.kind.traits.brackets
    return f'{opening}"{label}"{closing}'


def _escape(text: str) -> str:
    r"""Return text as a label shows it: on one line, and nothing in it is syntax.

    Mermaid reads HTML entities without the ampersand. Quotes and brackets would end the label, ``%%`` begins comments
    and directives anywhere, ``\n`` is a line break, and its own marks for entities are ``ﬂ°``, ``¶ß``.
    """
    return "".join(f"#{ord(char)};" if char in _SYNTAX else char for char in blanked(text))


_SYNTAX: Final = frozenset('"[](){}<>#;`%$&|\\ﬂ°¶ß')
