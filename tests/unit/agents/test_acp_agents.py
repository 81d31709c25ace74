"""Which programs are agents, and under which names (ACP-01)."""

import pytest

from soong.shared.agents.acp_agents import OwnKind, acp_agents, acp_tool_names, with_acp
from soong.shared.agents.definition import builtin_definitions
from soong.shared.core.config import parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.tools.naming import check_name


@pytest.mark.spec("ACP-01.a")
def test_the_configuration_adds_agents_and_says_more_of_the_built_in_ones() -> None:
    text = '[acp.agents.mine]\ncommand = ["mine"]\n[acp.agents.claude-code]\nenv = ["ANTHROPIC_API_KEY"]\n'

    found = acp_agents(parse_config(text))

    assert set(found) == {"claude-code", "codex", "gemini", "mine"}
    assert found["claude-code"].command == ("claude-agent-acp",)
    assert (found["claude-code"].env, found["claude-code"].mode) == (("ANTHROPIC_API_KEY",), "default")
    assert "acp:mine" in with_acp(builtin_definitions(), parse_config(text)).ids
    for name in acp_tool_names(parse_config(text)):
        check_name(name)
    assert len(acp_tool_names(parse_config(text))) == 4 * len(OwnKind)


@pytest.mark.spec("ACP-01.a")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[acp.agents.mine]\nenv = []\n", "acp.agents.mine has no command"),
        ('[acp.agents.mine]\ncommand = ["x"]\nsession = {cwd = "/"}\n', "which Soong sets itself"),
        ('[acp.agents.Mine]\ncommand = ["x"]\n', "acp.agents.Mine"),
        ('[acp.agents.mine]\ncommand = "x y"\n', "takes a list"),
        ('[acp.agents.mine]\ncommand = ["x"]\nargs = ["y"]\n', "there is no such field; known here: command"),
    ],
    ids=["no command", "a reserved name", "capitals", "a text", "an unknown field"],
)
def test_what_is_wrong_with_an_entry_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        acp_agents(parse_config(text))
