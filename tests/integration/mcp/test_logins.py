import asyncio
import shlex
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner

from soong.orchestrator.cli import mcp
from soong.orchestrator.doctor.checks import check_servers
from soong.shared.core.config import parse_config
from soong.shared.core.errors import UsageError
from soong.shared.core.settings import load_settings
from soong.shared.core.timing import SystemClock
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.toolsets.mcp.catalogue import LoginFolder, ServerLogin
from soong.shared.toolsets.mcp.login_auth import LoginAuth, LoginRefusedError
from soong.shared.toolsets.mcp.login_flow import LoopbackReceiver, PastedReceiver, log_in
from tests.integration.mcp.login_site import LoginSite, login_site
from tests.integration.mcp.scene import McpScene, mcp_scene
from tests.unit.cli.calling import soong
from tests.waiting import until

pytestmark = [pytest.mark.asyncio, pytest.mark.spec("MCP-01.e")]


@pytest.fixture(scope="module")
def running() -> Iterator[LoginSite]:
    with login_site() as made:
        yield made


@pytest.fixture
def site(running: LoginSite) -> LoginSite:
    running.issuer.lifetime_s, running.issuer.is_refusing = 3600, False
    return running


def config_of(site: LoginSite) -> str:
    return f'[mcp.servers.t]\nurl = "{site.url}"\nprotocol = "stateless"\ntimeout_s = 20'


async def visit(url: str) -> None:
    """Go where a person's browser goes: the authorization server sends it back at once."""
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        await browser.get(url)


async def logged_in(site: LoginSite, home: Path, scope: str = "") -> ServerLogin:
    server = parse_config(config_of(site)).mcp.servers["t"]
    async with LoopbackReceiver.listening() as receiver:
        login = await log_in("t", server, receiver, visit, SystemClock(), scope=scope)
    LoginFolder(home).write(login)
    return login


@asynccontextmanager
async def scene_of(site: LoginSite, folder: Path) -> AsyncIterator[McpScene]:
    async with mcp_scene(folder, config_of(site)) as scene:
        yield scene


def problem(result: ToolResult) -> str:
    assert result.error is not None
    assert result.error.type is ErrorType.SERVER_UNAVAILABLE
    return result.error.message


async def test_a_worker_uses_the_login_of_a_person_and_says_where_there_is_none(
    site: LoginSite, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with scene_of(site, tmp_path) as scene:
        before = scene.servers.snapshot("t")
    login = await logged_in(site, tmp_path / "home")
    async with scene_of(site, tmp_path) as scene:
        used = await scene.call("mcp.t.repeat")
        LoginFolder(scene.home).remove("t")
        site.issuer.access.clear()
        after = await scene.call("mcp.t.repeat")

    assert before is not None
    assert before.problem == "the MCP server 't' wants a login; run `soong mcp login t`"
    # The server repeats what it was sent: it was sent the token, and nobody else gets it.
    assert used.ok
    assert "you came with Bearer [" in str(used.data)
    assert problem(after) == before.problem
    place = tmp_path / "home" / "mcp" / "logins" / "t.json"
    assert not place.exists()
    kept = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "home" / "mcp").glob("*.json"))
    said = "".join(capfd.readouterr())
    for secret in (login.access_token, str(login.tokens["refresh_token"])):
        assert secret not in kept + said + str(used) + str(scene.log.notes)


async def test_a_login_is_readable_by_its_user_alone_and_belongs_to_one_address(
    site: LoginSite, tmp_path: Path
) -> None:
    login = await logged_in(site, tmp_path)
    folder = LoginFolder(tmp_path)
    place = tmp_path / "mcp" / "logins" / "t.json"

    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    assert stat.S_IMODE(place.parent.stat().st_mode) == 0o700
    assert folder.read("t", site.url) == login
    assert folder.read("t", site.url.replace("127.0.0.1", "localhost")) is None
    assert login.access_token not in repr(login)


