"""What the engine promises of steps, in as few words as possible: the oracle of the state machine."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from soong.shared.engine.tasks.spec import FailurePolicy
from soong.shared.engine.tasks.status import STEP_ENDS, StepStatus, TaskStatus

P, S = FailurePolicy, StepStatus
OPEN = frozenset({S.PENDING, S.READY, S.BLOCKED, S.EXPANDING, S.WAITING})


@dataclass(slots=True)
class Node:
    """A step. ``waits`` are the keys it still waits for: what it depends on, or a map's children."""

    key: str
    task: str
    waits: set[str]
    is_map: bool = False
    map_key: str = ""
    status: StepStatus = S.PENDING
    fence: int = 0
    holder: str = ""
    lost: int = 0
    is_settled: bool = False
    is_stopping: bool = False
    is_due: bool = False
    """It waits for the time of its retry."""
    run: str = ""
    """The run that was claimed with it; none before its next attempt is."""


@dataclass(slots=True)
class Model:
    """All steps of one session. A method says whether what it was asked is done; if not, nothing has changed."""

    nodes: dict[str, Node] = field(default_factory=dict)
    tasks: dict[str, TaskStatus] = field(default_factory=dict)
    below: dict[str, set[str]] = field(default_factory=dict)
    questions: dict[str, tuple[str, str]] = field(default_factory=dict)
    """The open questions, with the step and the run that asked."""

    # -- making
    def create(self, task: str, nodes: Iterable[Node]) -> None:
        self.tasks[task] = TaskStatus.RUNNING
        made = list(nodes)
        for node in made:
            self.nodes[node.key] = node
            for needed in node.waits:
                self.below.setdefault(needed, set()).add(node.key)
        for node in made:
            self._open_if_free(node)

    def expand(self, key: str, children: Iterable[str]) -> bool:
        node, made = self.nodes[key], list(children)
        if node.status is not S.EXPANDING:
            return False
        node.status, node.waits = S.WAITING, set(made)
        for child in made:
            self.nodes[child] = Node(child, node.task, set(), map_key=key, status=S.READY)
        if not made:
            self._done(node)
        return True

    def fail_expansion(self, key: str) -> None:
        if self.nodes[key].status is S.EXPANDING:
            self.nodes[key].status = S.FAILED

    # -- a worker
    def claimable(self) -> set[str]:
        running = {task for task, status in self.tasks.items() if status is TaskStatus.RUNNING}
        return {node.key for node in self.nodes.values() if node.status is S.READY and node.task in running}

    def claim(self, key: str, worker: str, run: str) -> None:
        node = self.nodes[key]
        node.status, node.holder, node.run, node.fence = S.RUNNING, worker, run, node.fence + 1

    def holds(self, worker: str, key: str, fence: int) -> bool:
        node = self.nodes[key]
        return node.status is S.RUNNING and (node.holder, node.fence) == (worker, fence)

    def end(self, key: str, status: StepStatus) -> None:
        """End a step that is held."""
        node = self.nodes[key]
        node.status = status
        node.is_settled = status is S.FAILED and node.is_stopping
        node.is_stopping = False
        if status is S.COMPLETED:
            self._count_down(node)

    def release(self, key: str) -> None:
        node = self.nodes[key]
        node.status = S.CANCELLED if node.is_stopping else S.READY
        node.is_stopping = False

    def open_of(self, run: str) -> set[str]:
        return {request for request, (_, asker) in self.questions.items() if asker == run}

    def may_park(self, worker: str, key: str, fence: int, requests: set[str], most: int) -> bool:
        node = self.nodes[key]
        is_wanted = not node.is_stopping and self.tasks[node.task] is TaskStatus.RUNNING
        has_room = sum(other.status is S.BLOCKED for other in self.nodes.values()) < most
        may = self.holds(worker, key, fence) and is_wanted and has_room and requests <= self.open_of(node.run)
        return may or (node.status is S.BLOCKED and node.fence == fence)

    def park(self, key: str) -> None:
        self.nodes[key].status, self.nodes[key].holder = S.BLOCKED, ""

    def close(self, request: str) -> bool:
        """Close an open question; say whether a parked step goes on with it."""
        key, run = self.questions.pop(request)
        node = self.nodes[key]
        if node.status is not S.BLOCKED or node.run != run:
            return False
        node.status = S.READY
        return True

    def is_orphan(self, request: str) -> bool:
        """Say whether the run that asks has ended."""
        key, run = self.questions[request]
        return self.nodes[key].run != run or self.nodes[key].status in STEP_ENDS

    def waiting(self) -> set[str]:
        return {request for request in self.questions if not self.is_orphan(request)}

    def withdraw_orphans(self) -> set[str]:
        """Close the questions of runs that have ended, and return them."""
        ended = {request for request in self.questions if self.is_orphan(request)}
        for request in ended:
            del self.questions[request]
        return ended

    def expire(self, worker: str, most: int) -> None:
        for node in self.nodes.values():
            if node.status is S.RUNNING and node.holder == worker:
                node.lost, node.fence = node.lost + 1, node.fence + 1
                poisoned = node.lost >= most and not node.is_stopping
                if poisoned:
                    node.status = S.FAILED
                else:
                    self.release(node.key)

    # -- the owner
    def may_retry(self, key: str) -> bool:
        node = self.nodes[key]
        return node.status is S.FAILED and not node.is_settled and not node.is_map

    def retry(self, key: str) -> None:
        self.nodes[key].status, self.nodes[key].is_due, self.nodes[key].run = S.PENDING, True, ""

    def promote(self) -> None:
        for node in self.nodes.values():
            if node.is_due and node.status is S.PENDING:
                node.status, node.is_due = S.READY, False

    def settle(self, key: str, policy: FailurePolicy) -> bool:
        node = self.nodes[key]
        if node.status is not S.FAILED:
            return False
        if node.is_settled:
            return True
        node.is_settled = True
        match policy:
            case P.KEEP:
                self._count_down(node)
            case P.SKIP_DEPENDENTS:
                self._skip_below(key)
                if node.map_key and self.nodes[node.map_key].status is S.WAITING:
                    self.nodes[node.map_key].status = S.FAILED
            case P.FAIL_TASK:
                self._cancel_all(node.task)
        return True

    def pause(self, task: str) -> bool:
        return self._steer(task, TaskStatus.PAUSED)

    def resume(self, task: str) -> bool:
        return self._steer(task, TaskStatus.RUNNING)

    def cancel(self, task: str) -> bool:
        if not self._steer(task, TaskStatus.CANCELLED):
            return False
        self._cancel_all(task)
        return True

    def finish(self, task: str) -> TaskStatus | None:
        nodes = [node for node in self.nodes.values() if node.task == task]
        if not self.tasks[task].is_terminal:
            if any(node.status not in STEP_ENDS or (node.status is S.FAILED and not node.is_settled) for node in nodes):
                return None
            is_whole = all(node.status is S.COMPLETED for node in nodes)
            self.tasks[task] = TaskStatus.COMPLETED if is_whole else TaskStatus.FAILED
        return self.tasks[task]

    # -- what follows
    def _steer(self, task: str, status: TaskStatus) -> bool:
        if self.tasks[task].is_terminal:
            return False
        self.tasks[task] = status
        return True

    def _cancel_all(self, task: str) -> None:
        for node in self.nodes.values():
            if node.task == task:
                node.is_stopping = node.is_stopping or node.status is S.RUNNING
                node.is_settled = node.is_settled or node.status is S.FAILED
                if node.status in OPEN:
                    node.status = S.CANCELLED
                    self._withdraw_of(node.run)

    def _withdraw_of(self, run: str) -> None:
        for request in self.open_of(run):
            del self.questions[request]

    def _skip_below(self, key: str) -> None:
        rest, seen = [key], {key}
        while rest:
            for below in self.below.get(rest.pop(), set()) - seen:
                seen.add(below)
                rest.append(below)
                if self.nodes[below].status is S.PENDING:
                    self.nodes[below].status = S.SKIPPED

    def _done(self, node: Node) -> None:
        node.status = S.COMPLETED
        self._count_down(node)

    def _count_down(self, node: Node) -> None:
        for key in sorted(self.below.get(node.key, ())):
            below = self.nodes[key]
            if below.status is S.PENDING:
                below.waits.discard(node.key)
                self._open_if_free(below)
        above = self.nodes.get(node.map_key)
        if above is not None and above.status is S.WAITING:
            above.waits.discard(node.key)
            if not above.waits:
                self._done(above)

    def _open_if_free(self, node: Node) -> None:
        if not node.waits:
            node.status = S.EXPANDING if node.is_map else S.READY
