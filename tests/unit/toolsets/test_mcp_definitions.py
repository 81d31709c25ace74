"""What a server's tools become: names, permission, what is left out; and what its hints can and cannot change."""

from datetime import timedelta
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.identity import Role
from soong.shared.core.program_config import McpServerConfig
from soong.shared.permissions.configured import policy_of, surface_request
from soong.shared.permissions.policy import evaluate
from soong.shared.permissions.rules import reads_untrusted
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.hooks.chain import Hooks
from soong.shared.tools.hooks.hook import HookCall, Matcher, NamedHook, PreOutcome
from soong.shared.tools.naming import NameTable
from soong.shared.tools.permission_check import effective_traits, risk_of
from soong.shared.tools.ports import Verdict
from soong.shared.tools.registry import MAX_TIMEOUT, ToolRegistry
from soong.shared.tools.surface import compute_surface
from soong.shared.toolsets.mcp.catalogue import ServerSnapshot, config_digest, sound_tools
from soong.shared.toolsets.mcp.definitions import ServerTools, tools_of
from soong.shared.toolsets.mcp.toolset import ResourceTools, servers_of
from tests.unit.tools.parts import PipelineHarness, make_bench

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}}
MOST = timedelta(minutes=10)


def made(*natives: dict[str, Any], server: str = 'command = "x"', name: str = "s") -> ServerTools:
    config = parse_config(f"[mcp.servers.{name}]\n{server}")
    entry = config.mcp.servers[name]
    tools, _ = sound_tools([{"inputSchema": SCHEMA, **native} for native in natives])
    return tools_of(ServerSnapshot(name, config_digest(entry), tools=tools), entry, servers_of(None, config), MOST)


def one(native: dict[str, Any], server: str = 'command = "x"') -> ToolDefinition:
    (definition,) = made(native, server=server).definitions
    return ToolRegistry().register(definition)


@pytest.mark.spec("MCP-01.b", "MCP-01.j", "REG-02")
def test_names_are_canonical_and_what_cannot_be_a_tool_is_left_out_with_its_reason() -> None:
    found = made(
        {"name": "readFile"},
        {"name": "a.b/c"},
        {"name": "READFILE"},
        {"name": "bad", "inputSchema": {"type": "string"}},
        {"name": "x" * 200},
        {"name": "hide_me"},
        server='command = "x"\nhidden_tools = ["hide_*"]',
    )

    assert [tool.name for tool in found.definitions] == ["mcp.s.a_b_c", "mcp.s.readfile"]
    assert found.definitions[1].metadata["native_name"] == "readFile"
    reasons = {each.tool[:8]: each.reason for each in found.excluded}
    assert "has the name 'mcp.s.readfile' already" in reasons["READFILE"]
    assert "tool takes named arguments" in reasons["bad"]
    assert "not a canonical name" in reasons["xxxxxxxx"]
    assert "hidden by 'hide_*'" in reasons["hide_me"]


@pytest.mark.spec("MCP-01.b")
def test_a_tool_at_a_url_whose_arguments_are_no_headers_is_left_out() -> None:
    def native(header: str) -> dict[str, Any]:
        region = {"type": "string", "x-mcp-header": header}
        return {"name": f"by_{len(header)}", "inputSchema": {"type": "object", "properties": {"region": region}}}

    found = made(native("Region"), native("Bad\r\nHeader"), server='url = "https://h/"')

    assert [tool.name for tool in found.definitions] == ["mcp.s.by_6"]
    assert "not an RFC 9110 token" in found.excluded[0].reason


HINTS = {"read_only_hint": True, "open_world_hint": False}