async def test_a_token_that_ends_is_renewed_once_however_many_use_it(site: LoginSite, tmp_path: Path) -> None:
    site.issuer.lifetime_s = 1
    await logged_in(site, tmp_path / "home")
    site.issuer.lifetime_s = 3600
    before = site.issuer.refreshed

    async with scene_of(site, tmp_path) as one, scene_of(site, tmp_path) as other:  # two processes of one home
        results = await asyncio.gather(*(scene.call("mcp.t.repeat") for scene in (one, other) for _ in range(5)))

    assert all(result.ok for result in results)
    assert site.issuer.refreshed - before == 1
    assert site.issuer.reused == 0


async def test_a_login_that_was_taken_back_ends_and_a_person_is_told_what_to_run(
    site: LoginSite, tmp_path: Path
) -> None:
    await logged_in(site, tmp_path / "home")
    async with scene_of(site, tmp_path) as scene:
        assert (await scene.call("mcp.t.repeat")).ok
        site.issuer.access.clear()
        site.issuer.is_refusing = True
        ended = await scene.call("mcp.t.repeat")
        kept = LoginFolder(scene.home).read("t", site.url)

    assert problem(ended) == "the MCP server 't' does not take the login that is stored; run `soong mcp login t`"
    assert kept is not None
    assert kept.state(SystemClock().now_us()) == "login ended"


async def test_a_call_that_needs_more_rights_fails_alone_and_names_them(site: LoginSite, tmp_path: Path) -> None:
    await logged_in(site, tmp_path / "home")
    async with scene_of(site, tmp_path) as scene:
        other = asyncio.create_task(scene.call("mcp.t.wait"))
        await until(lambda: bool(scene.progress))
        refused = await scene.call("mcp.t.admin")

        assert problem(refused) == (
            "the MCP server 't' wants the rights 'files:write'; run `soong mcp login t --scope files:write`"
        )
        assert (await other).data == {"result": "waited"}
        assert (await scene.call("mcp.t.repeat")).ok


async def test_a_login_is_sent_to_no_other_origin(site: LoginSite, tmp_path: Path) -> None:
    await logged_in(site, tmp_path)
    server = parse_config(config_of(site)).mcp.servers["t"]
    auth = LoginAuth("t", server, LoginFolder(tmp_path), SystemClock())
    seen: dict[str, str] = {}

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen[str(request.url)] = request.headers.get("authorization", "")
        return httpx2.Response(200)

    async with httpx2.AsyncClient(transport=httpx2.MockTransport(answer), auth=auth) as client:
        others = ["http://127.0.0.1:1/mcp", site.url.replace("http:", "https:"), "https://evil.example.org/mcp"]
        for url in (site.url, *others):
            await client.get(url)

    assert seen.pop(site.url).startswith("Bearer at-")
    assert set(seen.values()) == {""}


async def test_a_refusal_and_an_answer_to_another_login_are_no_login(site: LoginSite, tmp_path: Path) -> None:
    site.issuer.is_refusing = True
    with pytest.raises(LoginRefusedError, match="the authorization server refused: access_denied"):
        await logged_in(site, tmp_path)

    async with LoopbackReceiver.listening() as receiver:
        receiver.expect("right")
        async with httpx2.AsyncClient() as browser:
            wrong = await browser.get(f"{receiver.redirect_uri}?code=evil&state=wrong")
            none = await browser.get(f"{receiver.redirect_uri}?code=evil")
            error = await browser.get(f"{receiver.redirect_uri}?error=access_denied&state=wrong")
            elsewhere = await browser.get(receiver.redirect_uri.replace("callback", "other"))
            right = await browser.get(f"{receiver.redirect_uri}?code=good&state=right")
        found = await receiver.result()

    assert [one.status_code for one in (wrong, none, error, elsewhere, right)] == [400, 400, 400, 404, 200]
    assert (found.code, found.state) == ("good", "right")


