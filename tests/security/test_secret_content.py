"""Content that is withheld: secrets and keys, and what a rule keeps back."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soong.shared.permissions.configured import withheld_by_rule
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Effect, Rule, Scope, ScopeKind
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.result import ErrorType
from soong.shared.toolsets.code.toolset import CodeTools
from tests.security.scene import PolicyGate, SecurityHarness, make_scene
from tests.unit.tools.parts import PipelineHarness, make_bench
from tests.unit.toolsets.parts import declared

LETTERS = "MC4CAQAwBQYDK2VwBCIEIBGHw4DZ"
BODY = f"{LETTERS}0123456789abcdefghijklmnopqrstuvwxyz\n{LETTERS}second0line0of0the0key0ABCDEFGHIJKLMNO\n"
PEM = f"-----BEGIN PRIVATE KEY-----\n{BODY}-----END PRIVATE KEY-----\n"

NAMED = (
    *(".netrc", ".npmrc", ".pypirc", ".pgpass", ".my.cnf", ".kube/config", ".docker/config.json", ".git-credentials"),
    *(
        *(".config/gh/hosts.yml", ".bash_history", ".zsh_history", ".python_history", "prod.env"),
        *("deploy/prod.env", ".envrc"),
    ),
    *(
        *("etc/shadow", "etc/gshadow", "etc/shadow-", "a.p12", "a.pfx", "a.kdbx", "a.keystore", "a.jks"),
        *("a.ppk", "x/id_rsa"),
    ),
    *(
        "id_ed25519",
        "id_ecdsa_work",
        ".terraform.d/credentials.tfrc.json",
        ".terraformrc",
        "x.tfstate",
        ".azure/a.json",
    ),
    *(".oci/config", ".vault-token", ".htpasswd", ".cargo/credentials.toml", ".local/share/fish/fish_history"),
    "soong-backup-20261125T141259Z.tar.gz",
    *(".claude/.credentials.json", ".claude.json", ".codex/auth.json", ".gemini/oauth_creds.json"),
    *(".config/github-copilot/apps.json", ".local/share/opencode/auth.json", ".kube/admin.conf", ".rclone.conf"),
    *("credentials.json", "service-account.json", "secrets.yaml", ".mcp-auth.json", ".mcp-auth/x/tokens.json"),
)
LOGINS = {
    "a member of JSON": '{"claudeAiOauth": {"accessToken": "opaque-0123456789abcdef"}}',
    "a member in a line of INI": '[remote]\ntoken = {"access_token":"ya29.0123456789abcdef"}\n',
    "a line of YAML": "hosts:\n  - refresh_token: 1//0gABCDEFGHIJKLMNOP\n",
    "a line of an environment": "export_me=1\nACME_CLIENT_SECRET=0123456789abcdef0123\n",
    "a key of a cluster": "users:\n- user:\n    client-key-data: LS0tLS1CRUdJTiBSU0Eg\n",
    "a service account": '{"type": "service_account", "private_key": "MIIEvQIBADANBgkqhkiG9w0"}',
}
NO_LOGINS = {
    "code that gets one": "access_token = fetch_token(client_id_1, scopes)\nself.refresh_token = access_token\n",
    "a place for one": "client_secret: ${ACME_CLIENT_SECRET_1}\napi_key: <your key 0123456789>\n",
    "words about one": '{"access_token": "The token of 2 hours that we issue"}\nprivate_key: path/to/the/key\n',
    "below the head": "#\n" * 2100 + "refresh_token: 1//0gABCDEFGHIJKLMNOP\n",
}


@pytest.fixture
def scene(tmp_path: Path) -> SecurityHarness:
    return make_scene(tmp_path)


def rows(result: Any) -> list[str]:
    return [f"{row['path']}:{row['text']}" for row in result.data["matches"]]


@pytest.mark.spec("FS-06.b", "FS-06.c", "FS-06.d")
@pytest.mark.parametrize("name", NAMED)
async def test_a_well_known_secret_asks_and_is_left_out(scene: SecurityHarness, name: str) -> None:
    scene.file(name, "canary\n")

    read = await scene.outcome("read_file", path=name)
    found = await scene.call("search", query="canary")
    listed = await scene.call("list_dir", recursive=True)

    assert read == "asked"
    assert "canary" not in json.dumps(found.data)
    assert found.data["left_out"] == 1  # type: ignore[index,call-overload]
    assert listed.data["left_out"] >= 1  # type: ignore[index,call-overload,operator]
    assert scene.bench.log.ends


@pytest.mark.spec("FS-06.b")
@pytest.mark.parametrize("name", ["deploy_key", "signing_key", "notes.txt", "src/fixture.py"])
@pytest.mark.parametrize("start", [1, 2, 3])
async def test_a_key_asks_whatever_it_is_called_wherever_the_page_begins(
    scene: SecurityHarness, name: str, start: int
) -> None:
    scene.file(name, PEM)

    read = await scene.outcome("read_file", path=name, start_line=start, max_lines=1)
    edited = await scene.outcome("edit_file", path=name, edits=[{"old": LETTERS, "new": "x"}])
    searched = await scene.outcome("search", path=name, query=LETTERS)

    assert (read, edited, searched) == ("asked", "asked", "asked")


@pytest.mark.spec("FS-06.b", "FS-06.d")
@pytest.mark.parametrize("text", LOGINS.values(), ids=LOGINS)
async def test_a_login_asks_whatever_its_file_is_called(scene: SecurityHarness, text: str) -> None:
    scene.file("notes.txt", text)

    read = await scene.outcome("read_file", path="notes.txt")
    found = await scene.call("search", query=".")

    assert read == "asked"
    assert rows(found) == []
    assert found.data["left_out"] == 1  # type: ignore[index,call-overload]


@pytest.mark.parametrize("text", NO_LOGINS.values(), ids=NO_LOGINS)
async def test_a_text_that_only_speaks_of_a_login_is_read(scene: SecurityHarness, text: str) -> None:
    scene.file("notes.txt", text)

    assert await scene.outcome("read_file", path="notes.txt") == "ok"
    assert (await scene.call("search", query=".")).data["count"] > 0  # type: ignore[index,call-overload,operator]


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize(
    "name",
    ["CLAUDE.md", "sub/AGENTS.md", ".gitattributes", ".gitmodules", ".git/info/attributes", ".idea/workspace.xml"],
)
async def test_what_steers_other_programs_is_written_by_no_rule_for_the_project(
    scene: SecurityHarness, name: str
) -> None:
    scene.file(name, "one\n")

    written = await scene.outcome("write_file", path=name, content="two\n", overwrite=True)
    edited = await scene.outcome("edit_file", path=name, edits=[{"old": "one", "new": "two"}])
    read = await scene.outcome("read_file", path=name)

    assert (written, edited, read) == ("asked", "asked", "ok")
    assert all("-one" in call.target.preview for call in scene.gate.asked)


@pytest.mark.spec("FS-06.b")
async def test_a_rule_for_the_folder_is_none_for_the_key_in_it(scene: SecurityHarness) -> None:
    """The scene's rule lets the project be written; a key is not overwritten by it."""
    scene.file("deploy_key", PEM)

    assert await scene.outcome("write_file", path="deploy_key", content="x", overwrite=True) == "asked"
    assert await scene.outcome("write_file", path="other", content="x") == "ok"
    assert LETTERS not in repr([call.target for call in scene.gate.asked])


