"""The rows for a plan or a goal: a session without an owner and a task. Nothing is written here.

Everything that can be wrong with a plan, its inputs and its rules is found here, before a service is started.

A step consent (PER-17) names the digest of its step in the preview. The digest is computed again from the plan, the
rules and the disk as they are at the submission: another one refuses the submission, and nothing is written.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeAlias, TypeVar

from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.client.client import Submission
from soong.orchestrator.operations.problems import ProblemCode, ProblemError, raised_as_ours
from soong.orchestrator.operations.submissions import (
    AskBody,
    FollowUpBody,
    Ids,
    StepGrantBody,
    SubmissionBody,
    checked_plan,
    checked_project,
    new_ids,
    policy_of_submission,
)
from soong.shared.agents.definition import AgentDefinition
from soong.shared.agents.model import SCRIPT, check_name
from soong.shared.core.errors import NotFoundError, UsageError
from soong.shared.core.identity import Role
from soong.shared.core.jsontext import require_text
from soong.shared.core.log import trace_parent
from soong.shared.core.settings import Settings
from soong.shared.core.timing import SystemClock
from soong.shared.engine.runs.budgets import configured_budget, parse_budget
from soong.shared.engine.runs.record import Run, RunStatus
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.engine.tasks.new_tasks import models_of, new_ask, new_task
from soong.shared.engine.tasks.plan.agent_kind import read_settings, with_settings
from soong.shared.engine.tasks.plan.fields import TAG
from soong.shared.engine.tasks.plan.plan import ACP_PREFIX, ORCHESTRATOR, with_versions
from soong.shared.engine.tasks.problems import Unknown
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.engine.tasks.step import NewTask
from soong.shared.permissions.consent import Preview, StepGrant
from soong.shared.permissions.policy import Policy
from soong.shared.sandbox.rooted import project_id

Work = TypeVar("Work", SubmissionBody, AskBody)
Prepare: TypeAlias = Callable[[Work, str, Ids, Catalogue, Settings], Submission]
"""Makes a body ready to be written, for a principal and with these ids."""


def prepared(body: SubmissionBody, principal: str, ids: Ids, catalogue: Catalogue, settings: Settings) -> Submission:
    """Make a plan ready to be written.

    Raises:
        InvalidPlanError: the plan or an input is wrong, and nothing else; or a step has neither model nor script.
        ProblemError: a field or a rule is wrong, the project may not be used, or a step does not ask for what was
            shown of it.
        UsageError: a wrong model or budget.
    """
    checked, now_us = checked_plan(body, catalogue, settings), SystemClock().now_us()
    catalogue, model = checked.catalogue, body.model or settings.model
    require_text("the model", model)
    for name in models_of(checked.plan, model):
        check_name(name)
    policy = policy_of_submission(catalogue, settings, body.allow)
    if body.step_grants:
        grants, home = _consented(checked.preview(body, settings), body.step_grants), str(Path.home())
        rules = (grant.rules(ids.task, principal=principal, now_us=now_us, home=home) for grant in grants)
        policy = policy.with_rules([*chain.from_iterable(rules)])
    session = _session(body, checked.project, principal, ids, policy, catalogue, now_us)
    plan = with_versions(checked.plan, body.versions)
    task = new_task(
        with_settings(plan, read_settings(body.settings)) if body.settings else plan,
        checked.inputs,
        session,
        surface_of=catalogue.surface_of,
        default_model=model,
        now_us=now_us,
        task_id=ids.task,
    )
    return _submission(body, session, task, catalogue)


def prepared_ask(
    body: AskBody, principal: str, ids: Ids, catalogue: Catalogue, settings: Settings, *, follows: str = ""
) -> Submission:
    """Make a goal ready to be written.

    ``follows`` is the root run of a completed ask in another session of the same principal and folder, whose
    conversation continues. The agent ``orchestrator`` has that role; any other answers as the main agent of its session
    (DIS-01).

    Raises:
        ProblemError: the project or a rule is wrong, or the project may not be used.
        UsageError: the goal is empty, or there is no model.
        NotFoundError: the agent definition is unknown.
    """
    project, now_us = checked_project(body, catalogue, settings), SystemClock().now_us()
    _check_goal(body.goal)
    catalogue = catalogue.at(project)
    definition = _definition(catalogue, body.agent).with_settings(read_settings(body.settings))
    model = _model_of_ask(definition, body.model or settings.model)
    policy = policy_of_submission(catalogue, settings, body.allow)
    session = _session(body, project, principal, ids, policy, catalogue, now_us)
    task = _ask(body.goal, session, definition, model, catalogue, now_us, task_id=ids.task, follows=follows)
    return _submission(body, session, task, catalogue)


def prepared_here(prepare: Prepare[Work], body: Work, catalogue: Catalogue, settings: Settings) -> Submission:
    """Make a body ready to be written for the user of this machine. Raises: SoongError."""
    with raised_as_ours():
        return prepare(body, settings.principal, new_ids(), catalogue, settings.of_user)


def _submission(body: SubmissionBody | AskBody, session: Session, task: NewTask, catalogue: Catalogue) -> Submission:
    """Raises: UsageError; InvalidConfigError, for the budget of the configuration."""
    configured = catalogue.config.budgets.session
    budget = parse_budget(body.budget) if body.budget else configured_budget(configured, "session")
    return Submission(session, _marked(task, body.tags), budget, body.max_concurrent)


def _marked(task: NewTask, tags: Sequence[str]) -> NewTask:
    """Return a task with the tags of its plan and of its submission, and its submitter's trace. Raises: UsageError."""
    for tag in tags:
        if not re.fullmatch(TAG, tag):
            raise UsageError(f"{tag!r} is not a tag; a tag is 1 to 64 of a-z, 0-9, `.`, `_`, `:`, `/` and `-`")
    return replace(task, trace_parent=trace_parent(), tags=tuple(sorted({*task.tags, *tags})))


