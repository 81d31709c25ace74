"""The graph of a plan's steps: cycles, and its picture as Mermaid text (DAG-02, DAG-08)."""

from collections.abc import Mapping, Sequence

from shared.tasks.plan import Plan, PlanStep
from shared.tasks.step import StepKind


def find_cycle(edges: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the nodes of one cycle in the order of its edges, first one repeated at the end; empty when there is none.

    ``edges`` maps a node to what it depends on; names that are no node are passed over.
    """
    done: set[str] = set()
    for start in edges:
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


def mermaid(plan: Plan) -> str:
    """Return the plan as a Mermaid flowchart, steps in plan order."""
    names = {step.id: f"s{index}" for index, step in enumerate(plan.steps)}
    lines = ["flowchart TD"]
    lines += [f"    {names[step.id]}{_shape(step)}" for step in plan.steps]
    lines += [
        f"    {names[parent]} --> {names[step.id]}"
        for step in plan.steps
        for parent in step.depends_on
        if parent in names
    ]
    return "\n".join(lines) + "\n"


def _shape(step: PlanStep) -> str:
    label = f"{_escape(step.id)}<br/><i>{_escape(step.title)}</i>" if step.title != step.id else _escape(step.id)
    match step.kind:
        case StepKind.MAP:
            return f'[["{label}<br/>one for each of {_escape(str(step.over))}"]]'
        case StepKind.PYTHON:
            return f'(["{label}"])'
        case StepKind.AGENT:
            return f'["{label}"]'


def _escape(text: str) -> str:
    # Mermaid reads HTML entities without the ampersand; quotes and brackets would end the label.
    return "".join(f"#{ord(char)};" if char in '"[](){}<>#;`' else char for char in text)
