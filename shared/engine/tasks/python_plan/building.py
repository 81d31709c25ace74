"""A plan while its function is called: each call of a step makes a node, and what it is given makes the edges.

The result is the document that the YAML form has (:mod:`soong.shared.engine.tasks.plan.reader`), which is checked and
stored in the same way.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

from pydantic_core import PydanticSerializationError, to_jsonable_python

from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.python_plan.pending import MARK, PendingValue, root_of
from soong.shared.engine.tasks.python_plan.signature import refused

Document = dict[str, Any]


class Building:
    """The nodes so far. ``names`` are those of objects in the plan's module: a step without a name is called so."""

    def __init__(self, names: Mapping[int, str]) -> None:
        self.steps: list[Document] = []
        self.modules: dict[str, None] = {}
        """The modules of the steps, in order."""
        self._names = names
        self._marked: list[PendingValue] = []
        self._needs: set[str] = set()
        """The steps that the value under way refers to."""

    def name_of(self, step: object, otherwise: str) -> str:
        return self._names.get(id(step), otherwise)

    def input(self, name: str, annotation: Any) -> PendingValue:
        return PendingValue("", f"inputs.{name}", annotation, self._mark)

    def item(self, annotation: Any) -> PendingValue:
        """Return the item of a map step, for what is written into its child."""
        return PendingValue("", "item", annotation, self._mark)

    def add(
        self, name: str, result: Any, make: "Callable[[Building], Document]", after: Iterable[object]
    ) -> PendingValue:
        """Add the node that ``make`` returns without its edges; return what it will give, of the type ``result``."""
        self._needs = set()
        written = make(self)
        self.written(list(after))
        step_id = written.pop("id", "") or self._free(name)
        edges = [one["id"] for one in self.steps if one["id"] in self._needs]
        node: Document = {"id": step_id, "kind": written.pop("kind")}
        self.steps.append({**node, **({"depends_on": edges} if edges else {}), **written})
        return PendingValue(step_id, f"{step_id}.output", result, self._mark)

    def written(self, value: object) -> Json:
        """Return a value as a document holds it, references written out. Raises: InvalidPlanError."""
        if isinstance(value, PendingValue):
            return self._reference(value)
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, Mapping):
            return {str(key): self.written(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.written(item) for item in value]
        try:
            plain = to_jsonable_python(value)
        except PydanticSerializationError as error:
            raise refused("the plan", f"a value is not JSON: {error}", "give JSON, a model or a dataclass") from None
        return plain if isinstance(plain, int | float | None) else self.written(plain)

    def _text(self, text: str) -> str:
        literal, *rest = text.split(MARK)
        parts = [literal.replace("${", "$${")]
        for number, piece in enumerate(rest):
            if number % 2 == 0 and not piece.isdigit():
                raise refused("the plan", "a text has a NUL character", "leave it out: no plan can hold one")
            parts.append(piece.replace("${", "$${") if number % 2 else self._reference(self._marked[int(piece)]))
        return "".join(parts)

    def _reference(self, pending: PendingValue) -> str:
        if root := root_of(pending):
            if not any(one["id"] == root for one in self.steps):
                raise refused(repr(pending), "it is a result of another plan", "call the step in this plan")
            self._needs.add(root)
        return repr(pending)

    def _mark(self, pending: PendingValue) -> str:
        self._marked.append(pending)
        return f"{MARK}{len(self._marked) - 1}{MARK}"

    def _free(self, name: str) -> str:
        taken = {one["id"] for one in self.steps}
        names = (name, *(f"{name}-{number}" for number in range(2, len(taken) + 3)))
        return next(one for one in names if one not in taken)


_BUILDING: Final[ContextVar[Building | None]] = ContextVar("soong_building", default=None)


def building() -> Building | None:
    """Return the plan that is being built here; None outside of one."""
    return _BUILDING.get()


@contextmanager
def built_in(plan: Building) -> Iterator[None]:
    token = _BUILDING.set(plan)
    try:
        yield
    finally:
        _BUILDING.reset(token)


def is_pending(value: object) -> bool:
    """Say whether a value is, or has in it, something that is not known yet."""
    if isinstance(value, PendingValue):
        return True
    if isinstance(value, str):
        return MARK in value
    if isinstance(value, Mapping):
        return any(map(is_pending, value.values()))
    return isinstance(value, Sequence) and any(map(is_pending, value))
