"""Values with sensible defaults, so that a test says only what it is about."""

from collections.abc import Sequence

from msgspec import convert
from msgspec.structs import replace

from soong.shared.core.identity import Role, RunIdentity, new_id, step_key
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.record import NewRun, Run
from soong.shared.engine.runs.store import CallRow
from soong.shared.engine.sessions.session import (
    ApprovalMode,
    Command,
    CommandKind,
    Owner,
    Ownership,
    ProcessState,
    Responder,
    Session,
    Worker,
)
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy, StepKind, StepSpec
from soong.shared.engine.tasks.step import Advance, Claim, NewStep, NewTask, Step, StepEnd, Task
from soong.shared.permissions.request import Answer, Choice, Decision, PermissionRequest, Provenance
from soong.shared.sandbox.family import ProcessFacts
from soong.shared.storage.store import Store
from tests.model.clock import START_US

DIGEST = "0" * 64


def make_owner(id: str = "", *, beat: int = 0) -> Owner:
    return Owner(id=id or new_id("own"), host="localhost", pid=1, started_us=START_US, beat=beat)


def make_session(
    id: str = "",
    *,
    owner_id: str = "",
    approval_mode: ApprovalMode = ApprovalMode.PROMPT,
    policy: JsonObject | None = None,
    project: str = "/project",
    cwd: str = "/project",
    principal: str = "local",
    closes_with_task: bool = False,
) -> Session:
    """Return a session; with an owner it stands in its first epoch."""
    return Session(
        id=id or new_id("sess"),
        project=project,
        cwd=cwd,
        approval_mode=approval_mode,
        created_us=START_US,
        policy=policy or {},
        principal=principal,
        owner_id=owner_id,
        owner_epoch=1 if owner_id else 0,
        closes_with_task=closes_with_task,
    )


def make_worker(
    id: str = "",
    *,
    slots: int = 16,
    pools: Sequence[str] = ("default",),
    capabilities: Sequence[str] = (),
    state: ProcessState = ProcessState.LIVE,
) -> Worker:
    worker_id = id or new_id("wrk")
    return Worker(
        id=worker_id,
        node_name=f"{worker_id}@localhost",
        host="localhost",
        pid=1,
        slots=slots,
        pools=tuple(pools),
        capabilities=tuple(capabilities),
        started_us=START_US,
        protocol=1,
        state=state,
    )


def make_responder(session_id: str, id: str = "", *, channel: str = "terminal") -> Responder:
    return Responder(id=id or new_id("resp"), session_id=session_id, principal="local", channel=channel)


def make_command(session_id: str, kind: CommandKind, subject: str) -> Command:
    return Command(new_id("cmd"), session_id, kind, subject, principal="local", created_us=START_US)


def make_identity(
    session_id: str, *, role: Role = Role.WORKER, definition: str = "worker", parent: RunIdentity | None = None
) -> RunIdentity:
    return RunIdentity(
        session_id=session_id,
        run_id=new_id("run"),
        agent_id=new_id("agent"),
        role=role,
        definition=definition,
        parent_run_id=parent.run_id if parent else "",
        parent_agent_id=parent.agent_id if parent else "",
    )


def make_run(identity: RunIdentity, *, attempt: int = 1, retry_of: str = "", token: str = "") -> NewRun:
    return NewRun(
        identity=identity,
        surface={"v": 1, "tools": ["code.read_file"]},
        token=token or f"token of {identity.run_id}",
        attempt=attempt,
        retry_of=retry_of,
    )


def make_step(
    step_id: str = "a",
    *,
    depends_on: Sequence[str] = (),
    kind: StepKind = StepKind.PYTHON,
    spec: JsonObject | None = None,
    priority: int = 0,
    pool: str = "default",
    needs: Sequence[str] = (),
    definition: str = "",
    model: str = "",
    max_attempts: int = 1,
    on_failure: FailurePolicy = FailurePolicy.SKIP_DEPENDENTS,
    claim_mode: ClaimMode = ClaimMode.ASSIGNED,
    is_pull_worker: bool = False,
) -> NewStep:
    """Return a step of no task; ``depends_on`` are step ids."""
    work = replace(convert(spec or {}, StepSpec), id=step_id, kind=kind, claim=claim_mode)
    return NewStep(
        key=step_id,
        task_id="",
        session_id="",
        spec=work,
        title=f"Step {step_id}",
        depends_on=tuple(depends_on),
        priority=priority,
        pool=pool,
        needs=tuple(needs),
        definition=definition,
        model=model,
        max_attempts=max_attempts,
        on_failure=on_failure,
        is_pull_worker=is_pull_worker,
    )


def make_map(step_id: str = "m", *, depends_on: Sequence[str] = ()) -> NewStep:
    return make_step(step_id, kind=StepKind.MAP, depends_on=depends_on)


def make_task(session_id: str, *steps: NewStep | str, id: str = "", inputs: JsonObject | None = None) -> NewTask:
    """Return a task of these steps; a bare name is a step of that id that waits for nothing."""
    task_id = id or new_id("task")
    root = make_identity(session_id, role=Role.ORCHESTRATOR, definition="orchestrator")
    named = [make_step(step) if isinstance(step, str) else step for step in steps]
    return NewTask(
        id=task_id,
        session_id=session_id,
        title="A task",
        plan={"v": 1, "title": "A task"},
        inputs=inputs or {},
        created_us=START_US,
        root_run=make_run(replace(root, task_id=task_id)),
        steps=tuple(_homed(step, task_id, session_id, root) for step in named),
    )


