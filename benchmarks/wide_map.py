"""One map step with 10,000 children that are agents, through ``soong up`` with two worker processes.

**task's end** is from the end of the last child to the end of the task, as their rows have it: its join is one row, so
it must not grow with the children. **run returned** is from the same end to the return of ``Soong.run``, which reads
all outputs.
"""

from collections.abc import Sequence
from typing import Final

from benchmarks.fleet import cpu_of_tree
from benchmarks.report import Finding
from benchmarks.waiting import ScriptedService, agent, figure, scripted_service
from soong.shared.core.jsontext import Json

NAME: Final = "wide-map"
WORKLOAD: Final = "map"
"""What its figures begin with: those of one kind replace each other."""
CHILDREN: Final = 10_000
SLOTS: Final = 32
"""Of each of the two workers: the configuration's default."""
MAX_AFTER_S: Final = 2.0


def run(stores: Sequence[str], children: int = CHILDREN) -> Finding:
    """Measure each store once, after a small map has warmed it up."""
    found = Finding(())
    for store in stores:
        with scripted_service(store, SLOTS) as service:
            service.bench.runner.run(service.run(_plan(200)))
            found = found.and_also(_measured(store, service, children))
    return found


def _plan(children: int) -> dict[str, Json]:
    items: list[Json] = list(range(children))
    over: dict[str, Json] = {"over": "${items.output}"}
    return {
        "title": f"map of {children}",
        "steps": [
            {"id": "items", "kind": "python", "call": "builtin.given", "inputs": {"output": items}},
            {"id": "each", "kind": "map", "depends_on": ["items"], **over, "max_items": children, "step": agent(0.0)},
        ],
    }


def _measured(store: str, service: ScriptedService, children: int) -> Finding:
    cpu_s = cpu_of_tree(service.bench.pid)
    outcome = service.bench.runner.run(service.run(_plan(children)))
    cpu_s = cpu_of_tree(service.bench.pid) - cpu_s
    # The map step itself ends last of all, with the task.
    last_child_s, elapsed_s = outcome.ends_s[-2], outcome.ends_s[-2] - outcome.begun_s
    after_s, returned_s = outcome.task_end_s - last_child_s, outcome.returned_s - last_child_s
    name = f"{WORKLOAD}-{children}"
    figures = [
        figure(name, store, "last child's end", "s", elapsed_s),
        figure(name, store, "children", "1/s", children / elapsed_s),
        figure(name, store, "cpu of the service", "ms/child", cpu_s * 1000 / children),
        figure(name, store, "task's end after it", "s", after_s, "bound", MAX_AFTER_S),
        figure(name, store, "run returned after it", "s", returned_s, "bound", MAX_AFTER_S),
    ]
    broken = [
        f"{name} on {store}: {what} {value:.2f} s after its last child, not {MAX_AFTER_S:g}"
        for what, value in (("the task ended", after_s), ("run returned", returned_s))
        if value > MAX_AFTER_S
    ]
    return Finding(figures, broken)