@pytest.mark.spec("PER-11.d", "MCP-01.h", "PER-21.a")
@pytest.mark.parametrize("hints", [HINTS, {"readOnlyHint": True, "openWorldHint": False}], ids=["snake", "camel"])
def test_only_a_trusted_server_makes_a_tool_read_only(hints: dict[str, Any]) -> None:
    doubted = one({"name": "look", "annotations": hints})
    trusted = one({"name": "look", "annotations": hints}, 'command = "x"\ntrusted = true')
    contradicting = one(
        {"name": "look", "annotations": {"readOnlyHint": True, "read_only_hint": False}},
        'command = "x"\ntrusted = true',
    )

    assert (doubted.permission, doubted.reaches_out) == (Permission.WRITE, True)
    assert (trusted.permission, trusted.reaches_out) == (Permission.READONLY, False)
    assert contradicting.permission is Permission.WRITE
    assert all(map(reads_untrusted, (doubted, trusted)))


@pytest.mark.spec("PER-09.e")
def test_a_server_at_a_url_is_a_network_tool_of_its_host_whatever_it_says() -> None:
    tool = one({"name": "look", "annotations": HINTS}, 'url = "https://API.example.org/mcp"\ntrusted = true')
    tagged = one({"name": "look"}, 'command = "x"\ntags = ["network", "dangerous"]')

    assert "network" in tool.tags
    assert tool.reaches_out
    assert tool.target is not None
    assert tool.target(None, {}).host == "api.example.org"  # type: ignore[arg-type]
    assert {"network", "dangerous", "mcp"} <= tagged.tags


_BOOLS = st.sampled_from([True, False, None, "yes", 1])


@pytest.mark.spec("MCP-01.h", "REG-05")
@given(
    hints=st.dictionaries(
        st.sampled_from(["readOnlyHint", "read_only_hint", "destructiveHint", "openWorldHint", "idempotentHint"]),
        _BOOLS,
    ),
    name=st.sampled_from(["look", "delete_all", "run_shell"]),
)
def test_no_hint_of_a_server_lowers_a_risk(hints: dict[str, Any], name: str) -> None:
    bare, hinted = one({"name": name}), one({"name": name, "annotations": hints})
    before, after = effective_traits(bare, {}), effective_traits(hinted, {})

    assert risk_of(hinted, after) >= risk_of(bare, before)
    assert after.is_open_world
    assert not after.is_read_only
    assert hinted.tags == bare.tags


@pytest.mark.spec("MCP-01.h")
@pytest.mark.parametrize(
    "change",
    [{"description": "Send it."}, {"annotations": {"readOnlyHint": True}}, {"inputSchema": {"type": "object"}}],
    ids=["words", "hints", "schema"],
)
def test_whatever_changes_of_a_tool_changes_the_scope_of_its_grants(change: dict[str, Any]) -> None:
    before, after = one({"name": "look", "description": "Look."}), one({"name": "look", **change})

    assert before.metadata["definition"] != after.metadata["definition"]
    other_program = one({"name": "look", "description": "Look."}, 'command = "y"')
    assert before.metadata["definition"] != other_program.metadata["definition"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[mcp.servers.soong]\ncommand = "x"', "name of Soong's own server"),
        ('[mcp.servers."Bad Name"]\ncommand = "x"', "not a name of a server"),
        ("[mcp.servers.a]", "needs either command"),
        ('[mcp.servers.a]\ncommand = "x"\nurl = "http://h/"', "needs either command"),
        ('[mcp.servers.a]\nurl = "ftp://h/"', "not an http or https URL"),
        ('[mcp.servers.a]\nurl = "http://u:p@h/"', "by reference"),
        ('[mcp.servers.a]\nurl = "http://h/"\nargs = ["x"]', "belong to a command"),
        ('[mcp.servers.a]\ncommand = "x"\nheaders = {A = "b"}', "belong to a url"),
        ('[mcp.servers.a]\ncommand = "./x"', "relative path"),
        ('[mcp.servers.a]\ncommand = "x"\ntags = ["No Tag"]', "is not a tag"),
        ('[mcp.servers.a]\ncomand = "x"', "known here: command, args"),
    ],
)
def test_a_wrong_server_is_refused_with_the_place_and_the_reason(text: str, words: str) -> None:
    with pytest.raises(InvalidConfigError, match=words) as refused:
        parse_config(text)

    assert "mcp.servers" in str(refused.value)


