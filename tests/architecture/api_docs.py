"""The parts of docs/reference/api.md that are made from the OpenAPI document: endpoints, fields, problems."""

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from soong.orchestrator.http.app import description
from soong.shared.permissions.access.token import IMPLIED, Right

_ORDER = ("service", "sessions", "tasks", "runs", "approvals")


@cache
def document() -> Mapping[str, Any]:
    """Return the OpenAPI document as it is published: without the version, which every release changes."""
    whole = description()
    return {**whole, "info": {**whole["info"], "version": "1"}}


def openapi_text() -> str:
    return json.dumps(document(), ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def api_endpoints() -> str:
    """Return every endpoint by subject: right, parameters, body, answer."""
    by_tag: dict[str, list[str]] = {}
    for path, operations in document()["paths"].items():
        for method, operation in operations.items():
            by_tag.setdefault(operation["tags"][0], []).append(_endpoint(method, path, operation))
    return "\n\n".join(f"### {tag.capitalize()}\n\n" + "\n\n".join(by_tag[tag]) for tag in _ORDER)


def api_rights() -> str:
    rows = [
        f"| `{right}` | {', '.join(f'`{one}`' for one in sorted(IMPLIED[right])) or 'nothing else'} | {_count(right)} |"
        for right in Right
    ]
    return "\n".join(("| right | brings | endpoints that need it |", "|---|---|---|", *rows))


def api_problems() -> str:
    rows = [f"| `{code}` | {one['status']} | {one['says']} |" for code, one in document()["x-problems"].items()]
    return "\n".join(("| code | status | meaning |", "|---|---|---|", *rows))


def api_shapes() -> str:
    """Return every document that is sent or taken, field by field."""
    schemas = document()["components"]["schemas"]
    shown = [name for name in sorted(schemas) if schemas[name].get("properties") and not name.startswith("Page_")]
    return "\n\n".join(_shape(name, schemas[name]) for name in shown)


def _count(right: Right) -> int:
    return sum(one["x-right"] == right for path in document()["paths"].values() for one in path.values())


def _endpoint(method: str, path: str, operation: Mapping[str, Any]) -> str:
    right = f"right `{operation['x-right']}`" if operation["x-right"] else "no token"
    lines = [f"**`{method.upper()} {path}`** ({right})", "", " ".join(operation["description"].split())]
    parameters = [one for one in operation.get("parameters", ()) if one["in"] != "path"]
    lines += ["", *(_parameter(one) for one in parameters)] if parameters else []
    body = operation.get("requestBody")
    told = [f"Takes {_name_of(_schema_in(body))}."] if body else []
    told.append(_answer(operation["responses"]))
    return "\n".join([*lines, "", " ".join(told)])


def _parameter(parameter: Mapping[str, Any]) -> str:
    schema = parameter["schema"]
    default = schema.get("default")
    means = f" [{default}]" if default not in ("", None) else ""
    name = parameter["name"] if parameter["in"] == "query" else f"{parameter['name'].title()}:"
    return f"- `{name}`: {parameter.get('description', '')}{means}"


def _answer(responses: Mapping[str, Any]) -> str:
    said = []
    for status, response in responses.items():
        if not status.startswith(("2", "3")):
            continue
        schema = _schema_in(response)
        what = _name_of(schema) if schema else response["description"].rstrip(".")
        said.append(f"{status}: {what}")
    return f"Answers {'; '.join(said)}."


def _schema_in(holder: Mapping[str, Any]) -> Mapping[str, Any]:
    content: Mapping[str, Any] = holder.get("content", {})
    found: Mapping[str, Any] = content.get("application/json", {}).get("schema", {})
    return found


def _name_of(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_name_of(one) for one in schema["anyOf"])
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"a page of `{name[5:-1]}`" if name.startswith("Page_") else f"`{name}`"
    if schema.get("type") == "array":
        return f"list of {_name_of(schema.get('items', {}))}"
    if "enum" in schema:
        return " ".join(f"`{value}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    return {"null": "null", "object": "object", "": "any"}.get(str(schema.get("type", "")), str(schema.get("type")))


def _shape(name: str, schema: Mapping[str, Any]) -> str:
    required: Sequence[str] = schema.get("required", ())
    rows = [
        f"| `{field}` | {_name_of(value)} | {_means(value, is_required=field in required)} |"
        for field, value in schema["properties"].items()
    ]
    said = " ".join(str(schema.get("description", "")).split())
    head = [f"### {name}", "", *([said, ""] if said else [])]
    return "\n".join([*head, "| field | is | meaning |", "|---|---|---|", *rows])


def _means(value: Mapping[str, Any], *, is_required: bool) -> str:
    default = value.get("default")
    may = "" if is_required or default in (None, "", [], {}) else f" [`{json.dumps(default)}`]"
    return (str(value.get("description", "")) + may).replace("|", "\\|").strip()
