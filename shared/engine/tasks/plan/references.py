"""The references of a plan's texts, and what they may name (DAG-02)."""

from collections.abc import Iterator, Mapping

from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.plan import Report
from soong.shared.engine.tasks.plan.template import Reference, references
from soong.shared.engine.tasks.problems import Hint, JoinedNames, Path, Unknown
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.tools.schema import schema_problems

RESERVED = frozenset({"inputs", "steps", "run_dirs"})
"""Roots of references; no step and no map item may take them."""

_ROOTS = frozenset({"inputs", "steps"})
RESULT_FIELDS = frozenset({"output", "status", "outcome", "error", "denials", "unknown_effects", "partial"})


class References:
    """The names that the references of one step may use, and the checked patterns of tools of the plan."""

    def __init__(
        self, inputs: frozenset[str], step: StepSpec, ids: frozenset[str], patterns: dict[str, bool], item: str = ""
    ) -> None:
        self._step, self._ids = step, ids
        self.patterns = patterns
        self.inputs = inputs
        self.results = frozenset(step.depends_on)
        self.item = item
        self._items = frozenset({item} if item else ())
        self._roots = JoinedNames(_ROOTS, self._items, ids)

    def with_item(self, item: str) -> "References":
        return References(self.inputs, self._step, self._ids, self.patterns, item)

    def problem(self, reference: Reference) -> tuple[str, Hint] | None:
        """Return problem and hint of a reference; None when it is valid."""
        root = reference.root_in(self._roots)
        if root is None:
            known = JoinedNames(frozenset({"inputs"}), self._items, self.results)
            return f"{reference.parts[0]!r} is not known here", Unknown(str(reference.parts[0]), known)
        rest = reference.parts[root.count(".") + 1 :]
        if root == self.item:
            return None
        if root == "inputs":
            return self._input_problem(rest)
        if root == "steps":
            root, rest = str(rest[0]) if rest else "", rest[1:]
        return self._result_problem(root, rest)

    def _input_problem(self, rest: tuple[str | int, ...]) -> tuple[str, Hint] | None:
        if not rest or rest[0] in self.inputs:
            return None
        return f"the plan has no input {rest[0]!r}", Unknown(str(rest[0]), self.inputs)

    def _result_problem(self, root: str, rest: tuple[str | int, ...]) -> tuple[str, Hint] | None:
        if root not in self.results:
            if root in self._ids:
                return f"{root!r} is not a dependency of this step", f"add {root!r} to `depends_on`"
            return f"there is no step {root!r}", Unknown(root, self.results)
        if rest and rest[0] not in RESULT_FIELDS:
            return f"a step's result has no {rest[0]!r}", f"write `{root}.output.{rest[0]}`"
        return None


def check_references(value: Json, path: Path, names: References, report: Report) -> None:
    if isinstance(value, str) and "${" not in value:  # most texts
        return
    for place, reference in safe_references(value, path, report):
        problem = names.problem(reference)
        if problem is not None:
            report(place, f"the reference '${{{reference.text}}}': {problem[0]}", problem[1])


def safe_references(value: Json, path: Path, report: Report) -> Iterator[tuple[Path, Reference]]:
    """Yield the references; a malformed one is reported, and ends the string that contains it."""
    # The most frequent types come first: a check for a Mapping takes ten times as long.
    if value is None or isinstance(value, int | float) or (isinstance(value, str) and "${" not in value):
        return
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from safe_references(item, (*path, key), report)
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from safe_references(item, (*path, index), report)
    elif isinstance(value, str):
        try:
            yield from list(references(value, path))
        except TemplateError as error:
            report(path, f"the reference '${{{error.reference}}}' is malformed", error.problem)


def check_work(step: StepSpec, path: Path, names: References, report: Report) -> None:
    """Report what is wrong with the fields of any step that is run."""
    if step.inputs:
        check_references(step.inputs, (*path, "inputs"), names, report)
    check_references(step.instructions, (*path, "instructions"), names, report)
    check_references(step.title, (*path, "title"), names, report)
    for problem in () if step.output is None else schema_problems(step.output):
        report((*path, "output"), f"the schema {problem}", "keep to the supported keywords")