@pytest.mark.spec("EVT-05")
def test_what_a_server_refers_to_is_known_as_a_secret() -> None:
    config: Config = parse_config(
        '[mcp.servers.a]\nurl = "http://h/"\n'
        'headers = {Authorization = "Bearer ${env:TOKEN}", X = "file:/k/y", H = "${env:HOME}"}'
    )

    assert config.secret_env == ("TOKEN",)
    assert [str(path) for path in config.secret_files] == ["/k/y"]


@pytest.mark.spec("MCP-01.h", "PER-11")
@pytest.mark.parametrize("destructive", ["destructiveHint", "destructive_hint"])
def test_a_tool_that_is_said_to_only_read_and_to_destroy_writes(destructive: str) -> None:
    both = one(
        {"name": "look", "annotations": {"readOnlyHint": True, destructive: True}}, 'command = "x"\ntrusted = true'
    )

    assert both.permission is Permission.WRITE


SECTION = {"command": "x", "args": ["a"], "env": {"A": "env:A"}, "protocol": "auto", "trusted": False, "tags": ["t"]}
AT_URL = {"url": "https://h/", "headers": {"A": "env:A"}, "oauth": {"client_id": "c"}}


@pytest.mark.spec("MCP-01.h")
@pytest.mark.parametrize(
    ("section", "change"),
    [
        *[(SECTION, change) for change in ({"command": "y"}, {"args": ["a", "b"]}, {"env": {"A": "env:B"}})],
        *[(SECTION, change) for change in ({"protocol": "stateless"}, {"trusted": True}, {"tags": ["t", "network"]})],
        *[(AT_URL, change) for change in ({"url": "https://i/"}, {"headers": {"A": "env:B"}})],
        (AT_URL, {"oauth": {"client_id": "d"}}),
    ],
    ids=",".join,
)
def test_a_grant_holds_for_the_section_of_its_server(section: dict[str, Any], change: dict[str, Any]) -> None:
    before, after = (McpServerConfig.model_validate(each) for each in (section, {**section, **change}))

    assert config_digest(before) != config_digest(after)
    assert config_digest(before) == config_digest(before.model_copy(update={"timeout_s": 5.0, "tools": ("a",)}))


@pytest.mark.spec("REG-02", "REG-04", "MCP-01.j")
def test_names_in_any_script_are_distinct_and_reversible() -> None:
    natives = ["查询天气", "查询时间", "Größe", "Gro\u0308ße", "погода", "погода_2", "get_天気", "🔍", "_"]
    found = made(*({"name": name} for name in natives))
    table = NameTable(tool.name for tool in found.definitions)

    assert {each.tool for each in found.excluded} == {"Gro\u0308ße"}  # the same name in another form of Unicode
    for tool in found.definitions:
        assert table.to_canonical(table.to_provider(tool.name)) == tool.name
    names = {str(tool.metadata["native_name"]): tool.name.rpartition(".")[2] for tool in found.definitions}
    assert names["get_天気"].removeprefix("xn--").encode().decode("punycode") == "get_天気"
    assert names["_"] == "_"


# -- what reading resources of servers counts as: never less than calling a tool of the least trusted one
HERE: Final = '[mcp.servers.here]\ncommand = "x"\ntrusted = true\n'
AWAY: Final = '[mcp.servers.away]\nurl = "https://h.example/mcp"\ntrusted = true\ntags = ["crm"]\n'
TAGGED: Final = '[mcp.servers.tagged]\ncommand = "y"\ntags = ["network"]\ntrusted = true\n'
NO_NETWORK: Final = '[[permission.rules]]\neffect = "deny"\ntags = ["network"]\n'
READ: Final = "internal.read_mcp_resource"


