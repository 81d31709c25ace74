"""Traits and risk of one call: declarations first, then whatever can only raise them (REG-05, PER-11)."""

from collections.abc import Callable
from typing import TypeAlias

from soong.shared.core.foreign import call_foreign
from soong.shared.core.jsontext import JsonObject
from soong.shared.tools.definition import Permission, Risk, ToolDefinition, Traits

Classifier: TypeAlias = Callable[[ToolDefinition], Risk]
"""Guesses a risk from what a tool is called. What it says counts only when it is higher."""

EXECUTE_KEYWORDS = ("shell", "exec", "command", "run", "spawn")
WRITE_KEYWORDS = ("patch", "write", "edit", "create", "delete")

_OWN_NAMESPACES = ("code.", "agent.", "internal.")


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


def effective_traits(definition: ToolDefinition, call_input: JsonObject) -> Traits:
    """Return a call's traits: its function may raise it above the definition and never below; failing means unsafe.

    So does an answer of another type: what is not said in so many words is not believed.
    """
    declared = _declared(definition, call_input)
    is_read_only = declared.is_read_only is True and definition.permission is Permission.READONLY
    return Traits(
        is_read_only=is_read_only,
        is_concurrency_safe=declared.is_concurrency_safe is True and is_read_only,
        is_destructive=declared.is_destructive is not False,
        is_open_world=declared.is_open_world is not False or definition.reaches_out,
    )


def _declared(definition: ToolDefinition, call_input: JsonObject) -> Traits:
    try:
        declared: object = call_foreign(definition.traits_of, call_input)
    except Exception:  # noqa: BLE001  # a trait function is foreign code; whatever it raises, the call counts as unsafe
        declared = None
    return declared if isinstance(declared, Traits) else Traits(is_destructive=True, is_open_world=True)


def risk_of(definition: ToolDefinition, traits: Traits, classify: Classifier = by_keywords) -> Risk:
    """Return how bad a wrong yes would be."""
    declared = Risk.READ if traits.is_read_only else Risk.WRITE
    if "dangerous" in definition.tags:
        declared = max(declared, Risk.EXECUTE)
    if traits.is_destructive:
        declared = Risk.CRITICAL
    return max(declared, classify(definition))
