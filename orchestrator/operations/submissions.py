"""Submissions of callers: read, and previewed before anything starts."""

import asyncio
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from msgspec.structs import replace
from pydantic import Field, JsonValue

from soong.orchestrator.client.catalog import Catalogue
from soong.orchestrator.operations.authentication import Caller
from soong.orchestrator.operations.context import ServiceParts, check_own
from soong.orchestrator.operations.documents import PreviewSchema
from soong.orchestrator.operations.explanation import preview_of
from soong.orchestrator.operations.problems import MAX_ERRORS, MAX_PLACE_CHARS, ProblemCode, ProblemError, plan_errors
from soong.orchestrator.operations.strict import Body
from soong.shared.core.errors import InvalidPlanError, UsageError
from soong.shared.core.identity import new_id
from soong.shared.core.jsontext import Json, JsonObject, require_text
from soong.shared.core.settings import Settings
from soong.shared.core.value import Value
from soong.shared.engine.sessions.session import Session
from soong.shared.engine.tasks.plan.agent_kind import SETTING_NAMES
from soong.shared.engine.tasks.plan.fields import Tag
from soong.shared.engine.tasks.plan.plan import ORCHESTRATOR, Plan, bind_inputs
from soong.shared.engine.tasks.plan.reader import parse_plan, plan_from_json
from soong.shared.permissions.access.token import Right
from soong.shared.permissions.consent import Preview
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Effect, is_within
from soong.shared.permissions.store import ConsentStore

MAX_STEP_GRANTS = 1_000
MAX_SETTINGS = 20
MANY_QUESTIONS = 10_000

PlanSource = Annotated[
    dict[str, JsonValue] | str, Field(description="The plan: an object, or the text of a plan file (YAML or JSON).")
]

Goal = Annotated[str, Field(min_length=1, max_length=100_000, description="What the agent is to achieve.")]
Project = Annotated[
    str, Field(max_length=4_096, description="Absolute path of the folder to work in, as the server sees it.")
]
Approvals = Annotated[
    Literal["inbox", "prompt", "deny"],
    Field(description="Who answers questions: anyone with the right, at any time; the submitter alone; nobody."),
]
AskSettings = Annotated[
    dict[str, JsonValue], Field(max_length=MAX_SETTINGS, description=f"How its model is asked: {SETTING_NAMES}.")
]
Budget = Annotated[
    str, Field(max_length=100, description="What its session may use in all: `2usd`, `200ktok` or `2usd,200ktok`.")
]
Cwd = Annotated[str, Field(max_length=4_096, description="Where relative paths start; empty: at `project`.")]
SubmissionTags = Annotated[
    list[Tag], Field(max_length=20, description="Words by which lists are filtered, besides those of the plan.")
]
Allow = Annotated[
    list[str],
    Field(
        max_length=100,
        description="Rules `tool:scope` that allow without a question; to submit them needs the right `approve`.",
    ),
]
MaxConcurrent = Annotated[int, Field(ge=0, description="Most of its steps at once; 0: the service's limit.")]
NOTHING: Final[Any] = Field(default_factory=dict)
NONE: Final[Any] = Field(default_factory=list)


class PlanBody(Body):
    holds_plan: ClassVar[bool] = True

    plan: PlanSource
    source: str = Field(default="plan", max_length=4_096, description="What problems call the plan, such as its file.")

    @classmethod
    async def also_wrong(cls, service: ServiceParts, given: Mapping[str, Any]) -> Sequence[Json]:
        """Return what is wrong with the plan of a body that has a field too many, too few or of another type."""
        plan = given.get("plan")
        if not isinstance(plan, dict | str):
            return ()
        try:
            await asyncio.to_thread(read_plan, plan, await service.catalogue(), str(given.get("source", "plan")))
        except InvalidPlanError as error:
            return plan_errors(error)
        return ()


class PreviewBody(PlanBody):
    """A plan and what it would work with."""

    inputs: dict[str, JsonValue] = Field(default_factory=dict)
    project: Project
    allow: Allow = NONE
    cwd: Cwd = ""


class AskBody(Body):
    """A goal for an agent and what it is to work with."""

    goal: Goal
    agent: str = Field(default=ORCHESTRATOR, max_length=200, description="The agent's definition.")
    project: Project
    allow: Allow = NONE
    cwd: Cwd = ""
    approval_mode: Approvals = "inbox"
    model: str = Field(default="", max_length=200, description="The model of agents that name none.")
    settings: AskSettings = NOTHING
    budget: Budget = ""
    max_concurrent: MaxConcurrent = 0
    tags: SubmissionTags = NONE

    @property
    def allows(self) -> bool:
        """Whether it would let something run without a question, which only an approver may."""
        return bool(self.allow)


