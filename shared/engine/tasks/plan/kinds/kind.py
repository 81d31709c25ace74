"""A kind of step, as the reader of plans uses it. Its facts for all other code are ``StepKind.traits``."""

from collections.abc import Callable
from typing import TypeAlias

from soong.shared.core.value import Value
from soong.shared.engine.tasks.plan.fields import StepModel
from soong.shared.engine.tasks.plan.plan import PlanNames, Report
from soong.shared.engine.tasks.plan.references import References
from soong.shared.engine.tasks.problems import Path
from soong.shared.engine.tasks.spec import StepSpec

Check: TypeAlias = Callable[[StepSpec, Path, References, PlanNames, Report], None]
"""Reports what is wrong with a step at a place of the document."""


class Kind(Value):
    """How a plan writes a step of this kind, alone and as the child of a map step, and what is checked of it."""

    document: type[StepModel]
    child: type[StepModel] | None
    check: Check
