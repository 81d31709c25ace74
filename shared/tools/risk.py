"""Tags, traits and risk of one call: declarations first, then whatever can only raise them (REG-05, PER-11)."""

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeAlias, TypeVar

from msgspec.structs import replace

from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.foreign import call_foreign, origin_of, words_of
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.log import get_logger
from soong.shared.sandbox.command import CommandAccess
from soong.shared.sandbox.paths import is_below, write_roots
from soong.shared.tools.definition import NAMESPACE_TAGS, Permission, Risk, RunDirs, ToolDefinition, Traits

Classifier: TypeAlias = Callable[[ToolDefinition], Risk]
"""Guesses a risk from a tool's name. The guess counts only when it is higher."""
_Classify = TypeVar("_Classify", bound=Classifier)

log = get_logger(__name__)

_REGISTERED: Final[list[Classifier]] = []
"""Classifiers of the process's modules. A duplicate has no effect, so an import under two names needs no care."""

EXECUTE_KEYWORDS = ("shell", "exec", "command", "run", "spawn")
WRITE_KEYWORDS = ("patch", "write", "edit", "create", "delete")

_FIXED_TAGS: Final = NAMESPACE_TAGS | {permission.value for permission in Permission}
_UNSAFE_TAGS: Final = frozenset({"dangerous", "network"})
_OWN_NAMESPACES = ("code.", "agent.", "internal.")

_READING: Final = "code.read_file"


def by_keywords(definition: ToolDefinition) -> Risk:
    """Classify by keywords in the name, the highest level wins.

    Our own tools are declared one by one and reviewed: ``agent.task_create`` changes no project and stays a read. The
    guess is for names that come from elsewhere.
    """
    if definition.name.startswith(_OWN_NAMESPACES):
        return Risk.READ
    name = definition.name.partition(".")[2]
    if any(keyword in name for keyword in EXECUTE_KEYWORDS):
        return Risk.EXECUTE
    return Risk.WRITE if any(keyword in name for keyword in WRITE_KEYWORDS) else Risk.READ


def risk_classifier(classify: _Classify) -> _Classify:
    """Register the decorated function, which returns the risk of a tool. It counts only where it is the highest.

    For a module that ``SOONG_TOOLS`` names. It is asked at each call, on the event loop: it has to be quick. If it
    raises, or returns anything but a :class:`Risk`, the call is critical, and the log names the function.

    Raises:
        InvalidConfigError: it is not a plain function.
    """
    given: object = classify
    if not callable(given) or inspect.iscoroutinefunction(given):
        problem = "is not a plain function; write `def classify(tool: ToolDefinition) -> Risk`"
        raise InvalidConfigError(f"the risk classifier {origin_of(classify)} {problem}")
    _REGISTERED.append(classify)
    return classify


def has_classifier(values: Iterable[object]) -> bool:
    """Say whether one of these values, such as those of a module, is registered."""
    return any(value is one for value in values for one in _REGISTERED)


def classified(definition: ToolDefinition) -> Risk:
    """Return the highest of what keywords and the registered classifiers say."""
    return max((by_keywords(definition), *(_said_by(one, definition) for one in _REGISTERED)))


def _said_by(classify: Classifier, definition: ToolDefinition) -> Risk:
    try:
        said: object = call_foreign(classify, definition)
    except Exception as error:  # noqa: BLE001  # foreign code: no answer does not mean a low risk
        problem = words_of(error)
    else:
        if isinstance(said, Risk):
            return said
        problem = f"it returned {type(said).__name__}, not a Risk"
    log.error("risk_classifier_failed", classifier=origin_of(classify), tool=definition.name, error=problem[:500])
    return Risk.CRITICAL


def for_call(definition: ToolDefinition, call_input: JsonObject) -> ToolDefinition:
    """Return the definition with the tags of one call: rules, hooks and permission see no other.

    Its function may add tags and takes none away, nor does it make a tool one of ours, or another permission. Failing
    means unsafe, and so does an answer of another type.
    """
    if definition.call_tags is None:
        return definition
    try:
        said: object = call_foreign(definition.call_tags, call_input)
    except Exception:  # noqa: BLE001  # foreign code; whatever it raises, the call counts as unsafe
        said = None
    is_sound = isinstance(said, frozenset) and all(isinstance(tag, str) for tag in said)
    added = said - _FIXED_TAGS if is_sound and isinstance(said, frozenset) else _UNSAFE_TAGS
    return definition if added <= definition.tags else replace(definition, tags=definition.tags | added)


def effective_traits(definition: ToolDefinition, call_input: JsonObject) -> Traits:
    """Return a call's traits: its function may raise it above the definition and never below; failing means unsafe.

    So does an answer of another type: only an exact answer counts.
    """
    try:
        said: object = call_foreign(definition.traits_of, call_input)
    except Exception:  # noqa: BLE001  # a trait function is foreign code; whatever it raises, the call counts as unsafe
        said = None
    declared = said if isinstance(said, Traits) else Traits(is_destructive=True, is_open_world=True)
    is_read_only = declared.is_read_only is True and definition.permission is Permission.READONLY
    return Traits(
        is_read_only=is_read_only,
        is_concurrency_safe=declared.is_concurrency_safe is True and is_read_only,
        is_destructive=declared.is_destructive is not False,
        is_open_world=declared.is_open_world is not False or definition.reaches_out,
    )


def risk_of(definition: ToolDefinition, traits: Traits, classify: Classifier = classified) -> Risk:
    """Return how bad a wrong yes would be."""
    declared = Risk.READ if traits.is_read_only else Risk.WRITE
    if "dangerous" in definition.tags:
        declared = max(declared, Risk.EXECUTE)
    if traits.is_destructive:
        declared = Risk.CRITICAL
    return max(declared, classify(definition))


def access_of(
    place: RunDirs, *, can_write: bool, has_network: bool = False, more: Iterable[Path] = ()
) -> CommandAccess:
    """Return the access of a program of a run.

    It reads the project, the run's own folder, the read roots and ``more``, but for what a deny rule keeps from
    ``code.read_file``. With ``can_write`` it writes the write roots and what an allow rule opens.
    """
    roots = (*write_roots(place), *place.writable_by_rule)
    readable = (place.project, place.run_dir, *place.read_roots, *more, *(() if can_write else roots))
    return CommandAccess(
        readable=_resolved(readable),
        writable=_resolved(roots) if can_write else (),
        hidden=tuple(_withheld(place)),
        has_network=has_network,
    )


def _resolved(paths: Iterable[Path]) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(Path(os.path.realpath(path)) for path in paths))


def _withheld(place: RunDirs) -> Iterable[Path]:
    for one in place.withheld:
        # A rule about everything, or about more than the project, means calls: a program needs its own folder.
        if not one.is_asked and _READING in one.tools and not is_below(place.project, one.path):
            yield one.path
