"""Plans made to hurt who reads them: each shape is text of about the size that is asked for."""

import json
from collections.abc import Callable, Mapping
from typing import Final

from soong.shared.core.jsontext import Json


def _plan(steps: object, **more: object) -> str:
    return json.dumps({"title": "t", "steps": steps, **more})


def _repeated(size: int, item: Callable[[int], object], **more: object) -> str:
    """Return a plan with as many items as its size allows."""
    length = len(json.dumps(item(10_000)))
    return _plan([item(number) for number in range(size // (length + 2))], **more)


def _step(number: int, **fields: object) -> dict[str, object]:
    return {"id": f"s{number}", "kind": "python", "call": "builtin.echo", **fields}


def _one(size: int, make: Callable[[int], dict[str, object]]) -> str:
    """Return a plan of one step; ``make`` gets how many characters its large part has."""
    return _plan([_step(0, **make(size))])


def _listed(size: int, item: Callable[[int], str]) -> list[str]:
    return [item(number) for number in range(size // (len(item(10_000)) + 4))]


def _deep_numbers(size: int) -> str:
    return '{"title": "t", "x": ' + "[" * 50 + "1," * (size // 2) + "1" + "]" * 50 + "}"


def _deep_schema(size: int) -> str:
    """A schema whose property names are long and nested, with thousands of properties at the bottom."""
    leaves: dict[str, Json] = {f"p{number}": {"type": "text"} for number in range(size // 50)}
    schema: dict[str, Json] = {"type": "object", "properties": leaves}
    for level in range(25):
        schema = {"type": "object", "properties": {f"{level}" + "n" * (size // 60): schema}}
    return _plan([_step(0, output=schema)])


def _chained(size: int) -> str:
    steps = [_step(0)]
    steps += [_step(number, depends_on=[f"s{number - 1}"]) for number in range(1, size // 80)]
    return _plan([_step(0, depends_on=[f"s{len(steps) - 1}"]), *steps[1:]])


SHAPES: Final[Mapping[str, Callable[[int], str]]] = {
    "unknown functions": lambda size: _repeated(size, lambda n: _step(n, call=f"builtin.ech{n:06}")),
    "unknown dependencies": lambda size: _repeated(size, lambda n: _step(n, depends_on=[f"t{n:06}"])),
    "unknown references": lambda size: _repeated(size, lambda n: _step(n, inputs={"a": f"${{steps.t{n:06}.output}}"})),
    "known references": lambda size: _repeated(
        size, lambda n: _step(n, inputs={"a": f"${{s{max(0, n - 1)}.output}}"}, depends_on=[f"s{max(0, n - 1)}"])
    ),
    "references in one text": lambda size: _one(size, lambda n: {"inputs": {"a": "${x.y}" * (n // 6)}}),
    "a long path": lambda size: _one(size, lambda n: {"inputs": {"a": "${" + "a." * (n // 2) + "a}"}}),
    "a long name": lambda size: _one(size, lambda n: {"inputs": {"a": "${" + "a" * n + "}"}}),
    "many filters": lambda size: _one(size, lambda n: {"inputs": {"a": "${x" + "|json" * (n // 5) + "}"}}),
    "a deep default": lambda size: _one(
        size, lambda n: {"inputs": {"a": "${x|default(" + "[" * (n // 2) + "]" * (n // 2) + ")}"}}
    ),
    "open braces": lambda size: _one(size, lambda n: {"inputs": {"a": "${" * (n // 2)}}),
    "quotes in braces": lambda size: _one(size, lambda n: {"inputs": {"a": '${"' * (n // 3)}}),
    "escaped braces": lambda size: _one(size, lambda n: {"inputs": {"a": "$${" * (n // 3)}}),
    "deep numbers": _deep_numbers,
    "empty lists": lambda size: '{"title": "t", "x": [' + "[]," * (size // 3) + "1]}",
    "empty objects": lambda size: '{"title": "t", "x": [' + '{"":0},' * (size // 7) + "1]}",
    "unknown fields": lambda size: json.dumps({"title": "t", **{f"f{n:06}": 1 for n in range(size // 14)}}),
    "unknown inputs": lambda size: _plan([_step(0)], inputs={f"i{n:06}": {"type": "txt"} for n in range(size // 30)}),
    "inputs and wrong names of them": lambda size: _repeated(
        size // 2,
        lambda n: _step(n, inputs={"a": f"${{inputs.j{n:06}}}"}),
        inputs={f"i{n:06}": 1 for n in range(size // 28)},
    ),
    "doubled dependencies": lambda size: _plan([_step(0), _step(1, depends_on=["s0"] * (size // 7))]),
    "doubled ids": lambda size: _repeated(size, lambda _: _step(1)),
    "a circle": _chained,
    "globs of tools": lambda size: _plan(
        [
            {"id": f"a{number}", "instructions": "x", "allowed_tools": [f"{number}c{n}*" for n in range(90)]}
            for number in range(size // 1_000)
        ]
    ),
    "unknown tools": lambda size: _plan(
        [{"id": "a", "instructions": "x", "allowed_tools": _listed(size, lambda n: f"code.read{n:06}")}]
    ),
    "a schema that requires what it has not": lambda size: _one(
        size, lambda n: {"output": {"type": "object", "required": _listed(n, lambda i: f"r{i:06}")}}
    ),
    "a schema of unknown keywords": lambda size: _one(
        size, lambda n: {"output": {"type": "object", **{f"k{i:06}": 1 for i in range(n // 14)}}}
    ),
    "a deep schema": _deep_schema,
    "hosts": lambda size: _plan(
        [
            {"id": f"a{n}", "instructions": "x", "permissions": {"hosts": [f"h{n}x{i}.example" for i in range(100)]}}
            for n in range(size // 2_300)
        ]
    ),
    "items of a literal map": lambda size: _plan(
        [{"id": "m", "kind": "map", "over": list(range(size // 9)), "max_items": 10_000, "step": {"instructions": "x"}}]
    ),
    "nothing but steps": lambda size: _repeated(size, lambda n: {"id": f"s{n}", "instructions": "x"}),
    "agents that there are not": lambda size: _repeated(
        size, lambda n: {"id": f"s{n}", "agent": f"default_agent{n:06}"}
    ),
    "a long text": lambda size: _one(size, lambda n: {"inputs": {"a": "x" * n}}),
    "a long title of another type": lambda size: json.dumps({"title": ["x" * size], "steps": []}),
}
