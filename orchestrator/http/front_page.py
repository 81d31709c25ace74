"""The page at the server's root: what this is, how to get a token, every path. Static HTML without scripts."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any, Final

from soong.orchestrator.embedded.listening import is_loopback
from soong.orchestrator.http.origin_checks import name_of

POLICY: Final = (
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


def front_page(document: Mapping[str, Any], host: str) -> str:
    """Return the page that tells people what an OpenAPI document describes; ``host`` is the one that they named."""
    info = document["info"]
    return _PAGE.format(
        title=escape(info["title"]),
        version=escape(info["version"]),
        description=_text(info["description"]),
        # Beyond this machine TLS stands in front (docs/api.md), which the request does not show here.
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