class FollowUpBody(Body):
    """Another goal for a session's conversation; its folder, rules and budget are the session's."""

    goal: Goal
    agent: str = Field(default="", max_length=200, description="Another definition than that of the last ask.")
    model: str = Field(default="", max_length=200, description="Another model than that of the last ask.")
    settings: AskSettings = NOTHING
    budget: str = Field(
        default="",
        max_length=100,
        description="What its session may use in all from now on, as in `POST /v1/asks`; needs the right `approve`.",
    )
    max_concurrent: MaxConcurrent = 0
    tags: SubmissionTags = NONE


class StepGrantBody(Body):
    """The yes to what a preview showed of one step."""

    step: str = Field(max_length=64, description="The step's id.")
    grant_digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="`grant_digest` of the step as it was shown.")


class SubmissionBody(PreviewBody):
    """A plan and what it is to work with."""

    approval_mode: Approvals = "inbox"
    model: str = Field(default="", max_length=200, description="The model of steps that name none.")
    settings: dict[str, JsonValue] = Field(
        default_factory=dict,
        max_length=MAX_SETTINGS,
        description=f"How the models of its agents are asked, whatever the plan says: {SETTING_NAMES}.",
    )
    budget: Budget = ""
    max_concurrent: MaxConcurrent = 0
    tags: SubmissionTags = NONE
    versions: dict[str, str] = Field(
        default_factory=dict,
        description="The versions of the files of its step functions, by name; a worker with another one refuses.",
    )
    step_grants: list[StepGrantBody] = Field(
        default_factory=list,
        max_length=MAX_STEP_GRANTS,
        description="Steps whose `permissions` are allowed as previewed, each for itself; needs the right `approve`.",
    )

    @property
    def allows(self) -> bool:
        """Whether it would let something run without a question, which only an approver may."""
        return bool(self.allow or self.step_grants)


def read_plan(source: dict[str, JsonValue] | str, catalogue: Catalogue, name: str) -> Plan:
    """Read a plan. Raises: InvalidPlanError."""
    known = catalogue.known()
    return parse_plan(source, name, known) if isinstance(source, str) else plan_from_json(source, name, known)


class CheckedPlan(Value):
    """A body whose fields, looked at one by one, can be used."""

    plan: Plan
    inputs: JsonObject
    project: Path
    catalogue: Catalogue
    """With the agent definitions of the project."""

    def preview(self, body: PreviewBody, settings: Settings) -> Preview:
        """Return what the steps of the plan will ask for."""
        cwd = Path(body.cwd or self.project)
        return preview_of(self.plan, self.inputs, self.project, cwd, body.allow, self.catalogue, settings)


def checked_plan(body: PreviewBody, catalogue: Catalogue, settings: Settings) -> CheckedPlan:
    """Look at the project, the plan, its inputs and the rules.

    Raises: InvalidPlanError, the plan or an input is wrong, and nothing else; ProblemError, forbidden, or invalid_input
    with everything that is wrong.
    """
    project, errors = _project(body.project, settings.http_projects)
    catalogue = catalogue if errors else catalogue.at(project)
    errors += _rule_errors(body.allow, catalogue)
    total, plan = len(errors), None
    inputs: JsonObject = {}
    try:
        plan = read_plan(body.plan, catalogue, body.source)
        inputs = bind_inputs(plan, body.inputs)
    except InvalidPlanError as error:
        if not errors:
            raise
        errors += plan_errors(error)
        total += error.total
    if plan is None or errors:
        detail = f"the submission has {len(errors)} problems; `errors` names each"
        raise ProblemError(ProblemCode.INVALID_INPUT, detail, {"errors": errors[:MAX_ERRORS], "total": total})
    return CheckedPlan(plan, inputs, project, catalogue)


def _error(place: str, problem: str, hint: str) -> Json:
    return {"place": place, "problem": problem, "hint": hint}


def previewed(body: PreviewBody, catalogue: Catalogue, settings: Settings) -> Preview:
    """Look at what a plan will ask for; nothing is written. Raises: ProblemError."""
    return checked_plan(body, catalogue, settings).preview(body, settings)


