"""web.fetch: one page by GET, as text, a page of lines at a time (NET-01).

It connects to the host that was permitted and to those that the policy allows unasked, at each redirect and by judged
addresses (:mod:`soong.shared.sandbox.network`). Nothing of the caller goes out but the URL: no cookie, no credential.
Each page of a long text is fetched again; the full text is an artifact.
"""

import asyncio
import re
import socket
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit, urlunsplit

from soong.shared.core.jsontext import JsonObject
from soong.shared.core.value import Value
from soong.shared.sandbox.hosts import MAX_REDIRECTS, HostRefusedError, Resolver, host_of_url
from soong.shared.sandbox.redact import inert_text
from soong.shared.sandbox.threads import run_blocking
from soong.shared.tools.definition import HandlerOutput, Permission, Target, ToolContext, ToolDefinition, Traits
from soong.shared.tools.result import ErrorType, TextBlock, ToolError, ToolResult
from soong.shared.tools.schema import arguments, integer, number_of, string, text_of
from soong.shared.toolsets.web.document import MAX_BODY_BYTES, ResponseBody, WebDocument, read_body, readable_text

if TYPE_CHECKING:
    import httpx2


TIME_LIMIT: Final = timedelta(seconds=60)
"""The time of a call, with everything that it waits for."""
_WAIT: Final = timedelta(seconds=15)
"""For a connection, and for each piece of an answer."""
_AGENT: Final = "soong"
_HEADERS: Final = {
    "accept": "text/markdown, text/html;q=0.9, application/json;q=0.9, text/*;q=0.8, */*;q=0.1",
    "accept-encoding": "gzip, deflate",
}
_BUSY: Final = (429, 500, 502, 503, 504)

DEFAULT_LINES: Final = 200
MAX_LINES: Final = 1000
MAX_START_LINE: Final = 2**53 - 1
MAX_PAGE_CHARS: Final = 10_000
_MAX_LINE_CHARS: Final = 2_000
"""Length of a line; a longer one is continued on the next, so that every character is on some page."""

ROBOTS_PATH: Final = "/robots.txt"
MAX_ROBOTS_BYTES: Final = 512 * 1024
MAX_RULES: Final = 1_000
"""Rules of an agent that are applied, in the order of the file."""
_MAX_LINES: Final = 10_000
_MAX_PATTERN_CHARS: Final = 2_048

_Rule = tuple[str, str]


async def resolve(host: str, port: int) -> Sequence[str]:
    """Return the addresses of a host by the system's resolver. Raises: OSError, it has none."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(str(address[0]) for *_, address in found))


class WebTools(Value):
    """A :class:`soong.shared.tools.definition.ToolAdapter`. ``heeds_robots``: a site's robots.txt is followed."""

    heeds_robots: bool = True
    resolver: Resolver = resolve

    def tools(self) -> tuple[ToolDefinition, ...]:
        fetch = ToolDefinition(
            name="web.fetch",
            title="Fetch page",
            description=(
                "Fetch one http or https URL by GET and return it as text: HTML as Markdown, JSON and plain text as "
                "they are. No login, no scripts are run. Long pages come in parts: continue with start_line."
            ),
            search_hint="http url download web page site internet browse read online documentation",
            input_schema=arguments(
                "url",
                url=string("Absolute URL with http:// or https://, without a user name."),
                start_line=integer("First line of the text, counted from 1.", 1, 1, MAX_START_LINE),
                max_lines=integer("How many lines at most.", DEFAULT_LINES, 1, MAX_LINES),
            ),
            handler=self.fetch,
            permission=Permission.READONLY,
            tags=frozenset({"web", "network", "readonly"}),
            errors=(ErrorType.SERVER_UNAVAILABLE, ErrorType.BINARY_FILE, ErrorType.LIMIT_EXCEEDED),
            timeout=TIME_LIMIT,
            traits=lambda _: Traits(is_read_only=True, is_concurrency_safe=True, is_open_world=True),
            target=target_of,
        )
        return (fetch,)

    async def fetch(self, context: ToolContext, call_input: JsonObject) -> HandlerOutput:
        from soong.shared.sandbox.network import open_client

        egress, url = context.egress, context.target.shown
        if egress is None or host_of_url(url) != context.target.host:
            raise HostRefusedError(f"no policy says what {url[:200]!r} may connect to")
        async with open_client(egress, timeout=_WAIT, resolver=self.resolver, user_agent=_AGENT) as client:
            if self.heeds_robots:
                await _check_robots(client, url)
            body = await _fetched(client, url, MAX_BODY_BYTES)
            if body.status >= 400:
                kind = ErrorType.SERVER_UNAVAILABLE if body.status in _BUSY else ErrorType.EXECUTION_FAILED
                raise ToolError(kind, f"{body.url[:500]} answered {body.status}", details={"status": body.status})
        document = await readable_text(body)
        start, most = number_of(call_input, "start_line", 1), number_of(call_input, "max_lines", DEFAULT_LINES)
        page = await run_blocking(lambda _stop: TextPage.of(document.text, start, most))
        return page.result(context.tool_call_id, url, body, document)


