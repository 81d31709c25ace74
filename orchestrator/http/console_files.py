"""The web console: files that were built from ``console/`` and are sent as they are, to everybody who asks.

They hold no data. What the console shows it asks of the API, with the token of the person who looks at it.
"""

from collections.abc import Mapping
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.http.problems import ProblemCode, ProblemError
from soong.shared.core.value import Value

router = APIRouter(tags=["service"])

ASSETS: Final = "/console/"
POLICY: Final = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "require-trusted-types-for 'script'; trusted-types soong-worker"
)
"""Nothing from elsewhere, nothing inline, and no text becomes a script but the address of the console's own worker."""

_TYPES: Final[Mapping[str, str]] = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class ConsoleFile(Value):
    """One file as it is sent. ``tag`` is its ETag."""

    data: bytes
    media_type: str
    tag: str


@cache
def console_files() -> Mapping[str, ConsoleFile]:
    """Return the console's files by name; read once."""
    found = {}
    for entry in files("soong.orchestrator.http").joinpath("console").iterdir():
        suffix = entry.name.rpartition(".")[2]
        if entry.is_file() and suffix in _TYPES:
            data = entry.read_bytes()
            found[entry.name] = ConsoleFile(data, _TYPES[suffix], f'"{sha256(data).hexdigest()[:32]}"')
    return found


@router.get(
    "/",
    response_class=Response,
    responses={200: {"content": {"text/html": {}}, "description": "The page of the web console."}},
)
async def console(request: Request) -> Response:
    """Send the web console. Needs no token; the console asks for one (`soong console`)."""
    return _sent(request, "index.html")


@router.get(
    "/console/{name}",
    response_class=Response,
    responses={200: {"content": {"*/*": {}}, "description": "A script, a style sheet or a picture of the console."}},
)
async def console_file(request: Request, name: str) -> Response:
    """Send a file of the web console. Needs no token."""
    return _sent(request, name)


def _sent(request: Request, name: str) -> Response:
    file = console_files().get(name)
    if file is None:
        raise ProblemError(ProblemCode.NOT_FOUND, "the console has no file of that name")
    headers = {"ETag": file.tag, "Cache-Control": "no-cache", "Content-Security-Policy": POLICY}
    if request.headers.get("if-none-match") == file.tag:
        return Response(status_code=304, headers=headers)
    return Response(file.data, media_type=file.media_type, headers=headers)