async def test_a_login_without_a_browser_here_takes_the_pasted_address(site: LoginSite) -> None:
    server = parse_config(config_of(site)).mcp.servers["t"]
    shown: list[str] = []

    async def show(url: str) -> None:
        shown.append(url)

    async def paste() -> str:
        async with httpx2.AsyncClient(follow_redirects=False) as elsewhere:
            return (await elsewhere.get(shown[0])).headers["location"]

    async def paste_of_another() -> str:
        return "http://127.0.0.1:53682/callback?code=stolen&state=of-an-attacker"

    login = await log_in("t", server, PastedReceiver(paste), show, SystemClock())
    with pytest.raises(LoginRefusedError, match="does not belong to this login"):
        await log_in("t", server, PastedReceiver(paste_of_another), show, SystemClock())

    assert login.access_token.startswith("at-")
    assert "code_challenge_method=S256" in shown[0]
    assert "resource=http" in shown[0]


BROWSER = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).read()"


async def test_the_command_logs_in_by_the_browser_and_asks_the_server_what_it_offers(
    site: LoginSite, tmp_path: Path
) -> None:
    home = tmp_path / "soong"
    home.mkdir()
    (home / "config.toml").write_text(config_of(site))
    browser = tmp_path / "browser.py"
    browser.write_text(BROWSER)

    refused = await asyncio.to_thread(soong, "mcp", "login", "t", "--no-browser", home=tmp_path)
    done = await asyncio.to_thread(
        soong, "mcp", "login", "t", home=tmp_path, BROWSER=f"{sys.executable} -P {browser} %s"
    )

    assert refused.returncode != 0
    assert "open this page, log in, and allow the access" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert (done.returncode, done.stderr.count("waiting for the browser")) == (0, 1), done.stderr
    assert done.stdout == "logged in at t\nt: 3 tools, protocol 2026-07-28\n"
    login = LoginFolder(home).read("t", site.url)
    assert login is not None
    assert login.access_token not in done.stdout + done.stderr
    assert site.issuer.access[login.access_token].resource == site.url


