import pytest

from soong.orchestrator.client.tool_registry import registry_of
from soong.shared.core.config import parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.core.identity import Role
from soong.shared.permissions.configured import surface_request
from soong.shared.tools.surface import Surface, compute_surface, narrow, toolset_of
from soong.shared.toolsets.sources import ToolEnvironment
from tests.unit.tools.parts import make_tool

FILES = {"code.read_file", "code.list_dir", "code.search", "code.write_file", "code.edit_file"}


def surface(config: str, role: Role = Role.MAIN) -> Surface:
    tools = (*registry_of(ToolEnvironment()).definitions(), make_tool("mcp.git.log"), make_tool("mcp.web.get"))
    return compute_surface(tools, surface_request(parse_config(config), role))


@pytest.mark.spec("REG-12.a")
@pytest.mark.parametrize(
    ("name", "toolset"),
    [
        ("code.search", "filesystem"),
        ("code.write_file", "filesystem"),
        ("code.run_command", "commands"),
        ("internal.load_skill", "skills"),
        ("internal.recall_memory", "memory"),
        ("agent.task_create", "tasks"),
        ("agent.plan_template", "tasks"),
        ("agent.dispatch_worker", "agents"),
        ("mcp.git.log", "mcp.git"),
        ("web.fetch", "web"),
        ("team.square", "team"),
    ],
)
def test_every_tool_is_in_one_toolset(name: str, toolset: str) -> None:
    assert toolset_of(name) == toolset


@pytest.mark.spec("REG-12.b", "ETS-08")
def test_a_toolset_is_reduced_tool_by_tool() -> None:
    reduced = surface('[toolsets]\nfilesystem = ["code.read_file", "*.search"]')

    assert set(reduced.tools) & FILES == {"code.read_file", "code.search"}
    decision = reduced.explain("code.write_file")
    assert decision is not None
    assert decision.rule == "config toolsets.filesystem lists other tools"
    assert set(reduced.tools) - FILES == set(surface("").tools) - FILES


@pytest.mark.spec("REG-12.b")
def test_a_worker_takes_away_what_its_own_configuration_switches_off() -> None:
    tools = registry_of(ToolEnvironment()).definitions()
    request = surface_request(parse_config("[toolsets]\nfilesystem = false"), Role.WORKER)

    assert FILES.isdisjoint(tool.name for tool in narrow(tools, request))


@pytest.mark.parametrize("value", ["7", '"off"', "[1]", "{}"])
def test_a_switch_is_true_false_or_a_list(value: str) -> None:
    with pytest.raises(InvalidConfigError, match="toolsets"):
        parse_config(f"[toolsets]\nmemory = {value}")
