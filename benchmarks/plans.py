"""The plans of the workloads, as a user would write them."""

from collections.abc import Sequence
from typing import assert_never

from benchmarks.workload import Shape, Work, Workload
from soong.shared.core.jsontext import Json


def plan_of(workload: Workload) -> dict[str, Json]:
    """Return the plan document; the fan has its root and its join beside the ``size`` steps that are counted.

    Of single tasks it is the plan of each.
    """
    match workload.shape:
        case Shape.FAN:
            fan = [f"leaf{number:04}" for number in range(workload.size)]
            steps = [
                _step(workload.work, "root", []),
                *(_step(workload.work, leaf, ["root"]) for leaf in fan),
                _step(workload.work, "join", fan),
            ]
        case Shape.CHAIN:
            chain = [f"hop{number:04}" for number in range(workload.size)]
            steps = [_step(workload.work, hop, chain[max(0, at - 1) : at]) for at, hop in enumerate(chain)]
        case Shape.SINGLE:
            steps = [_step(workload.work, "only", [])]
        case other:
            assert_never(other)
    return {"title": f"benchmark {workload.name}", "steps": list(steps)}


def _step(work: Work, step_id: str, depends_on: Sequence[str]) -> dict[str, Json]:
    step: dict[str, Json] = {"id": step_id, "depends_on": list(depends_on), "inputs": {"value": 1}}
    if work is Work.PYTHON:
        return {**step, "kind": "python", "call": "builtin.echo"}
    looks: list[Json] = [{"call": "code.list_dir", "with": {"path": "."}}] * work.calls
    return {
        **step,
        "kind": "agent",
        "instructions": "Look into the folder.",
        "allowed_tools": ["code.list_dir"],
        "script": "builtin.calls",
        "inputs": {"calls": looks},
    }
