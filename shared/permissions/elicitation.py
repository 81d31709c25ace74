"""A question of an MCP server to a person, for the session's elicitation callback (MCP-01.l).

It is the content of a permission request; the answer goes back as a permission decision, whose reason holds the words
for the form.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeAlias

from soong.shared.core.identity import RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.permissions.request import PermissionRequest
from soong.shared.tools.definition import ElicitationAnswer
from soong.shared.tools.ports import ASK_MARK


class ElicitationRequest(Value):
    """A question of an MCP server. ``message`` are the server's words, which nobody has checked.

    ``identity`` is the run whose call it is, ``tool_call_id`` that call. ``schema`` is the JSON Schema of the form;
    None where the server wants a page to be opened: then ``url`` is the page and ``host`` its host, and Soong opens
    nothing. ``repeats_call``: the call is made again after a yes: finish at the page first. ``problem`` is the error of
    the answer before, when a form is asked again.
    """

    id: str
    identity: RunIdentity
    tool_call_id: str
    server: str
    message: str
    schema: JsonObject | None = None
    url: str = ""
    host: str = ""
    repeats_call: bool = False
    problem: str = ""

    @classmethod
    def of(cls, request: PermissionRequest) -> "ElicitationRequest":
        """Read a permission request that takes words."""
        said = request.arguments
        schema = said.get("schema")
        return cls(
            id=request.id,
            identity=request.identity,
            tool_call_id=request.tool_call_id.partition(ASK_MARK)[0],
            server=str(said.get("server", "")),
            message=str(said.get("message", "")),
            schema=schema if isinstance(schema, Mapping) else None,
            url=str(said.get("url", "")),
            host=str(said.get("host", "")),
            repeats_call=said.get("repeats_call") is True,
            problem=str(said.get("problem", "")),
        )


ElicitationCallback: TypeAlias = Callable[[ElicitationRequest], Awaitable[ElicitationAnswer]]
