"""The rows of the claim path by name: each is a statement's columns in their order.

The hot path reads with raw cursors, which give plain tuples; a named tuple costs it no more than unpacking one.
"""

from typing import NamedTuple


class ClaimedStep(NamedTuple):
    """A step as its claim returns it; ``ready_us`` says when a worker's end opened it, if no log says so yet."""

    key: str
    fence: int
    starts: int
    run_id: str
    kind: str
    spec: str
    attempt: int
    task_id: str
    session_id: str
    priority: int
    ordinal: int
    is_unparked: int
    ready_us: int | None
    title: str


class ClaimedRun(NamedTuple):
    """The run of a claimed step, with what its session adds."""

    id: str
    session_id: str
    agent_id: str
    role: str
    definition: str
    parent_run_id: str
    parent_agent_id: str
    task_id: str
    step_key: str
    step_title: str
    model: str
    token: str
    surface: str
    project: str
    cwd: str
    policy: str
    dispatched_by: str
    is_foreign: int
    last_node: int


class ResultRow(NamedTuple):
    """A step whose result another one is given: ``child_key`` waited for it, or is empty."""

    child_key: str
    key: str
    step_id: str
    status: str
    kind: str
    output: str | None
    outcome: str | None


class ItemRow(NamedTuple):
    """The output of one item of a map step."""

    map_key: str
    key: str
    kind: str
    output: str | None


class LaneRow(NamedTuple):
    """A lane with ready work: its first step in line, how many are ready, and the turns of the sessions."""

    key: str
    session_id: str
    pool: str
    needs: str
    definition: str
    model: str
    is_unparked: int
    priority: int
    ordinal: int
    ready: int
    last_claimed: int
    last_turn: int | None
    claim_mode: str


class RequestedRow(NamedTuple):
    """A step that a run asks for in addition to its own."""

    step_id: str
    kind: str
    status: str
    open_deps: int
    pool: str
    needs: str
    is_paused: int
    is_pull_worker: int
    has_begun: int
    session_id: str
    definition: str
    model: str
