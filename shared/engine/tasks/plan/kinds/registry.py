"""All kinds of steps. A new one is a module here, a line below, its facts (``StepKind.traits``) and its runner."""

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from pydantic import Tag

from soong.shared.engine.tasks.plan.fields import StepModel, by_kind
from soong.shared.engine.tasks.plan.kinds.agent import AGENT, AgentStep
from soong.shared.engine.tasks.plan.kinds.function import FUNCTION, PythonStep
from soong.shared.engine.tasks.plan.kinds.kind import Kind
from soong.shared.engine.tasks.plan.kinds.map import MAP, MapStep
from soong.shared.engine.tasks.plan.validation import branch
from soong.shared.engine.tasks.spec import StepKind

KINDS: Final[Mapping[StepKind, Kind]] = {StepKind.AGENT: AGENT, StepKind.PYTHON: FUNCTION, StepKind.MAP: MAP}
StepDocument: TypeAlias = Annotated[
    Annotated[AgentStep, Tag(branch("step", "agent"))]
    | Annotated[PythonStep, Tag(branch("step", "python"))]
    | Annotated[MapStep, Tag(branch("step", "map"))],
    by_kind("step"),
]
BRANCHES: Final[Mapping[str, type[StepModel]]] = {
    **{branch("step", name): kind.document for name, kind in KINDS.items()},
    **{branch("child", name): kind.child for name, kind in KINDS.items() if kind.child is not None},
}