def follow_up(
    body: FollowUpBody, session: Session, former: Run | None, catalogue: Catalogue, *, task_id: str = ""
) -> Submission:
    """Bind another goal in a session that there is, whose rules it has.

    It continues the conversation of ``former``, the root run of a completed ask in the session; without one it has a
    conversation of its own, and names its agent.

    Raises:
        UsageError: the goal is empty, the former run did not complete, or there is no model.
        NotFoundError: the agent definition is unknown.
    """
    _check_goal(body.goal)
    catalogue = catalogue.at(Path(session.project))
    if former is None:
        definition = _definition(catalogue, body.agent)
        name, follows = _model_of_ask(definition, body.model), ""
    else:
        if former.status is not RunStatus.COMPLETED:
            raise UsageError(
                f"the last ask of session {session.id} is {former.status}; continue it with `soong resume "
                f"{former.identity.task_id}`"
            )
        name, follows = body.model or former.identity.model, former.id
        check_name(name)
        definition = _definition(catalogue, body.agent or former.identity.definition)
    definition = definition.with_settings(read_settings(body.settings))
    task = _ask(
        body.goal, session, definition, name, catalogue, SystemClock().now_us(), task_id=task_id, follows=follows
    )
    opened = replace(session, is_closed=False)  # as the new task leaves it
    return Submission(opened, _marked(task, body.tags), parse_budget(body.budget), body.max_concurrent)


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
    task_id: str,
    follows: str,
) -> NewTask:
    role = Role.ORCHESTRATOR if definition.id == ORCHESTRATOR else Role.MAIN
    return new_ask(
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


def _consented(preview: Preview, given: Iterable[StepGrantBody]) -> Sequence[StepGrant]:
    """Return what was said yes to, if it is what is asked for now. Raises: UsageError, ProblemError (input_changed)."""
    chosen: list[StepGrant] = []
    for one in given:
        grants = preview.grants([one.step])
        if [grant.digest for grant in grants] != [one.grant_digest]:
            detail = f"step {one.step!r} does not ask for what was shown of it; preview the plan again and look"
            raise ProblemError(ProblemCode.INPUT_CHANGED, detail, {"step": one.step})
        chosen += grants
    return chosen


def _session(
    body: SubmissionBody | AskBody,
    project: Path,
    principal: str,
    ids: Ids,
    policy: Policy,
    catalogue: Catalogue,
    now_us: int,
) -> Session:
    cwd = body.cwd or str(project)
    require_text("the folder", str(project), cwd)
    return Session(
        id=ids.session,
        project=str(project),
        cwd=cwd,
        approval_mode=ApprovalMode(body.approval_mode),
        created_us=now_us,
        policy=policy.as_json(),
        principal=principal,
        project_id=project_id(project) if catalogue.needs_project else "",
        closes_with_task=not catalogue.config.memory.remembers(is_ask=isinstance(body, AskBody)),
    )