def make_children(map_step: Step, parent: RunIdentity, *items: NewStep | str) -> tuple[NewStep, ...]:
    """Return the children of a map step, one for each item, named ``<map>[<item>]``, under the task's root run."""
    named = [make_step(item) if isinstance(item, str) else item for item in items]
    return tuple(
        replace(
            _homed(
                replace(child, spec=replace(child.spec, id=f"{map_step.step_id}[{child.step_id}]")),
                map_step.task_id,
                map_step.session_id,
                parent,
            ),
            map_key=map_step.key,
            item_index=index,
        )
        for index, child in enumerate(named)
    )


def make_more(task: Task, root: RunIdentity, *steps: NewStep | str) -> tuple[NewStep, ...]:
    """Return steps that a task which goes on grows by, under its ``root`` run."""
    named = [make_step(step) if isinstance(step, str) else step for step in steps]
    return tuple(_homed(step, task.id, task.session_id, root) for step in named)


def make_retry(last: Run) -> NewRun:
    """Return the run of the next attempt after ``last``."""
    identity = replace(last.identity, run_id=new_id("run"), agent_id=new_id("agent"))
    return make_run(identity, attempt=last.attempt + 1, retry_of=last.id)


def make_call(claim: Claim, tool_call_id: str = "call_1", *, decision_id: str = "", is_write: bool = True) -> CallRow:
    return CallRow(
        run_id=claim.identity.run_id,
        tool_call_id=tool_call_id,
        tool="code.write_file",
        effect_id=f"effect of {tool_call_id}",
        is_write=is_write,
        input_digest=DIGEST,
        inputs={"model_input": {"path": "report.md"}},
        facts={"risk": "write"},
        decision_id=decision_id,
    )


def make_request(claim: Claim, tool_call_id: str = "call_1", *, id: str = "") -> PermissionRequest:
    """Return what a worker that holds ``claim`` asks."""
    return PermissionRequest(
        id=id or new_id("req"),
        identity=claim.identity,
        tool_call_id=tool_call_id,
        tool="code.write_file",
        permission="write",
        tags=("filesystem", "write"),
        arguments={"path": "report.md"},
        input_digest=DIGEST,
        target_kind="path",
        scope="/project",
        shown="/project/report.md",
        precondition="absent",
        cwd="/project",
        host="",
        env=("PATH",),
        is_dangerous=False,
        risk="write",
        risk_summary="writes one file",
        preview="12 bytes",
        hook_result="none",
        suggested=Choice.ALLOW_ONCE,
        created_us=START_US,
        fence=claim.fence,
        proof="proof",
    )


def make_answer(
    request: PermissionRequest, choice: Choice | None = Choice.ALLOW_ONCE, *, principal: str = "local"
) -> Answer:
    return Answer(
        request.id, choice, principal, "terminal", request.input_digest, START_US, provenance=make_provenance()
    )


def make_provenance(*, is_run: bool = False) -> Provenance:
    """Return a shell's child, or a run's."""
    shell = ProcessFacts(4_241, START_US, "/bin/sh", is_run=False)
    return Provenance("here", (ProcessFacts(4_242, START_US, "/usr/bin/soong", is_run), shell))


def make_decision(request: PermissionRequest, choice: Choice = Choice.ALLOW_ONCE) -> Decision:
    return Decision(
        id=new_id("dec"),
        request_id=request.id,
        session_id=request.identity.session_id,
        run_id=request.identity.run_id,
        tool_call_id=request.tool_call_id,
        tool=request.tool,
        input_digest=request.input_digest,
        scope=request.scope,
        precondition=request.precondition,
        choice=choice,
        author="person",
        principal="local",
        reason="",
        error=None,
        decided_us=START_US,
        expires_us=START_US + 86_400_000_000,
        key_id="key_test",
        signature="signature",
    )


async def open_session(store: Store, session: Session | None = None) -> Ownership:
    """Open a session under an owner of its own; return the right to write it."""
    opened = session or make_session()
    if not opened.owner_id:
        opened = replace(opened, owner_id=new_id("own"), owner_epoch=1)
    await store.sessions.register_owner(make_owner(opened.owner_id))
    await store.sessions.open_session(opened)
    return opened.ownership


async def take_turn(
    store: Store,
    worker_id: str,
    ends: Sequence[StepEnd] = (),
    *,
    claim: int = 1,
    capabilities: Sequence[str] = (),
    live_workers: int = 1,
    now_us: int = START_US,
) -> Advance:
    """Let a worker of the default pool write ends and claim so many steps."""
    return await store.claims.advance(
        worker_id,
        ends,
        claim=claim,
        pools=("default",),
        capabilities=capabilities,
        live_workers=live_workers,
        now_us=now_us,
    )


async def open_worker(store: Store, worker: Worker | None = None) -> str:
    """Register a live worker; return its id."""
    opened = worker or make_worker()
    await store.sessions.register_worker(opened)
    return opened.id


async def open_task(store: Store, ownership: Ownership, *steps: NewStep | str, inputs: JsonObject | None = None) -> str:
    """Create a task of these steps; return its id."""
    task = make_task(ownership.session_id, *steps, inputs=inputs)
    await store.tasks.create_task(task)
    return task.id


def _homed(step: NewStep, task_id: str, session_id: str, root: RunIdentity) -> NewStep:
    key = step_key(task_id, step.step_id)
    identity = replace(
        make_identity(session_id, definition=step.definition or "worker", parent=root),
        task_id=task_id,
        step_key=key,
        step_title=step.title,
        model=step.model,
    )
    return replace(
        step,
        key=key,
        task_id=task_id,
        session_id=session_id,
        depends_on=tuple(step_key(task_id, needed) for needed in step.depends_on),
        run=None if step.kind is StepKind.MAP else make_run(identity),
    )