@pytest.mark.spec("MCP-01.h", "MCP-01.i")
@pytest.mark.parametrize(
    ("more", "permission"),
    [("", Permission.WRITE), ("trusted = true", Permission.READONLY), ("resources = false", None)],
    ids=["not-trusted", "trusted", "off"],
)
def test_reading_a_resource_only_reads_where_each_server_is_trusted(more: str, permission: Permission | None) -> None:
    config = parse_config(f'[mcp.servers.a]\ncommand = "x"\ntrusted = true\n[mcp.servers.b]\ncommand = "y"\n{more}')
    servers = servers_of(None, config)
    for name in ("a", "b") if more != "resources = false" else ("b",):
        servers.keep(ServerSnapshot(name, config_digest(config.mcp.servers[name]), has_resources=True))

    tools = ResourceTools(servers, MAX_TIMEOUT).tools()

    assert {tool.permission for tool in tools} == ({permission} if permission else set())


def reading(text: str) -> tuple[ToolDefinition, ...]:
    """Return the tools over the servers of a configuration, all of which have resources."""
    config = parse_config(text)
    servers = servers_of(None, config)
    for name, server in config.mcp.servers.items():
        servers.keep(ServerSnapshot(name, config_digest(server), has_resources=True))
    return ResourceTools(servers, MAX_TIMEOUT).tools()


async def reads(bench: PipelineHarness, server: str) -> None:
    arguments = {"list": {"server": server}, "read": {"server": server, "uri": "note://1"}}
    await bench.call("internal.list_mcp_resources", arguments["list"])
    await bench.call(READ, arguments["read"])


DENIED: Final = Verdict(is_allowed=False, author="rule", reason="only what is asked matters here")


@pytest.mark.spec("PER-09.f", "REG-08.b")
@pytest.mark.parametrize(
    ("server", "is_refused"), [("here", False), ("away", True), ("tagged", True)], ids=["stdio", "url", "tagged"]
)
async def test_a_rule_on_the_network_refuses_only_servers_that_are_reached_over_it(
    server: str, *, is_refused: bool
) -> None:
    text = HERE + AWAY + TAGGED
    policy = policy_of(parse_config(NO_NETWORK + text))
    bench = make_bench(reading(text), verdict=DENIED)

    await reads(bench, server)

    assert len(bench.gate.asked) == 2
    verdicts = [evaluate(policy, asked) for asked in bench.gate.asked]
    assert {verdict.rule for verdict in verdicts} == ({"deny *[network]"} if is_refused else {"default"})


@pytest.mark.spec("PER-09.f", "REG-08.b")
def test_a_rule_on_the_network_takes_the_tools_away_where_every_server_is_reached_over_it() -> None:
    wanted = surface_request(parse_config(NO_NETWORK), Role.MAIN)
    mixed, over_network = reading(HERE + AWAY), reading(AWAY + TAGGED)

    assert len(compute_surface(mixed, wanted).tools) == 2
    assert compute_surface(over_network, wanted).tools == ()


@pytest.mark.spec("PER-09.f", "REG-08.b")
async def test_a_hook_on_a_tag_is_asked_about_the_servers_that_have_it() -> None:
    heard: list[object] = []

    async def hear(call: HookCall) -> PreOutcome:
        heard.append((call.call_input["server"], "crm" in call.definition.tags))
        return PreOutcome()

    hook = NamedHook("hears", hear, Matcher(tags=frozenset({"crm", "network"})))
    bench = make_bench(reading(HERE + AWAY), verdict=DENIED, hooks=Hooks((hook,)))

    await reads(bench, "here")
    await reads(bench, "away")

    assert heard == [("away", True)] * 2


@pytest.mark.spec("PER-08.a")
def test_a_dangerous_server_makes_the_tools_dangerous() -> None:
    tools = reading(HERE + AWAY.replace("crm", "dangerous"))

    assert all("dangerous" in tool.tags for tool in tools)
