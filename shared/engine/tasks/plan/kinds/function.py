"""A python step: a registered function does it (:mod:`soong.shared.engine.tasks.functions`)."""

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field

from soong.shared.engine.tasks.functions import known_functions
from soong.shared.engine.tasks.plan.fields import ON_FAILURE, NodeDocument, Title, WorkDocument
from soong.shared.engine.tasks.plan.kinds.kind import Kind
from soong.shared.engine.tasks.plan.plan import OnFailure, PlanNames, Report
from soong.shared.engine.tasks.plan.references import References, check_work
from soong.shared.engine.tasks.problems import Path, Unknown
from soong.shared.engine.tasks.spec import StepSpec


class PythonWork(WorkDocument):
    """The work of a registered function."""

    model_config = ConfigDict(title="python step without an id")

    kind: Literal["python"] = Field(description="A registered Python function does it.")
    call: Title = Field(description="Name of a registered function.")
    isolation: Literal["thread", "process"] | None = Field(
        default=None,
        description="`process`: each call has a process of its own, which ends at the time limit or when it is "
        "cancelled. Left out: as the function was registered.",
    )


class PythonStep(PythonWork, NodeDocument):
    """A step that a registered function does."""

    model_config = ConfigDict(title="python step")

    on_failure: Annotated[OnFailure, Field(strict=False)] | None = Field(default=None, description=ON_FAILURE)


def _check(step: StepSpec, path: Path, names: References, known: PlanNames, report: Report) -> None:
    check_work(step, path, names, report)
    functions = known.functions if known.functions is not None else frozenset(known_functions())
    # Functions of users are registered in the workers; without a list of them, only built-in names are judged.
    name = step.call
    if not name or name in functions or (known.functions is None and not name.startswith("builtin.")):
        return
    after = "; modules that register functions are named by SOONG_FUNCTIONS"
    report((*path, "call"), f"there is no step function {name!r}", Unknown(name, functions, after=after))


FUNCTION: Final = Kind(PythonStep, PythonWork, _check)