@pytest.mark.spec("FS-06.d")
@pytest.mark.parametrize("query", [LETTERS, ".", "PRIVATE", "^MC4", "nothing of it"])
async def test_a_search_leaves_keys_out_and_counts_them_whatever_it_looks_for(
    scene: SecurityHarness, query: str
) -> None:
    scene.file("deploy_key", PEM)
    scene.file("wide.txt", PEM.encode("utf-16"))
    scene.file("plain.txt", "a line\n")

    result = await scene.call("search", query=query)

    assert not [row for row in rows(result) if not row.startswith("plain.txt")]
    assert result.data["left_out"] == 2  # type: ignore[index,call-overload]


@pytest.mark.spec("FS-06.d", "EVT-05")
async def test_the_lines_of_a_key_below_are_no_part_of_a_search(scene: SecurityHarness) -> None:
    """Nor do they count: a limit or a count that changed would tell letter by letter what stands there."""
    scene.file("server.log", "start\n" * 3000 + PEM + "end\n")

    inside = await scene.call("search", query=f"^{LETTERS}")
    one_file = await scene.call("search", query=f"^{LETTERS}", path="server.log")
    around = await scene.call("search", query="^end$")

    assert (rows(inside), rows(one_file)) == ([], [])
    assert inside.data["left_out"] == 0  # type: ignore[index,call-overload]
    assert "partial" not in inside.data  # type: ignore[operator]
    assert rows(around) == ["server.log:end"]


