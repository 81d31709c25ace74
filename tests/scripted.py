"""Steps for tests whose agents make the calls that the plan lists, by the scripted agent ``builtin.calls``."""

from collections.abc import Mapping

from soong.shared.core.jsontext import Json, JsonObject


def call(tool: str, **arguments: Json) -> JsonObject:
    """Return one call of a list."""
    return {"call": tool, "with": arguments}


def calls(*made: JsonObject, **more: Json) -> dict[str, Json]:
    """Return a step's fields that make these calls; ``output`` and ``at_once`` are the agent's inputs."""
    return {"script": "builtin.calls", "inputs": {"calls": [dict(one) for one in made], **more}}


def error_of(output: Json) -> str:
    """Return the type of the last call's error; empty when it succeeded."""
    assert isinstance(output, Mapping)
    results = output["results"]
    assert isinstance(results, list)
    last = results[-1]
    assert isinstance(last, Mapping)
    error = last["error"]
    return str(error["type"]) if isinstance(error, Mapping) else ""
