"""What reading resources of servers counts as: never less than calling a tool of the least trusted one."""

from typing import Final

import pytest

from soong.shared.core.config import parse_config
from soong.shared.core.identity import Role
from soong.shared.permissions.configured import policy_of, surface_request
from soong.shared.permissions.policy import evaluate
from soong.shared.tools.definition import Permission, ToolDefinition
from soong.shared.tools.hooks.chain import HookCall, Hooks, Matcher, NamedHook, PreOutcome
from soong.shared.tools.ports import Verdict
from soong.shared.tools.registry import MAX_TIMEOUT
from soong.shared.tools.surface import compute_surface
from soong.shared.toolsets.mcp.catalogue import ServerSnapshot, config_digest
from soong.shared.toolsets.mcp.toolset import ResourceTools, servers_of
from tests.unit.tools.parts import PipelineHarness, make_bench

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
