"""What users of other systems incidents from around consent: each public thread is named by a test that proves better.

The threads are those about approvals from children, who is asking, an approver who is away, and tools that a child has
or lacks. A test names a thread in its docstring as ``owner/repository#number``; the owner may be left out, and further
numbers of the same repository stand as ``#number`` behind it.
"""

import ast
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Final

import pytest

from tests.spec_document import ROOT

CHILDREN_ASK: Final = (
    "anthropics/claude-code#36042",
    "anthropics/claude-code#47339",
    "anthropics/claude-code#34095",
    "anthropics/claude-code#32402",
    "ClickHouse/nerve#150",
    "QwenLM/qwen-code#4928",
    "openai/codex#45167",
    "openai/codex#23324",
    "openai/codex#23664",
    "google/adk-python#3649",
    "google/adk-web#121",
    "microsoft/agent-framework#4963",
    "pydantic/pydantic-ai#4302",
    "pydantic/pydantic-ai#3274",
    "pydantic/pydantic-ai#3527",
    "langchain-ai/deepagents#554",
    "langchain-ai/deepagentsjs#130",
    "langchain-ai/deepagentsjs#131",
    "mastra-ai/mastra#20934",
    "spyrae/kronos-agent-os#25",
    "openJiuwen-ai/agent-core#963",
    "code-yeongyu/oh-my-openagent#4447",
    "letta-ai/letta-code#2578",
)
WHO_ASKS: Final = (
    "anomalyco/opencode#15332",
    "anomalyco/opencode#20280",
    "QwenLM/qwen-code#3960",
    "github/copilot-cli#3684",
    "anthropics/claude-code#85023",
    "anthropics/claude-code#16529",
)
APPROVER_AWAY: Final = (
    "MoonshotAI/kimi-cli#1823",
    "Dicklesworthstone/mcp_agent_mail#151",
    "use-agent-os/agent-os#1597",
    "NousResearch/hermes-agent#114747",
    "Agenta-AI/agenta#6823",
    "librefang/librefang#1797",
    "wildware-uk/agent-dashboard#15",
    "coalesce-labs/catalyst#1301",
    "makecindy/cindy#944",
)
TOOLS_OF_CHILDREN: Final = (
    "anthropics/claude-code#78063",
    "lvndry/jazz#336",
    "antiv/mate#101",
    "jin-bo/agentao#255",
    "HazAT/pi-interactive-subagents#41",
    "vastsa/PI-Desktop#215",
    "anomalyco/opencode#9554",
    "anthropics/claude-code#95614",
    "mattmezza/humux#67",
)
APPLYING: Final = (*CHILDREN_ASK, *WHO_ASKS, *APPROVER_AWAY, *TOOLS_OF_CHILDREN)

NOT_APPLYING: Final[Mapping[str, str]] = {
    "QwenLM/qwen-code#4955": "a change and no complaint: it mends #4928, which has its test",
    "openai/codex#11464": "a change to the opposite, children never ask; here every role asks, as #45167 wants",
    "anomalyco/opencode#40152": "a change and no complaint: it mends #9554, which has its test",
}
"""Threads of the same subjects that no test names, and why."""

_THREAD: Final = re.compile(r"(?:[\w.-]+/)?([\w.-]*[A-Za-z][\w.-]*)?#(\d+)")


def threads_in(docstring: str) -> Iterator[str]:
    """Return what a docstring names, as ``repository#number``."""
    repository = ""
    for match in _THREAD.finditer(docstring):
        repository = match[1] or repository
        yield f"{repository}#{match[2]}"


@cache
def named() -> frozenset[str]:
    """Return the threads that docstrings of tests name."""
    found: set[str] = set()
    for path in (ROOT / "tests").rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                found.update(threads_in(ast.get_docstring(node) or ""))
    return frozenset(found)


def short(thread: str) -> str:
    return thread.partition("/")[2]


@pytest.mark.parametrize("thread", APPLYING)
def test_a_thread_that_applies_is_named_by_a_test(thread: str) -> None:
    assert short(thread) in named(), f"no test names {thread} in its docstring"


def test_a_thread_either_applies_or_has_a_reason_why_not() -> None:
    assert len(set(APPLYING)) == len(APPLYING)
    assert [thread for thread in NOT_APPLYING if thread in APPLYING or short(thread) in named()] == []


def test_a_second_number_is_of_the_repository_before_it() -> None:
    text = "one/first#1, #22: told (second#3); a line of its own, #4, and one/first#12."

    assert list(threads_in(text)) == ["first#1", "first#22", "second#3", "second#4", "first#12"]
