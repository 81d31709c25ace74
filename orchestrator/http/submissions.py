"""What a caller submits: read, looked at before anything starts, and made ready to be written.

A yes given beforehand (PER-17) names the digest of what the preview showed of its step. It is computed again from the
plan, the rules and the disk as they are at the submission: another one refuses the whole, and nothing is written.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, JsonValue

from orchestrator.catalogue import Catalogue
from orchestrator.http.problems import Problem, ProblemError
from orchestrator.http.strict import Body
from orchestrator.preview import preview_of
from orchestrator.submission import Ids, Submission, submission
from shared.clock import Clock
from shared.jsontext import Json, digest
from shared.permissions.consent import Preview, StepGrant
from shared.sessions.session import AnswerMode
from shared.settings import Settings
from shared.tasks.plan import Plan
from shared.tasks.reading import parse_plan, plan_from_json

MAX_STEP_GRANTS = 1_000

PlanSource = Annotated[
    dict[str, JsonValue] | str, Field(description="The plan: an object, or the text of a plan file (YAML or JSON).")
]


class PlanBody(Body):
    plan: PlanSource


class PreviewBody(PlanBody):
    """A plan and what it would work with."""

    inputs: dict[str, JsonValue] = Field(default_factory=dict)
    project: str = Field(max_length=4_096, description="Absolute path of the folder to work in, as the server sees it.")
    allow: list[str] = Field(
        default_factory=list,
        max_length=100,
        description="Rules `tool:scope` that allow without a question; to submit them needs the right `approve`.",
    )


class StepGrantBody(Body):
    """The yes to what a preview showed of one step."""

    step: str = Field(max_length=64, description="The step's id.")
    grant_digest: str = Field(pattern=r"^[0-9a-f]{64}$", description="`grant_digest` of the step as it was shown.")


class SubmissionBody(PreviewBody):
    """A plan and what it is to work with."""

    answer_mode: Literal["inbox", "attached", "none"] = Field(
        default="inbox",
        description="Who answers questions: anyone with the right, at any time; the submitter alone; nobody.",
    )
    model: str = Field(default="", max_length=200, description="The model of steps that name none.")
    step_grants: list[StepGrantBody] = Field(
        default_factory=list,
        max_length=MAX_STEP_GRANTS,
        description="Steps whose own `asks` are consented to as previewed, each for itself; needs the right `approve`.",
    )

    @property
    def allows(self) -> bool:
        """Whether it would let something run without a question, which only an approver may."""
        return bool(self.allow or self.step_grants)


def read_plan(source: dict[str, JsonValue] | str, catalogue: Catalogue) -> Plan:
    """Read a plan. Raises: InvalidPlanError."""
    known = catalogue.known()
    return parse_plan(source, "plan", known) if isinstance(source, str) else plan_from_json(source, "plan", known)


def previewed(body: PreviewBody, catalogue: Catalogue, settings: Settings) -> Preview:
    """Look at what a plan will ask for; nothing is written. Raises: InvalidPlanError, UsageError, ProblemError."""
    return _look(read_plan(body.plan, catalogue), body, catalogue, settings)


def ids_of(key: str, principal: str, body: SubmissionBody) -> Ids:
    """Return the ids of what a principal submits with an ``Idempotency-Key``.

    The task's is of the key alone and the session's of the body too: a task that stands in another session than this
    one was submitted with another body.
    """
    said = json.dumps([principal, key])
    whole = json.dumps([principal, key, body.model_dump(mode="json")], sort_keys=True)
    session, task = (hashlib.sha256(text.encode()).hexdigest()[:32] for text in (whole, said))
    return Ids(f"sess_{session}", f"task_{task}")


def prepared(
    body: SubmissionBody,
    catalogue: Catalogue,
    settings: Settings,
    *,
    clock: Clock,
    principal: str,
    ids: Ids | None = None,
) -> Submission:
    """Make a submission ready to be written.

    Raises:
        InvalidPlanError, UsageError: the plan, an input or a rule is wrong.
        ProblemError: the project is none that may be used, or a step does not ask for what was shown of it.
    """
    plan = read_plan(body.plan, catalogue)
    grants: Sequence[StepGrant] = ()
    if body.step_grants:
        grants = _consented(_look(plan, body, catalogue, settings), body.step_grants)
    project = _project(body.project, settings.http_projects)
    return submission(
        plan,
        body.inputs,
        project=project,
        answer_mode=AnswerMode(body.answer_mode),
        model=body.model or settings.model,
        allow=body.allow,
        catalogue=catalogue,
        clock=clock,
        principal=principal,
        cwd=project,
        step_grants=grants,
        ids=ids,
    )


def preview_document(preview: Preview) -> Mapping[str, Any]:
    """Return a preview as it is sent: each step with the digest that a yes to it names."""
    steps: list[Json] = [
        {**step.as_json(), "grant_digest": _grant_digest(step.grant) if step.grantable else None}
        for step in preview.steps
    ]
    return {**preview.as_json(), "steps": steps}


def _look(plan: Plan, body: PreviewBody, catalogue: Catalogue, settings: Settings) -> Preview:
    project = _project(body.project, settings.http_projects)
    return preview_of(
        plan, body.inputs, project=project, allow=body.allow, catalogue=catalogue, settings=settings, cwd=project
    )


def _consented(preview: Preview, given: Iterable[StepGrantBody]) -> Sequence[StepGrant]:
    """Return what was said yes to, if it is what is asked for now. Raises: UsageError, ProblemError (input_changed)."""
    chosen: list[StepGrant] = []
    for one in given:
        grants = preview.grants([one.step])
        if [_grant_digest(grant) for grant in grants] != [one.grant_digest]:
            detail = f"step {one.step!r} does not ask for what was shown of it; preview the plan again and look"
            raise ProblemError(Problem.INPUT_CHANGED, detail, {"step": one.step})
        chosen += grants
    return chosen


def _grant_digest(grant: StepGrant) -> str:
    words = [grant.step_id, *([tool, str(scope)] for tool, scope in grant.scopes)]
    return digest(json.dumps(words))  # as escapes: a name on a disk may hold half a character


def _project(text: str, roots: tuple[str, ...]) -> Path:
    """Return the folder of a submission. Raises: ProblemError."""
    if not text.startswith("/") or "\0" in text:
        raise ProblemError(
            Problem.INVALID_INPUT, "`project` is no absolute path; name the folder as the server sees it"
        )
    folder = Path(text).resolve()
    allowed = [Path(root).expanduser().resolve() for root in roots]
    if allowed and not any(folder.is_relative_to(root) for root in allowed):
        raise ProblemError(Problem.FORBIDDEN, "`project` lies in none of the folders of SOONG_HTTP_PROJECTS")
    if not folder.is_dir():
        raise ProblemError(Problem.INVALID_INPUT, "`project` is no folder that this server sees")
    return folder
