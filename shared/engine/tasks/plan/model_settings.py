"""Settings of model requests that a command gives: for all agents of a plan, or for the agent of a goal (DIS-09)."""

import json
from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.plan.kinds.agent import SettingsDocument
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.plan.validation import DocumentReader, field_names
from soong.shared.engine.tasks.problems import Problems
from soong.shared.engine.tasks.spec import StepSpec

SETTING_NAMES: Final = ", ".join(field_names(SettingsDocument))
_READER: Final = DocumentReader.of(SettingsDocument)


def read_settings(given: JsonObject, source: str = "settings") -> JsonObject:
    """Return the settings that are set, checked. Raises: InvalidPlanError, with every problem."""
    if not given:
        return {}
    problems = Problems(source, joint=".")
    said = _READER.read(dict(given), (), problems.report)
    problems.refuse()
    return {} if said is None else said.model_dump(exclude_none=True)


def parse_settings(words: Sequence[str]) -> JsonObject:
    """Read settings as they are typed: ``temperature=0.2``, ``thinking=off``; the last of one name counts.

    Raises:
        UsageError: one is not NAME=VALUE.
        InvalidPlanError: a name or a value is wrong.
    """
    found: dict[str, Json] = {}
    for word in words:
        name, sign, text = word.partition("=")
        if not sign or not name.strip():
            raise UsageError(f"--setting {word!r} is not NAME=VALUE; the settings are {SETTING_NAMES}")
        found[name.strip()] = _value(text.strip())
    return read_settings(found, "--setting")


def with_settings(plan: Plan, settings: JsonObject) -> Plan:
    """Return the plan whose agents' models are asked with these settings, whatever its steps say of the same."""
    return replace(plan, steps=tuple(_with(step, settings) for step in plan.steps)) if settings else plan


def _with(step: StepSpec, settings: JsonObject) -> StepSpec:
    if step.step is not None:
        return replace(step, step=_with(step.step, settings))
    return replace(step, settings={**step.settings, **settings}) if step.is_own_agent else step


def _value(text: str) -> Json:
    try:
        value: Json = json.loads(text)
    except ValueError:
        return text
    return value