@pytest.mark.spec("EVT-05")
@pytest.mark.parametrize("start", [3001, 3002, 3003, 3004])
async def test_a_page_that_begins_inside_a_key_shows_nothing_of_it(scene: SecurityHarness, start: int) -> None:
    scene.file("server.log", "start\n" * 3000 + PEM + "end\n")

    result = await scene.call("read_file", path="server.log", start_line=start)

    assert LETTERS not in repr((result, scene.bench.log.ends))
    assert "end" in result.data["text"]  # type: ignore[index,call-overload,operator]


@pytest.mark.spec("EVT-05")
async def test_pages_of_one_line_show_nothing_of_a_key(scene: SecurityHarness) -> None:
    scene.file("server.log", "start\n" * 2000 + PEM + "end\n")

    shown = [
        (await scene.call("read_file", path="server.log", start_line=line, max_lines=1)).data["text"]  # type: ignore[index,call-overload]
        for line in range(2000, 2006)
    ]

    assert LETTERS not in repr(shown)
    assert (shown[0], shown[-1]) == ("start\n", "end\n")


@pytest.mark.spec("FS-06.b")
async def test_a_file_that_becomes_a_key_after_it_was_checked_is_not_read(scene: SecurityHarness) -> None:
    path = scene.file("late.txt", "harmless\n")
    allowed = scene.bench.gate.decide

    async def decide(call: Any) -> Any:
        path.write_text(PEM)
        return await allowed(call)

    scene.bench.gate.decide = decide  # type: ignore[method-assign]

    result = await scene.call("read_file", path="late.txt")

    assert result.error is not None
    assert result.error.type in {ErrorType.PATH_CONFLICT, ErrorType.PERMISSION_DENIED}


FILES = (
    *("a.txt", "private/payroll.txt", "private/deep/x.txt", "private.txt", "drafts/[1]*.txt"),
    *("drafts/!b.txt", "Private/y.txt"),
)
STEP = "task/s"


def scoped(
    effect: Effect, pattern: str, path: Path | None, *, step: str = "", tags: frozenset[str] = frozenset()
) -> Rule:
    scope = None if path is None else Scope(ScopeKind.PATH, str(path))
    return Rule(effect, pattern, tags, scope, step=step)


def bench_of(root: Path, rules: tuple[Rule, ...]) -> PipelineHarness:
    """Return the real tools under the real policy with nobody to ask, in a run of a step."""
    for number, name in enumerate(FILES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"needle {number}\n")
    tools, policy = CodeTools(PathPolicy(root.parent / "home")).tools(), Policy(rules)
    bench = make_bench(tools, project=root, place={"withheld": withheld_by_rule(policy, tools, "")})
    bench.gate.decide = PolicyGate(policy).decide  # type: ignore[method-assign]
    return bench


async def called(bench: PipelineHarness, name: str, **arguments: Any) -> Any:
    return declared(bench, await bench.call(name, arguments), name)


def shown(result: Any) -> set[str]:
    """Return the files that a result of a search or a listing names."""
    if result.error is not None:
        return set()
    found = result.data.get("matches", result.data.get("entries"))
    return {row["path"] for row in found}


DENIED = ("private/payroll.txt", "private/deep/x.txt")


