"""What is written for a plan: a session without an owner and a task. Nothing is written here.

Everything that can be wrong with a plan, its inputs and its rules is found here, before a service is started.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Submission
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
from soong.shared.engine.runs.budgets import Budget, configured_budget, parse_budget
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
from soong.shared.permissions.rules import parse_allow
from soong.shared.sandbox.marked_project import project_id

NO_SETTINGS: Final[JsonObject] = MappingProxyType({})


class Ids(NamedTuple):
    """The ids that a submission gets. The same ones written again are the same session and task."""

    session: str
    task: str


def new_ids() -> Ids:
    return Ids(new_id("sess"), new_id("task"))


class SessionTerms(Value):
    """What a new session is to be: its folder, who answers, its rules, its models, its budget. Not checked yet."""

    project: Path
    approval_mode: ApprovalMode = ApprovalMode.DENY
    model: str = ""
    """Of agents that name none."""
    allow: Sequence[str] = ()
    principal: str = "local"
    cwd: Path | None = None
    """Where relative paths start; None: at the folder of this process."""
    ids: Ids = msgspec.field(default_factory=new_ids)
    policy: Policy | None = None
    """What rules are added to; None: the policy of the catalogue."""
    budget: Sequence[str] = ()
    settings: JsonObject = NO_SETTINGS
    """How models are asked: of a plan those of all its agents, of an ask its own (:func:`read_settings`)."""
    step_grants: Sequence[StepGrant] = ()
    """Consents to what steps declare (PER-17)."""
    max_concurrent: int = 0
    """Most of its steps at once; 0: the limit of the settings, if there is one."""


class NextAsk(Value):
    """Another goal for a session. What is empty is as in the ask that it follows; an empty ``task_id``: a new one."""

    goal: str
    agent: str = ""
    model: str = ""
    budget: Sequence[str] = ()
    settings: JsonObject = NO_SETTINGS
    task_id: str = ""


def submission(
    plan: Plan, inputs: Mapping[str, Json], terms: SessionTerms, catalogue: Catalogue, clock: Clock
) -> Submission:
    """Bind and check everything. ``catalogue`` has the agent definitions of the project (:meth:`Catalogue.at`).

    Raises:
        UsageError: the project is not a folder, a wrong input, rule or model, a step without model and script.
    """
    require_text("the model", terms.model)
    now_us = clock.now_us()
    for name in models_of(plan, terms.model):
        check_name(name)
    session = _session(terms, catalogue, now_us, is_ask=False)
    made = new_task(
        with_settings(plan, terms.settings),
        bind_inputs(plan, inputs),
        session,
        surface_of=catalogue.surface_of,
        default_model=terms.model,
        now_us=now_us,
        task_id=terms.ids.task,
    )
    traced = replace(made, trace_parent=trace_parent())
    return Submission(session, traced, budget_of_session(terms.budget, catalogue.config), terms.max_concurrent)


def budget_of_session(given: Sequence[str], config: Config) -> Budget:
    """Return the budget of a new session: what is said, else the configuration's.

    Raises:
        UsageError: one is none.
        InvalidConfigError: the configuration's is none.
    """
    return parse_budget(*given) if any(given) else configured_budget(config.budgets.session, "session")


def ask_submission(
    goal: str, agent: str, terms: SessionTerms, catalogue: Catalogue, clock: Clock, *, follows: str = ""
) -> Submission:
    """Bind and check a goal for an agent. ``agent`` is the id of its definition.

    ``follows`` is the root run of a completed ask in another session of the same principal and folder, whose
    conversation continues. The agent ``orchestrator`` has that role; any other answers as the main agent of its session
    (DIS-01).

    Raises:
        UsageError: the goal is empty, there is no model, the project is not a folder, or a wrong rule or model.
        NotFoundError: the agent definition is unknown.
    """
    _check_goal(goal)
    catalogue = catalogue.at(terms.project)
    definition = _definition(catalogue, agent).with_settings(terms.settings)
    name = _model_of_ask(definition, terms.model)
    now_us = clock.now_us()
    session = _session(terms, catalogue, now_us, is_ask=True)
    task = _ask(goal, session, definition, name, catalogue, now_us, task_id=terms.ids.task, follows=follows)
    return Submission(session, task, budget_of_session(terms.budget, catalogue.config), terms.max_concurrent)


def follow_up(ask: NextAsk, session: Session, former: Run | None, catalogue: Catalogue, clock: Clock) -> Submission:
    """Bind another goal in a session that there is, whose rules it has.

    It continues the conversation of ``former``, the root run of a completed ask in the session; without one it has a
    conversation of its own, and names its agent.

    Raises:
        UsageError: the goal is empty, the former run did not complete, or there is no model.
        NotFoundError: the agent definition is unknown.
    """
    _check_goal(ask.goal)
    catalogue = catalogue.at(Path(session.project))
    if former is None:
        definition = _definition(catalogue, ask.agent)
        name, follows = _model_of_ask(definition, ask.model), ""
    else:
        if former.status is not RunStatus.COMPLETED:
            raise UsageError(
                f"the last ask of session {session.id} is {former.status}; continue it with `soong resume "
                f"{former.identity.task_id}`"
            )
        name, follows = ask.model or former.identity.model, former.id
        check_name(name)
        definition = _definition(catalogue, ask.agent or former.identity.definition)
    definition = definition.with_settings(ask.settings)
    task = _ask(ask.goal, session, definition, name, catalogue, clock.now_us(), task_id=ask.task_id, follows=follows)
    return Submission(session, task, parse_budget(*ask.budget))


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


def _session(terms: SessionTerms, catalogue: Catalogue, now_us: int, *, is_ask: bool) -> Session:
    folder = existing_folder(terms.project)
    here = str(terms.cwd or Path.cwd())
    require_text("the rule", *terms.allow)
    require_text("the folder", str(folder), here)
    readonly, names = catalogue.readonly_tools, catalogue.ruled_names
    rules = [parse_allow(text, readonly_tools=readonly, tools=names) for text in catalogue.written_out(*terms.allow)]
    home = str(Path.home()) if terms.step_grants else ""
    for grant in terms.step_grants:
        rules += grant.rules(terms.ids.task, principal=terms.principal, now_us=now_us, home=home)
    return Session(
        id=terms.ids.session,
        project=str(folder),
        cwd=here,
        approval_mode=terms.approval_mode,
        created_us=now_us,
        policy=(terms.policy or catalogue.policy).with_rules(rules).as_json(),
        principal=terms.principal,
        project_id=project_id(folder) if catalogue.needs_project else "",
        closes_with_task=not catalogue.config.memory.remembers(is_ask=is_ask),
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
