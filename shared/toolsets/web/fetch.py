"""web.fetch: one page by GET, as text, a page of lines at a time (NET-01).

It connects to the host that was permitted and to those that the policy allows unasked, at each redirect and by judged
addresses (:mod:`soong.shared.sandbox.network`). Nothing of the caller goes out but the URL: no cookie, no credential.
Each page of a long text is fetched again; the full text is an artifact.
"""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.egress import Resolver
from soong.shared.sandbox.hosts import HostRefusedError, host_of_url
from soong.shared.sandbox.network import MAX_REDIRECTS, open_client, resolve
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.code.paths import integer, number_of, string, text_of
from soong.shared.toolsets.web.body import MAX_BODY_BYTES, ResponseBody, read_body
from soong.shared.toolsets.web.document import readable_text
from soong.shared.toolsets.web.page import DEFAULT_LINES, MAX_LINES, MAX_START_LINE, TextPage
from soong.shared.toolsets.web.robots import MAX_ROBOTS_BYTES, ROBOTS_PATH, is_allowed

if TYPE_CHECKING:
    import httpx2

TIME_LIMIT: Final = timedelta(seconds=60)
"""Of a call, with everything that it waits for."""
_WAIT: Final = timedelta(seconds=15)
"""For a connection, and for each piece of an answer."""
_AGENT: Final = "soong"
_HEADERS: Final = {
    "accept": "text/markdown, text/html;q=0.9, application/json;q=0.9, text/*;q=0.8, */*;q=0.1",
    "accept-encoding": "gzip, deflate",
}
_BUSY: Final = (429, 500, 502, 503, 504)


class FetchTool(Value):
    """The tool. ``heeds_robots``: what a site's robots.txt refuses is not fetched."""

    heeds_robots: bool = True
    resolver: Resolver = resolve

    def definition(self) -> ToolDefinition:
        return ToolDefinition(
            name="web.fetch",
            title="Fetch page",
            description=(
                "Fetch one http or https URL by GET and return it as text: HTML as Markdown, JSON and plain text as "
                "they are. No login, no scripts are run. Long pages come in parts: continue with start_line."
            ),
            search_hint="http url download web page site internet browse read online documentation",
            input_schema={
                "type": "object",
                "properties": {
                    "url": string("Absolute URL with http:// or https://, without a user name."),
                    "start_line": integer("First line of the text, counted from 1.", 1, 1, MAX_START_LINE),
                    "max_lines": integer("How many lines at most.", DEFAULT_LINES, 1, MAX_LINES),
                },
                "required": ["url"],
            },
            handler=self.fetch,
            permission=Permission.READONLY,
            tags=frozenset({"web", "network", "readonly"}),
            errors=(ErrorType.SERVER_UNAVAILABLE, ErrorType.BINARY_FILE, ErrorType.LIMIT_EXCEEDED),
            timeout=TIME_LIMIT,
            traits=lambda _: Traits(is_read_only=True, is_concurrency_safe=True, is_open_world=True),
            target=target_of,
        )

    async def fetch(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        """Fetch what was permitted and return a page of its text."""
        egress, url = context.egress, context.target.shown
        if egress is None or host_of_url(url) != context.target.host:
            raise HostRefusedError(f"no policy says what {url[:200]!r} may connect to")
        async with open_client(egress, timeout=_WAIT, resolver=self.resolver, user_agent=_AGENT) as client:
            if self.heeds_robots:
                await _check_robots(client, url)
            body = await _got(client, url)
        document = await readable_text(body)
        start, most = number_of(call_input, "start_line", 1), number_of(call_input, "max_lines", DEFAULT_LINES)
        page = await run_blocking(lambda _stop: TextPage.of(document.text, start, most))
        return page.result(context.tool_call_id, url, body, document)


def target_of(_context: ToolContext, call_input: JsonObject) -> Target:
    """Return what permission is asked for: the URL with its host in the one spelling that is compared."""
    url = text_of(call_input, "url")
    host = host_of_url(url)
    return Target(kind="host", scope=host, shown=_normal(url, host), host=host)


def _normal(url: str, host: str) -> str:
    """Return the URL as it is sent: a look-alike of a host shows in its ASCII form, and no fragment goes out."""
    parts = urlsplit(url)
    place = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port is not None else ""
    return urlunsplit((parts.scheme, f"{place}{port}", parts.path or "/", parts.query, ""))


async def _got(client: "httpx2.AsyncClient", url: str) -> ResponseBody:
    """Fetch a URL to its last redirect.

    Raises:
        ToolError: the server refuses, is busy, or sends more or something else than is taken.
    """
    body = await _fetched(client, url, MAX_BODY_BYTES)
    if body.status < 400:
        return body
    kind = ErrorType.SERVER_UNAVAILABLE if body.status in _BUSY else ErrorType.EXECUTION_FAILED
    raise ToolError(kind, f"{body.url[:500]} answered {body.status}", details={"status": body.status})


async def _fetched(client: "httpx2.AsyncClient", url: str, max_bytes: int) -> ResponseBody:
    import httpx2

    try:
        async with asyncio.timeout(TIME_LIMIT.total_seconds()):
            return await _at_the_last_redirect(client, url, max_bytes)
    except TimeoutError as error:
        raise ToolError(ErrorType.TIMEOUT, f"{url[:500]} gave no answer in time") from error
    except httpx2.TimeoutException as error:
        raise ToolError(ErrorType.TIMEOUT, f"{url[:500]} gave no answer within {_WAIT.seconds} s") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise ToolError(ErrorType.SERVER_UNAVAILABLE, f"{url[:500]} cannot be fetched: {words[:500]}") from error


async def _at_the_last_redirect(client: "httpx2.AsyncClient", url: str, max_bytes: int) -> ResponseBody:
    request = client.build_request("GET", url, headers=_HEADERS)
    for _ in range(MAX_REDIRECTS + 1):
        response = await client.send(request, stream=True, follow_redirects=False)
        try:
            following = response.next_request
            if following is None:
                return await read_body(response, max_bytes)
        finally:
            await response.aclose()
        if request.url.scheme == "https" and following.url.scheme != "https":
            raise HostRefusedError(f"{str(request.url)[:500]} redirects from https to {str(following.url)[:500]}")
        request = client.build_request("GET", following.url, headers=_HEADERS)
    raise ToolError(ErrorType.EXECUTION_FAILED, f"{url[:500]} redirects more than {MAX_REDIRECTS} times")


async def _check_robots(client: "httpx2.AsyncClient", url: str) -> None:
    """Hold a URL to the rules of its site (RFC 9309): what cannot be read allows everything, a busy server nothing.

    Raises:
        ToolError: the site does not want it to be fetched.
    """
    parts = urlsplit(url)
    place = urlunsplit((parts.scheme, parts.netloc, ROBOTS_PATH, "", ""))
    rules = await _fetched(client, place, MAX_ROBOTS_BYTES)
    if rules.status >= 500:
        problem = f"{place} answered {rules.status}, so whether the page may be fetched is unknown"
        raise ToolError(ErrorType.SERVER_UNAVAILABLE, problem)
    if rules.status < 400 and not await run_blocking(lambda _stop: is_allowed(rules.data, _AGENT, url)):
        hint = "read another page, or ask the user: network.robots in config.toml decides whether robots.txt is heeded"
        raise ToolError(ErrorType.NETWORK_DENIED, f"{place} does not allow {url[:500]} to be fetched", hint=hint)
