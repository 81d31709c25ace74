"""Making rows of what a client or an owner hands in: runs, steps, and the opening of a step."""

from collections.abc import Sequence

from msgspec import structs
from msgspec.structs import replace

from soong.shared.core.errors import ConflictError
from soong.shared.engine.runs.budgets import task_scope
from soong.shared.engine.runs.events import EventType
from soong.shared.engine.runs.record import NewRun, Run, RunStatus, Usage
from soong.shared.engine.sessions.session import ProcessState, Session
from soong.shared.engine.tasks.spec import StepEvent, StepKind, TaskStatus, advance_step
from soong.shared.engine.tasks.step import NewStep, NewTask, Step, Task
from soong.shared.engine.tasks.store import NO_PLANNER
from soong.shared.permissions.audit_log import of_session
from tests.model.memory.logs import add_notes, note_run, note_step, tell_step, write_nodes
from tests.model.memory.rows import Rows


def adopt(rows: Rows, owner_id: str) -> Sequence[Session]:
    """Give every open session without an owner to one that lives."""
    owner = rows.owners.get(owner_id)
    if owner is None or owner.state is ProcessState.GONE:
        return []
    free = [session for session in rows.sessions.values() if not session.owner_id and not session.is_closed]
    adopted = [replace(session, owner_id=owner_id, owner_epoch=session.owner_epoch + 1) for session in free]
    rows.sessions.update({session.id: session for session in adopted})
    return adopted


def add_session(rows: Rows, session: Session) -> None:
    """Insert a session, unless there is one of its id."""
    if session.id not in rows.sessions:
        rows.sessions[session.id] = session
        add_notes(rows, [of_session(session)], session.created_us)


def create_task(rows: Rows, task: NewTask) -> None:
    """See :meth:`soong.shared.engine.tasks.store.TaskStore.create_task`."""
    session = rows.session(task.session_id)
    now_us = task.created_us
    stands = rows.tasks.get(task.id)
    if stands is not None and stands.session_id != task.session_id:
        raise ConflictError(f"there is a task {task.id} in another session already")
    if stands is not None:
        return
    planner = task.root_run.identity.parent_run_id
    if planner and rows.task(rows.run(planner).identity.task_id).status is not TaskStatus.RUNNING:
        raise ConflictError(NO_PLANNER)
    if session.is_closed:
        rows.sessions[session.id] = replace(session, is_closed=False, owner_id="")
    insert_run(rows, task.root_run, RunStatus.RUNNING, now_us)
    rows.tasks[task.id] = Task(
        id=task.id,
        session_id=task.session_id,
        title=task.title,
        status=TaskStatus.RUNNING,
        plan=task.plan,
        inputs=task.inputs,
        root_run_id=task.root_run.identity.run_id,
        created_us=now_us,
        kind=task.kind,
        trace_parent=task.trace_parent,
        tags=task.tags,
    )
    if not task.limits.is_unlimited:
        rows.budgets[task_scope(task.id)] = task.limits
    note_run(rows, task.root_run.identity.run_id, EventType.TASK_CREATED, now_us, task=task.id)
    insert_steps(rows, task.steps, now_us)


def insert_run(rows: Rows, new: NewRun, status: RunStatus, now_us: int) -> None:
    rows.runs[new.identity.run_id] = Run(
        identity=new.identity,
        status=status,
        surface=new.surface,
        attempt=new.attempt,
        retry_of=new.retry_of,
        fence=0,
        worker_id="",
        last_seq=0,
        last_node=0,
        usage=Usage(),
        end_reason=None,
        created_us=now_us,
        started_us=now_us if status is RunStatus.RUNNING else None,
        ended_us=None,
        token=new.token,
    )
    note_run(rows, new.identity.run_id, EventType.RUN_CREATED, now_us, attempt=new.attempt)
    write_nodes(rows, new.identity.run_id, new.nodes, now_us)


def insert_steps(rows: Rows, news: Sequence[NewStep], now_us: int, *, done: frozenset[str] = frozenset()) -> None:
    """Insert steps with their runs and open those that wait for nothing; what is ``done`` is not waited for."""
    for new in news:
        _insert_step(rows, new, done, now_us)
    for new in news:
        if done.issuperset(new.depends_on):
            open_step(rows, new.key, now_us)


def _insert_step(rows: Rows, new: NewStep, done: frozenset[str], now_us: int) -> None:
    if new.run is not None:
        insert_run(rows, new.run, RunStatus.QUEUED, now_us)
    row = structs.asdict(new)
    del row["run"]
    run_id, attempt = (new.run.identity.run_id, new.run.attempt) if new.run else ("", 1)
    open_deps = len(set(new.depends_on) - done)
    step = Step(**(row | {"open_deps": open_deps, "run_id": run_id, "attempt": attempt}))
    rows.steps[step.key] = step
    for needed in dict.fromkeys(new.depends_on):
        rows.dependents[needed] = (*rows.dependents.get(needed, ()), step.key)
    note_step(rows, step, EventType.STEP_CREATED, now_us)


def open_step(rows: Rows, step_key: str, now_us: int) -> None:
    """Make a pending step that waits for nothing more claimable, or due for expansion if it is a map."""
    unlock_step(rows, step_key, now_us)
    tell_step(rows, step_key, now_us)


def unlock_step(rows: Rows, step_key: str, now_us: int) -> None:
    """Do the same as the end of another step does: its claim, or its owner, writes since when it is open."""
    step = rows.step(step_key)
    status = advance_step(step.status, StepEvent.EXPAND if step.kind is StepKind.MAP else StepEvent.UNLOCK)
    rows.steps[step_key] = replace(step, status=status, not_before_us=None)
    rows.untold[step_key] = now_us