async def test_the_commands_show_a_login_and_take_it_back(
    site: LoginSite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOONG_AGENT_HOME", str(tmp_path))
    (tmp_path / "config.toml").write_text(f"{config_of(site)}\n[mcp.servers.p]\ncommand = 'cat'\nenabled = false\n")
    await logged_in(site, tmp_path)

    def said(*words: str) -> str:
        return CliRunner().invoke(mcp.app, list(words)).output

    listed = await asyncio.to_thread(said, "list")
    checked = await check_servers(load_settings())
    out = await asyncio.to_thread(said, "logout", "t")
    again = await asyncio.to_thread(said, "logout", "t")
    after = await asyncio.to_thread(said, "list")
    program = await asyncio.to_thread(CliRunner().invoke, mcp.app, ["login", "p"])

    assert "logged in" in listed
    assert "t (logged in): 3 tools" in checked.says
    assert out == "logged out at t\n"
    assert len(site.issuer.revoked) == 1
    assert again == "there is no login at t\n"
    assert "logged in" not in after
    assert isinstance(program.exception, UsageError)
    assert "p is a program and not a server over HTTP" in str(program.exception)


@pytest.mark.parametrize("url", ["http://example.org/mcp", "http://169.254.169.254/mcp", "http://10.0.0.1/mcp"])
async def test_no_login_goes_over_a_network_in_the_clear(url: str) -> None:
    server = parse_config(f'[mcp.servers.t]\nurl = "{url}"').mcp.servers["t"]

    with pytest.raises(LoginRefusedError, match="is not https, so it gets no login"):
        await log_in("t", server, PastedReceiver(_nothing), visit, SystemClock())


async def test_a_remote_server_cannot_send_a_login_to_this_machine() -> None:
    from soong.shared.toolsets.mcp.login_auth import check_reach

    for url in ("http://127.0.0.1:8437/token", "http://localhost/token", "http://[::1]/token"):
        with pytest.raises(LoginRefusedError, match="is not https"):
            await check_reach(httpx2.URL(url), "https://mcp.example.org/mcp")
        await check_reach(httpx2.URL(url), "http://127.0.0.1:9000/mcp")


@pytest.mark.parametrize(
    ("url", "server", "is_refused"),
    [
        ("https://169.254.169.254/token", "https://8.8.8.8/mcp", True),
        ("https://169.254.169.254/token", "https://10.0.0.1/mcp", True),
        ("https://10.0.0.1/token", "https://8.8.8.8/mcp", True),
        ("https://localhost/token", "https://8.8.8.8/mcp", True),
        ("https://[::ffff:192.168.1.1]/token", "https://8.8.8.8/mcp", True),
        ("https://10.0.0.1/token", "https://10.0.0.2/mcp", False),
        ("https://1.1.1.1/token", "https://8.8.8.8/mcp", False),
        ("https://no-such-host.invalid/token", "https://8.8.8.8/mcp", False),
    ],
)
async def test_a_server_outside_has_no_authorization_server_inside(url: str, server: str, *, is_refused: bool) -> None:
    from soong.shared.toolsets.mcp.login_auth import check_reach

    refusal = pytest.raises(LoginRefusedError, match="leads to a private address") if is_refused else nullcontext()
    with refusal:
        await check_reach(httpx2.URL(url), server)


async def _nothing() -> str:
    return ""


class HostileIssuer:
    """Refuses every request to the MCP server, and answers the renewal of a token with ``said``, once or for ever."""

    def __init__(self, said: bytes, *, is_endless: bool = False) -> None:
        self.said, self.is_endless, self.sent = said, is_endless, 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        is_renewal = head.startswith(b"POST /token")
        status = b"200 OK" if is_renewal else b"401 Unauthorized"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n")
        try:
            while is_renewal:
                writer.write(self.said)
                await writer.drain()
                self.sent += len(self.said)
                if not self.is_endless or self.sent > 2**26:
                    break
        except ConnectionError:
            pass
        writer.close()


@pytest.mark.parametrize("is_endless", [True, False])
async def test_a_worker_reads_and_logs_little_of_what_an_authorization_server_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, *, is_endless: bool
) -> None:
    issuer = HostileIssuer(b" " * 65536 if is_endless else b'{"accessToken": "at-SECRET"}', is_endless=is_endless)
    server = await asyncio.start_server(issuer.serve, "127.0.0.1")
    base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    login = ServerLogin(
        server="t",
        url=f"{base}/mcp",
        client={"client_id": "c", "redirect_uris": ["http://127.0.0.1/"], "token_endpoint_auth_method": "none"},
        tokens={"access_token": "at-old", "refresh_token": "rt-old"},
    )
    LoginFolder(tmp_path).write(login)
    config = parse_config(f'[mcp.servers.t]\nurl = "{base}/mcp"').mcp.servers["t"]
    auth = LoginAuth("t", config, LoginFolder(tmp_path), SystemClock())
    async with server, httpx2.AsyncClient(auth=auth) as client:
        response = await client.post(f"{base}/mcp", json={})

    assert response.status_code == 401
    assert auth.problem.endswith("run `soong mcp login t`")
    assert issuer.sent < 2**25
    assert "at-SECRET" not in caplog.text


async def test_rights_that_a_server_names_are_words_for_a_shell(tmp_path: Path) -> None:
    evil = "a'$(id)"
    config = parse_config('[mcp.servers.t]\nurl = "https://t.example/mcp"').mcp.servers["t"]
    auth = LoginAuth("t", config, LoginFolder(tmp_path), SystemClock())
    challenge = {"WWW-Authenticate": f'Bearer error="insufficient_scope", scope="{evil}"'}
    transport = httpx2.MockTransport(lambda _request: httpx2.Response(403, headers=challenge))
    async with httpx2.AsyncClient(auth=auth, transport=transport) as client:
        await client.get(config.url)

    command = auth.problem.split("`")[1]
    assert shlex.split(command)[-1] == evil
    assert f"--scope {shlex.quote(evil)}" in command
