"""What is written for a plan: a session without an owner and a task. Nothing is written here.

Everything that can be wrong with a plan, its inputs and its rules is found here, before a service is started.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.definition import AgentDefinition
from soong.shared.agents.model import SCRIPT, check_name
from soong.shared.core.clock import Clock
from soong.shared.core.config import Config
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.identity import Role
from soong.shared.core.ids import new_id
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.core.telemetry import trace_parent
from soong.shared.core.texts import require_text
from soong.shared.core.value import Value
from soong.shared.engine.runs.budgets import NO_BUDGET, Budget, configured_budget, parse_budget
from soong.shared.engine.runs.record import Run
from soong.shared.engine.runs.status import RunStatus
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.engine.tasks.new_tasks import models_of, new_ask, new_task
from soong.shared.engine.tasks.plan.inputs import bind_inputs
from soong.shared.engine.tasks.plan.kinds.agent import with_settings
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX, ORCHESTRATOR, Plan
from soong.shared.engine.tasks.problems import Unknown
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import NewTask
from soong.shared.permissions.consent import StepGrant
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Rule, parse_allow
from soong.shared.sandbox.marked_project import project_id

NO_SETTINGS: Final[JsonObject] = MappingProxyType({})


class Ids(NamedTuple):
    """The ids that a submission gets. The same ones written again are the same session and task."""

    session: str
    task: str


class Submission(Value):
    """A session and its first task, ready to be written."""

    session: Session
    task: NewTask
    budget: Budget = NO_BUDGET
    """Of the session; without a limit it keeps what it has."""


def submission(
    plan: Plan,
    inputs: Mapping[str, Json],
    *,
    project: Path,
    approval_mode: ApprovalMode,
    model: str,
    allow: Sequence[str],
    catalogue: Catalogue,
    clock: Clock,
    principal: str = "local",
    cwd: Path | None = None,
    is_program: bool = False,
    step_grants: Sequence[StepGrant] = (),
    ids: "Ids | None" = None,
    policy: Policy | None = None,
    budget: Sequence[str] = (),
    settings: JsonObject = NO_SETTINGS,
    closes_with_task: bool = False,
) -> Submission:
    """Bind and check everything. ``cwd`` is the folder that its caller is in, our own by default, and with
    ``is_program`` that of :func:`program_folder`.

    ``catalogue`` has the agent definitions of the project (:meth:`Catalogue.at`); ``policy`` is what rules are added
    to, by default the catalogue's. ``step_grants`` are consents to the steps' declarations (PER-17). ``settings`` are
    those of all requests of models (:func:`read_settings`). ``closes_with_task``: the session is for this task alone.

    Raises:
        UsageError: the project is not a folder, a wrong input, rule or model, a step without model and script.
    """
    require_text("the model", model)
    ids = ids or Ids(new_id("sess"), new_id("task"))
    now_us = clock.now_us()
    for name in models_of(plan, model):
        check_name(name)
    session = _session(
        ids.session,
        project=project,
        cwd=cwd,
        is_program=is_program,
        approval_mode=approval_mode,
        allow=allow,
        more_rules=_granted(step_grants, ids.task, principal, now_us),
        catalogue=catalogue,
        policy=policy,
        principal=principal,
        now_us=now_us,
        closes_with_task=closes_with_task,
    )
    made = new_task(
        with_settings(plan, settings),
        bind_inputs(plan, inputs),
        session,
        surface_of=catalogue.surface_of,
        default_model=model,
        now_us=now_us,
        task_id=ids.task,
    )
    traced = replace(made, trace_parent=trace_parent())
    return Submission(session, traced, budget_of_session(budget, catalogue.config))


def _granted(grants: Sequence[StepGrant], task_id: str, principal: str, now_us: int) -> list[Rule]:
    home = str(Path.home()) if grants else ""
    return [rule for grant in grants for rule in grant.rules(task_id, principal=principal, now_us=now_us, home=home)]


def budget_of_session(given: Sequence[str], config: Config) -> Budget:
    """Return the budget of a new session: what is said, else the configuration's.

    Raises:
        UsageError: one is none.
        InvalidConfigError: the configuration's is none.
    """
    return parse_budget(*given) if any(given) else configured_budget(config.budgets.session, "session")


def ask_submission(
    goal: str,
    *,
    agent: str,
    project: Path,
    approval_mode: ApprovalMode,
    model: str,
    allow: Sequence[str],
    catalogue: Catalogue,
    clock: Clock,
    principal: str = "local",
    cwd: Path | None = None,
    is_program: bool = False,
    ids: "Ids | None" = None,
    policy: Policy | None = None,
    budget: Sequence[str] = (),
    settings: JsonObject = NO_SETTINGS,
    follows: str = "",
) -> Submission:
    """Bind and check a goal for an agent. ``agent`` is the id of its definition; ``model`` is used where it names none.

    ``settings`` are those of the requests of its own model; the agents that it starts have their own. ``follows`` is
    the root run of a completed ask in another session of the same principal and folder, whose conversation continues.

    The agent ``orchestrator`` has that role; any other answers as the main agent of its session (DIS-01).

    Raises:
        UsageError: the goal is empty, there is no model, the project is not a folder, or a wrong rule or model.
        NotFoundError: the agent definition is unknown.
    """
    _check_goal(goal)
    catalogue = catalogue.at(project)
    definition = _definition(catalogue, agent).with_settings(settings)
    name = _model_of_ask(definition, model)
    ids = ids or Ids(new_id("sess"), new_id("task"))
    now_us = clock.now_us()
    session = _session(
        ids.session,
        project=project,
        cwd=cwd,
        is_program=is_program,
        approval_mode=approval_mode,
        allow=allow,
        catalogue=catalogue,
        policy=policy,
        principal=principal,
        now_us=now_us,
    )
    task = _ask(goal, session, definition, name, catalogue, now_us, task_id=ids.task, follows=follows)
    return Submission(session, task, budget_of_session(budget, catalogue.config))


def follow_up(
    goal: str,
    session: Session,
    former: Run,
    *,
    agent: str,
    model: str,
    catalogue: Catalogue,
    clock: Clock,
    budget: Sequence[str] = (),
    settings: JsonObject = NO_SETTINGS,
    task_id: str = "",
) -> Submission:
    """Bind another goal for the conversation of ``former``, the root run of a completed ask in the session.

    ``agent`` and ``model`` are those of the former run where they are empty; ``task_id`` is a new one by default. The
    rules are the session's.

    Raises:
        UsageError: the goal is empty, or the former run did not complete.
        NotFoundError: the agent definition is unknown.
    """
    _check_goal(goal)
    if former.status is not RunStatus.COMPLETED:
        raise UsageError(
            f"the last ask of session {session.id} is {former.status}; continue it with `soong resume "
            f"{former.identity.task_id}`"
        )
    name = model or former.identity.model
    check_name(name)
    catalogue = catalogue.at(Path(session.project))
    definition = _definition(catalogue, agent or former.identity.definition).with_settings(settings)
    task = _ask(goal, session, definition, name, catalogue, clock.now_us(), task_id=task_id, follows=former.id)
    return Submission(session, task, parse_budget(*budget))


def another_ask(
    goal: str, session: Session, *, agent: str, model: str, catalogue: Catalogue, clock: Clock
) -> Submission:
    """Bind a goal in a session that there is, with a conversation of its own. The rules are the session's.

    Raises:
        UsageError: the goal is empty, or there is no model.
        NotFoundError: the agent definition is unknown.
    """
    _check_goal(goal)
    catalogue = catalogue.at(Path(session.project))
    definition = _definition(catalogue, agent)
    task = _ask(goal, session, definition, _model_of_ask(definition, model), catalogue, clock.now_us())
    return Submission(session, task)


def _model_of_ask(definition: AgentDefinition, model: str) -> str:
    """Return the model of an agent with a goal. Raises: UsageError."""
    name = definition.model or model
    if name in ("", SCRIPT):
        words = f"the agent {definition.id!r} has no model"
        raise UsageError(f"{words}; choose one with --model provider:name, or set SOONG_MODEL")
    if name.startswith(ACP_PREFIX):
        words = f"the agent {definition.id!r} does steps, and plans none"
        raise UsageError(f"{words}; give the goal to another agent, which can have it do one")
    check_name(name)
    return name


def _definition(catalogue: Catalogue, agent: str) -> AgentDefinition:
    """Return a definition. Raises: NotFoundError, with the known ones."""
    known = catalogue.definitions
    if agent not in known.ids:
        plans = frozenset(one for one in known.ids if not one.startswith(ACP_PREFIX))
        raise NotFoundError("agent definition", agent, Unknown(agent, plans, names_all=True).text())
    return known.get(agent)


def title_of(goal: str) -> str:
    """Return the title of an ask: its goal in one line."""
    return " ".join(goal.split())


def _check_goal(goal: str) -> None:
    require_text("the goal", goal)
    if not goal.strip():
        raise UsageError("the goal is empty; say what the agent is to achieve, in quotes")


def _ask(
    goal: str,
    session: Session,
    definition: AgentDefinition,
    model: str,
    catalogue: Catalogue,
    now_us: int,
    *,
    task_id: str = "",
    follows: str = "",
) -> NewTask:
    role = Role.ORCHESTRATOR if definition.id == ORCHESTRATOR else Role.MAIN
    made = new_ask(
        StepSpec(id="ask", instructions=goal),
        session,
        title=title_of(goal),
        role=role,
        definition=definition.id,
        model=model,
        surface=catalogue.surface_of_ask(definition, role),
        now_us=now_us,
        task_id=task_id,
        follows=follows,
    )
    return replace(made, trace_parent=trace_parent())


def _session(
    session_id: str,
    *,
    project: Path,
    cwd: Path | None,
    is_program: bool,
    approval_mode: ApprovalMode,
    allow: Sequence[str],
    catalogue: Catalogue,
    principal: str,
    now_us: int,
    more_rules: Sequence[Rule] = (),
    policy: Policy | None = None,
    closes_with_task: bool = False,
) -> Session:
    folder = existing_folder(project)
    here = str(program_folder(folder) if is_program else cwd or Path.cwd())
    require_text("the rule", *allow)
    require_text("the folder", str(folder), here)
    readonly, names = catalogue.readonly_tools, catalogue.ruled_names
    rules = [parse_allow(text, readonly_tools=readonly, tools=names) for text in catalogue.written_out(*allow)]
    return Session(
        id=session_id,
        project=str(folder),
        cwd=here,
        approval_mode=approval_mode,
        created_us=now_us,
        policy=(policy or catalogue.policy).with_rules([*rules, *more_rules]).as_json(),
        principal=principal,
        project_id=project_id(folder) if catalogue.needs_project else "",
        closes_with_task=closes_with_task,
    )


def existing_folder(path: Path) -> Path:
    """Return the folder, absolute and resolved. Raises: UsageError."""
    require_text("--project", str(path))
    folder = Path(os.path.realpath(path.expanduser()))
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "does not exist"
        raise UsageError(f"--project {str(path)!r} {problem}; name the folder that the steps should work in")
    return folder


def program_folder(project: Path) -> Path:
    """Return where the relative paths of a program's session start: its current folder inside the project.

    A program that runs elsewhere (a server in ``/``) means the project that it names. ``project`` is an
    :func:`existing_folder`.
    """
    here = Path.cwd()  # resolved by the system
    return here if here.is_relative_to(project) else project
