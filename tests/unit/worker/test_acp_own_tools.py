"""What a call of another agent's own tool touches, as a question and the policy see it (ACP-01)."""

from pathlib import Path

import pytest

from soong.shared.agents.acp_agents import AcpAgent, OwnKind
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import ToolContext
from soong.worker.acp.own_tools import own_tools
from tests.unit.tools.parts import echo, make_identity, make_run_dirs, make_tool


@pytest.mark.spec("ACP-01.b", "FS-07")
@pytest.mark.parametrize("kind", [OwnKind.READ, OwnKind.EDIT])
@pytest.mark.parametrize(("names", "expected"), [(("a", "b"), True), (("a", "../b"), False), (("../a", "b"), False)])
def test_a_call_over_several_files_is_inside_only_if_all_of_them_are(
    tmp_path: Path, kind: OwnKind, names: tuple[str, ...], expected: bool
) -> None:
    surface = [make_tool("code.read_file"), make_tool("code.write_file")]
    agent = AcpAgent("scripted", ("agent",))
    tools = {tool.name: tool for tool in own_tools(agent, surface, PathPolicy(), echo, echo)}
    (tmp_path / "project").mkdir()
    place = make_run_dirs(tmp_path / "project")
    context = ToolContext(make_identity(), place, "c", "e", 1, None)  # type: ignore[arg-type]  # no progress is made

    target = tools[agent.tool(kind)].target
    assert target is not None

    assert target(context, {"title": "x", "kind": kind.value, "paths": list(names)}).is_inside_roots is expected