@pytest.mark.spec("FS-06", "PER-10.c")
@pytest.mark.parametrize("effect", [Effect.DENY, Effect.ASK])
@pytest.mark.parametrize("pattern", ["*", "code.*", "code.search", "code.read_file"])
async def test_a_search_from_above_a_withheld_folder_leaves_it_out_and_counts(
    tmp_path: Path, effect: Effect, pattern: str
) -> None:
    root = tmp_path / "project"
    bench = bench_of(root, (scoped(effect, pattern, root / "private"),))

    found = await called(bench, "code.search", query="needle")
    nothing = await called(bench, "code.search", query="no such words")
    named = await called(bench, "code.search", query="needle", glob="**/payroll.txt")
    inside = await called(bench, "code.search", query="needle", path="private")

    assert shown(found) == set(FILES) - set(DENIED)
    assert (found.data["left_out"], nothing.data["left_out"], named.data["left_out"]) == (2, 2, 2)
    assert (shown(named), shown(inside)) == (set(), set())
    assert "[2 files left out: sensitive, hard-linked, or withheld by a rule]" in repr(found.content)


@pytest.mark.spec("FS-06", "PER-10.c")
@pytest.mark.parametrize("effect", [Effect.DENY, Effect.ASK])
@pytest.mark.parametrize("is_recursive", [True, False])
async def test_a_listing_from_above_a_withheld_folder_leaves_it_out_and_counts(
    tmp_path: Path, effect: Effect, is_recursive: bool
) -> None:
    root = tmp_path / "project"
    bench = bench_of(root, (scoped(effect, "code.list_dir", root / "private"),))

    listed = await called(bench, "code.list_dir", recursive=is_recursive)

    assert "private" not in shown(listed)
    assert not shown(listed) & set(DENIED)
    assert "Private" in shown(listed)
    assert listed.data["left_out"] == 1


@pytest.mark.spec("PER-10.c")
async def test_a_rule_of_a_step_withholds_from_that_step_alone(tmp_path: Path) -> None:
    root = tmp_path / "project"
    tools = CodeTools(PathPolicy(tmp_path / "home")).tools()
    policy = Policy((scoped(Effect.DENY, "code.*", root / "private", step=STEP),))

    of_it, of_a_child, of_another = (withheld_by_rule(policy, tools, step) for step in (STEP, f"{STEP}[a]", "task/t"))

    assert [one.path for one in of_it] == [root / "private"] == [one.path for one in of_a_child]
    assert of_another == ()


@st.composite
def rules(draw: st.DrawFn) -> tuple[tuple[Effect, str, str | None, frozenset[str]], ...]:
    one = st.tuples(
        st.sampled_from([Effect.DENY, Effect.ASK, Effect.ALLOW]),
        st.sampled_from(["*", "code.*", "code.read_file", "code.search", "code.list_dir", "code.r*", "mcp.*"]),
        st.sampled_from(
            [None, "", "private", "private/deep", "private/payroll.txt", "drafts", "drafts/[1]*.txt", "a.txt"]
        ),
        st.sampled_from([frozenset(), frozenset({"readonly"}), frozenset({"network"})]),
    )
    return tuple(draw(st.lists(one, max_size=4)))


@pytest.mark.spec("FS-06", "PER-10.c")
@settings(max_examples=60)
@given(given_rules=rules(), base=st.sampled_from([".", "private", "private/deep", "drafts", "a.txt"]))
def test_nothing_that_a_read_would_be_refused_comes_out_of_a_search(
    given_rules: tuple[tuple[Effect, str, str | None, frozenset[str]], ...], base: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "project"
        made = tuple(
            scoped(effect, pattern, None if place is None else root / place, tags=tags)
            for effect, pattern, place, tags in given_rules
        )
        bench = bench_of(root, made)
        asyncio.run(_no_search_shows_more_than_reads(bench, base))


async def _no_search_shows_more_than_reads(bench: PipelineHarness, base: str) -> None:
    is_readable = {name: (await called(bench, "code.read_file", path=name)).error is None for name in FILES}
    is_listable = {name: (await called(bench, "code.list_dir", path=name)).error for name in FILES}

    found = await called(bench, "code.search", query="needle", path=base)
    listed = await called(bench, "code.list_dir", path=base if base != "a.txt" else ".", recursive=True)

    assert all(is_readable[name] for name in shown(found) & set(FILES)), json.dumps(found.data)
    refused = {name for name, error in is_listable.items() if error is not None and error.type.is_denial}
    assert not shown(listed) & refused