def checked_project(body: AskBody, catalogue: Catalogue, settings: Settings) -> Path:
    """Look at the project and the rules of a goal. Raises: ProblemError (forbidden, invalid_input)."""
    project, errors = _project(body.project, settings.http_projects)
    errors += _rule_errors(body.allow, catalogue)
    if errors:
        detail = f"the goal has {len(errors)} problems; `errors` names each"
        raise ProblemError(ProblemCode.INVALID_INPUT, detail, {"errors": errors[:MAX_ERRORS]})
    return project


class Ids(NamedTuple):
    """The ids that a submission gets. The same ones written again are the same session and task."""

    session: str
    task: str


def new_ids() -> Ids:
    return Ids(new_id("sess"), new_id("task"))


def ids_of(key: str, principal: str, body: SubmissionBody | AskBody | FollowUpBody) -> Ids:
    """Return the ids of what a principal submits with an ``Idempotency-Key``.

    The task's is of the key alone and the session's of the body too: a task that is in another session than this
    one was submitted with another body.
    """
    said = json.dumps([principal, key])
    whole = json.dumps([principal, key, body.model_dump(mode="json")], sort_keys=True)
    session, task = (hashlib.sha256(text.encode()).hexdigest()[:32] for text in (whole, said))
    return Ids(f"sess_{session}", f"task_{task}")


async def check_follow_up(
    caller: Caller, session: Session, consent: ConsentStore, catalogue: Catalogue, settings: Settings
) -> None:
    """Refuse a goal that its submitter could not give in a new session: elsewhere, or with more allowed beforehand.

    Raises: ProblemError (not_yours, forbidden).
    """
    check_own(caller, session)
    _project(session.project, settings.http_projects)
    given, new = Policy.from_json(session.policy), policy_of_submission(catalogue, settings)
    allowed = {rule for rule in given.rules if rule.effect is Effect.ALLOW and not rule.step}
    if not allowed <= set(new.rules) or replace(given, rules=()) != replace(new, rules=()):
        caller.require(Right.APPROVE)
    if caller.may(Right.APPROVE):
        return
    answered = await consent.questions(session_id=session.id, include_closed=True, limit=MANY_QUESTIONS)
    if any(one.decision is not None and one.decision.choice.is_grant for one in answered):
        caller.require(Right.APPROVE)


def _rule_errors(rules: Sequence[str], catalogue: Catalogue) -> list[Json]:
    errors = []
    for number, rule in enumerate(rules):
        try:
            require_text("the rule", rule)
            catalogue.rules_of(rule)
        except UsageError as error:
            errors.append(_error(f"body.allow.{number}", str(error), "write a rule as `tool:scope`"))
    return errors


def policy_of_submission(catalogue: Catalogue, settings: Settings, allow: Sequence[str] = ()) -> Policy:
    """Return the policy of a submitted task: it reads what is configured within the named projects, and its own.

    Nothing is configured: nothing else. A token is given to somebody for a project, not for the files of the user that
    the workers run as.
    """
    allowed = [os.path.realpath(Path(root).expanduser()) for root in settings.http_projects]
    roots = catalogue.policy.read_roots
    within = tuple(one for one in roots if not allowed or any(is_within(one, root) for root in allowed))
    policy = replace(catalogue.policy, read_roots=within)
    return policy.with_rules(catalogue.rules_of(*allow)) if allow else policy


def preview_document(preview: Preview) -> PreviewSchema:
    """Return a preview as it is sent: each step with the digest that a yes to it names."""
    steps: list[Json] = [
        {**step.as_json(), "grant_digest": step.grant.digest if step.grantable else None} for step in preview.steps
    ]
    return PreviewSchema.model_validate({**preview.as_json(), "steps": steps})


def _project(text: str, roots: tuple[str, ...]) -> tuple[Path, list[Json]]:
    """Return the folder of a submission and what is wrong with it. Raises: ProblemError (forbidden)."""
    hint = "write the absolute path of a folder as the server sees it"
    if not text.startswith("/") or "\0" in text:
        return Path("/"), [_error("body.project", f"{text[:MAX_PLACE_CHARS]!r} is not an absolute path", hint)]
    folder = Path(os.path.realpath(text))
    allowed = [Path(root).expanduser().resolve() for root in roots]
    if allowed and not any(folder.is_relative_to(root) for root in allowed):
        raise ProblemError(ProblemCode.FORBIDDEN, "`project` lies in none of the folders of SOONG_HTTP_PROJECTS")
    if not os.path.isdir(folder):  # noqa: PTH112  # False for a name that is too long, where pathlib raises
        return folder, [_error("body.project", f"{text[:MAX_PLACE_CHARS]!r} is not a folder on this server", hint)]
    return folder, []
