"""The pages for browsers: the web console, and at ``/api`` what this server is. Both are sent to everybody who asks.

They hold no data. The console's files are built from ``console/`` and sent as they are; what it shows it asks of the
API, with the token of the person who looks at it. The page at ``/api`` is static HTML without scripts.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from soong.orchestrator.embedded.listening import is_loopback
from soong.orchestrator.http.edge import name_of
from soong.orchestrator.operations.problems import ProblemCode, ProblemError
from soong.shared.core.value import Value

router = APIRouter(tags=["service"])

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

PAGE_POLICY: Final = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "sandbox allow-same-origin"
)
"""The page runs nothing. Without an origin of its own its links would count as calls from another site."""
_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title} {version}: HTTP API</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  color-scheme: light dark }}
code, pre {{ font: 14px/1.5 ui-monospace, monospace }}
pre {{ overflow-x: auto; padding: .75rem 1rem; border: 1px solid #8886 }}
table {{ border-collapse: collapse }}
th, td {{ border-bottom: 1px solid #8886; padding: .25rem .75rem .25rem 0; text-align: left; vertical-align: top }}
</style>
</head>
<body>
<h1>{title} {version}: HTTP API</h1>
<p>{description}</p>
<h2>A token</h2>
<p>Make one on the machine of the service. It is printed once.</p>
<pre>soong tokens create --principal NAME --right read &gt; token
curl -H "Authorization: Bearer $(cat token)" {address}/v1/me</pre>
<p>Rights: <code>read</code> shows everything, <code>run</code> submits and steers tasks, <code>approve</code> answers
questions, <code>admin</code> steers the tasks of others.</p>
<h2>The description</h2>
<p>For programs, <a href="/v1/openapi.json">/v1/openapi.json</a> (OpenAPI 3.1) describes every path, field and problem.
</p>
<h2>Paths</h2>
<table>
<tr><th>path</th><th>right</th><th>what it does</th></tr>
{rows}
</table>
</body>
</html>
"""


class ConsoleFile(Value):
    """One file as it is sent. ``tag`` is its ETag."""

    data: bytes
    media_type: str
    tag: str


@cache
def console_files() -> Mapping[str, ConsoleFile]:
    """Return the console's files by name; read once."""
    return {
        entry.name: ConsoleFile(data := entry.read_bytes(), media_type, f'"{sha256(data).hexdigest()[:32]}"')
        for entry in files("soong.orchestrator.http").joinpath("console").iterdir()
        if entry.is_file() and (media_type := _TYPES.get(entry.name.rpartition(".")[2], ""))
    }


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


def front_page(document: Mapping[str, Any], host: str) -> str:
    """Return the page that tells people what an OpenAPI document describes; ``host`` is the one that they named."""
    info = document["info"]
    return _PAGE.format(
        title=escape(info["title"]),
        version=escape(info["version"]),
        description=_text(info["description"]),
        # Beyond this machine a proxy ends TLS (docs/reference/api.md), which the request does not show here.
        address=escape(f"{'http' if is_loopback(name_of(host) or '') else 'https'}://{host}"),
        rows="\n".join(_rows(document["paths"])),
    )


def _rows(paths: Mapping[str, Any]) -> Iterator[str]:
    for path, operations in paths.items():
        for method, operation in operations.items():
            first = operation["description"].partition("\n")[0]
            cells = (f"<code>{method.upper()} {escape(path)}</code>", operation["x-right"] or "no token", _text(first))
            yield f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _text(words: str) -> str:
    """Return Markdown of ours as HTML: its code marks become tags, everything else is text."""
    parts = escape(words).split("`")
    return "".join(f"<code>{part}</code>" if number % 2 else part for number, part in enumerate(parts))
