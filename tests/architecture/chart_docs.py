"""The values of the Helm chart as a table, made from its schema."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.spec_document import ROOT

_CHART = ROOT / "deploy" / "helm" / "soong"


def chart_values() -> str:
    """Return every value with its default and meaning; what the parts have in common once, as ``<part>.``."""
    schema = json.loads((_CHART / "values.schema.json").read_text(encoding="utf-8"))
    defaults = yaml.safe_load((_CHART / "values.yaml").read_text(encoding="utf-8"))
    common = [(f"<part>.{name}", "", each["description"]) for name, each in schema["definitions"].items()]
    own = [row for row in _rows(schema, defaults) if row[0] != "global"]
    rows = [f"| `{name}` | {_shown(default)} | {meaning} |" for name, default, meaning in (*own, *common)]
    return "\n".join(("| value | default | meaning |", "|---|---|---|", *rows))


def _rows(schema: dict[str, Any], defaults: dict[str, Any], path: str = "") -> Iterator[tuple[str, Any, str]]:
    for name, each in schema["properties"].items():
        default = defaults.get(name, "")
        if "$ref" in each:
            continue
        if "properties" in each:
            yield from _rows(each, default or {}, f"{path}{name}.")
        else:
            yield f"{path}{name}", default, each["description"]


def _shown(default: object) -> str:
    if isinstance(default, int):
        return f"`{json.dumps(default)}`"
    if not default:
        return ""
    if isinstance(default, dict):
        return ", ".join(f"`{name}`" for name in default)
    return f"`{json.dumps(default) if not isinstance(default, str) else default}`"
