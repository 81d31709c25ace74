"""The part that all steps of plans in Python share: options, and the node that a call makes."""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, TypeAlias

from typing_extensions import TypedDict

from soong.shared.engine.tasks.problems import Unknown
from soong.shared.engine.tasks.python_plan.building import Building, Document, building
from soong.shared.engine.tasks.python_plan.pending import condition_text
from soong.shared.engine.tasks.python_plan.signature import refused


class NodeOptions(TypedDict, total=False):
    """The fields that a step of any kind has in a plan. ``timeout`` and ``backoff`` are in seconds.

    ``key`` gets the item of a map and returns what names its child; it and ``max_items`` count where the step is
    mapped, as does ``on_item_failure`` of ``with_options``: with ``keep``, failed items are None.
    """

    id: str
    title: str
    when: str
    priority: int
    on_failure: Literal["skip_dependents", "fail_task", "keep", "retry"]
    join: Literal["all", "any", "done"]
    retries: int
    backoff: float
    timeout: float
    pool: str
    needs: Sequence[str]
    max_items: int
    key: Callable[[Any], object]


Keep: TypeAlias = Literal["keep"]
Fails: TypeAlias = Literal["skip_dependents", "fail_task"]
_FIELDS: Final = {"timeout": "timeout_s", "backoff": "backoff_s", "tools": "allowed_tools"}
_OF_THE_NODE: Final = frozenset({"id", "title", "on_failure", "when", "join"})
_OF_A_MAP: Final = frozenset({"on_item_failure", "max_items"})


class PlanStep:
    """A step by its name, its fields that never change (``work``), and its options. Changed ones are copies.

    Raises: InvalidPlanError, the option is unknown.
    """

    options: type = NodeOptions

    def __init__(self, name: str, work: Document, options: Mapping[str, Any]) -> None:
        self._name, self._work = name, work
        self._options: Mapping[str, Any] = {}
        self._after: tuple[object, ...] = ()
        self._original: PlanStep = self
        self.module = ""
        self._options = self._known(options)

    @property
    def result_type(self) -> Any:
        """The type of what it gives."""
        return Any

    def after(self, *results: object) -> Self:
        """Return the step with more to wait for: results that it is not given."""
        return self._with(after=(*self._after, *results))

    def when(self, condition: int | str) -> Self:
        """Return the step with a condition without which it is skipped: a comparison of results, joined with others
        by ``&``, ``|`` and ``~``, or the text of a condition: ``f"length({found}) > 0"``.
        """
        return self._changed({"when": condition_text(condition)})

    def _changed(self, options: Mapping[str, Any]) -> Self:
        return self._with(options=self._known(options))

    def _with(self, **fields: object) -> Self:
        changed = copy.copy(self)
        vars(changed).update({f"_{name}": value for name, value in fields.items()})
        return changed

    def _known(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        known = [*_OF_A_MAP, *(name for one in self.options.__mro__ for name in getattr(one, "__annotations__", ()))]
        for name in options:
            if name not in known:
                raise refused(f"step {self._name!r}", f"there is no option {name!r}", Unknown(name, known).text())
        return {**self._options, **options}

    def _node(self, given: Callable[[Building], Document]) -> Any:
        """Make a node; ``given`` returns the fields that its arguments become."""
        plan = self._plan()
        return plan.add(
            plan.name_of(self._original, self._name),
            self.result_type,
            lambda plan: {**self._fields(plan, _OF_THE_NODE), **self._own_work(plan), **given(plan)},
            self._after,
        )

    def _map_node(self, over: object, item: Any, given: Callable[[Building], Document]) -> Any:
        """Make a map step over a list or a result, whose items are of the type ``item``."""
        plan = self._plan()

        def make(plan: Building) -> Document:
            node: Document = {"kind": "map", "over": plan.written(over), **self._fields(plan, _OF_THE_NODE | _OF_A_MAP)}
            if key := self._options.get("key"):
                node["key"] = plan.written(f"{key(plan.item(item))}")
            return {**node, "step": {**self._own_work(plan), **given(plan)}}

        name = plan.name_of(self._original, self._name)
        return plan.add(name, list[self.result_type], make, self._after)  # type: ignore[name-defined]

    def _plan(self) -> Building:
        plan = building()
        if plan is None:
            hint = "call it in a function with @plan; a step function is also a plain function"
            raise refused(f"step {self._name!r}", "it is called outside of a plan", hint)
        plan.modules |= {self.module: None} if self.module else {}
        return plan

    def _own_work(self, plan: Building) -> Document:
        rest = [name for name in self._options if name not in _OF_THE_NODE | _OF_A_MAP and name != "key"]
        return {name: plan.written(value) for name, value in self._work.items()} | self._fields(plan, rest)

    def _fields(self, plan: Building, names: "Sequence[str] | frozenset[str]") -> Document:
        chosen = ((name, value) for name, value in self._options.items() if name in names)
        return {_FIELDS.get(name, name): plan.written(value) for name, value in chosen}