def target_of(_context: ToolContext, call_input: JsonObject) -> Target:
    """Return what permission is asked for: the URL with its host in the one spelling that is compared."""
    url = text_of(call_input, "url")
    host, parts = host_of_url(url), urlsplit(url)
    # A look-alike of a host shows in its ASCII form, and no fragment goes out.
    place = f"[{host}]" if ":" in host else host
    port = f":{parts.port}" if parts.port is not None else ""
    shown = urlunsplit((parts.scheme, f"{place}{port}", parts.path or "/", parts.query, ""))
    return Target(kind="host", scope=host, shown=shown, host=host)


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
    """Hold a URL to the rules of its site (RFC 9309): unreadable rules allow everything, a busy server nothing.
    Raises: ToolError, the site does not want it to be fetched.
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


class TextPage(Value):
    """Some lines of a text, counted from 1."""

    lines: tuple[str, ...]
    start: int
    total: int
    whole: str

    @classmethod
    def of(cls, text: str, start: int, max_lines: int) -> "TextPage":
        """Cut a page out of a text: at most ``max_lines``, and as many as fit."""
        lines = list[str]()
        for line in inert_text(text).splitlines():
            lines += [line[at : at + _MAX_LINE_CHARS] for at in range(0, len(line), _MAX_LINE_CHARS)] or [""]
        page: list[str] = []
        size = 0
        for line in lines[start - 1 : start - 1 + max_lines]:
            size += len(line) + 1
            if page and size > MAX_PAGE_CHARS:
                break
            page.append(line)
        return cls(tuple(page), start, len(lines), "\n".join(lines))

    @property
    def end(self) -> int:
        return self.start + len(self.lines) - 1

    def result(self, tool_call_id: str, url: str, body: ResponseBody, document: WebDocument) -> ToolResult:
        """Return the page with where it comes from; with a first page that is not all of it, the full text is kept."""
        is_kept = self.start == 1 and self.end < self.total
        place = (
            f"lines {self.start}-{self.end} of {self.total}" if self.lines else f"no line {self.start}: {self.total}"
        )
        head = f"{body.url} ({document.media_type}, {place})"
        more = f"\n[continue with start_line={self.end + 1}]" if self.lines and self.end < self.total else ""
        text = f"{head}\n\n" + "\n".join(self.lines) + more
        original = self.whole.encode("utf-8") if is_kept else b""
        return ToolResult(
            tool_call_id,
            (TextBlock(text, original=original),),
            head,
            {
                "url": url,
                "final_url": body.url,
                "status": body.status,
                "media_type": document.media_type,
                "charset": document.charset,
                "bytes": len(body.data),
                "start_line": self.start,
                "end_line": self.end,
                "total_lines": self.total,
                "has_more": self.end < self.total,
            },
        )


def is_allowed(content: bytes, agent: str, url: str) -> bool:
    """Say whether an agent may fetch a URL; the rules of its own group count, else those for all."""
    parts = urlsplit(url)
    path = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    if path == ROBOTS_PATH:
        return True
    rules = _rules(content.decode("utf-8-sig", "replace"), agent.lower())
    fitting = [(len(pattern), word == "allow") for word, pattern in rules if _fits(pattern, path)]
    return max(fitting, default=(0, True))[1]


def _rules(text: str, agent: str) -> Iterable[_Rule]:
    """Return the rules of the agent's own groups, else of those for all: each once, in work linear in the text."""
    found: dict[str, dict[_Rule, None]] = {}
    named: set[str] = set()
    is_in_rules = False
    for word, value in _rule_lines(text):
        if word == "user-agent":
            named, is_in_rules = (set() if is_in_rules else named), False
            if (name := value.partition("/")[0].strip().lower()) in (agent, "*"):
                named.add(name)
                found.setdefault(name, {})
        elif word in ("allow", "disallow"):
            is_in_rules = True
            for name in named if value else ():
                if len(found[name]) < MAX_RULES:
                    found[name][word, value[:_MAX_PATTERN_CHARS]] = None
    return found.get(agent, found.get("*", ()))


def _rule_lines(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines()[:_MAX_LINES]:
        word, colon, value = line.partition("#")[0].partition(":")
        if colon:
            yield word.strip().lower(), value.strip()


def _fits(pattern: str, path: str) -> bool:
    """Say whether a path matches a pattern at its start: ``*`` is any text, ``$`` at the end the end of the path. The
    pieces between stars are looked for one after another, each at the first place: no pattern takes long.
    """
    is_whole = pattern.endswith("$")
    first, *pieces = re.split(r"\*+", pattern.removesuffix("$"))
    if not path.startswith(first):
        return False
    at = len(first)
    for piece in pieces[:-1] if is_whole and pieces else pieces:
        found = path.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    if not is_whole:
        return True
    return path.endswith(pieces[-1]) and len(path) - len(pieces[-1]) >= at if pieces else at == len(path)
