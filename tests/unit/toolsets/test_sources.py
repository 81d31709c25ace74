"""What the assembly of sources makes of the configuration."""

from pathlib import Path

import pytest

from soong.shared.core.config import Config, parse_config
from soong.shared.tools.definition import ToolDefinition, Traits
from soong.shared.tools.result import ErrorType, ToolResult
from soong.shared.toolsets.sources import ToolEnvironment, make_registry
from tests.unit.tools.parts import make_bench
from tests.unit.tools.test_pipeline import DENIED
from tests.unit.toolsets.declaring import make_declared


@pytest.mark.spec("FS-09")
def test_the_programs_of_hooks_are_protected_but_not_the_folders_they_learn_of(tmp_path: Path) -> None:
    hook = tmp_path / "check.py"
    config = parse_config(f'[[hooks.pre]]\nname = "check"\ncommand = ["/usr/bin/python3", "{hook}", "{tmp_path}"]')

    policy = ToolEnvironment(config=config).paths

    assert policy.is_protected(hook)
    assert not policy.is_protected(tmp_path / "other.py")


@pytest.mark.spec("FS-09")
def test_the_modules_that_define_tools_are_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "teamtools.py").touch()
    (tmp_path / "teampack").mkdir()
    (tmp_path / "teampack/__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))

    policy = ToolEnvironment(config=Config(), modules=("teamtools", "teampack.own", "not_there.x", "")).paths

    assert policy.is_protected(tmp_path / "teamtools.py")
    assert policy.is_protected(tmp_path / "teampack/own.py")
    assert policy.is_protected(tmp_path / "teampack/own/inner.py")
    assert not policy.is_protected(tmp_path / "teampack/other.py")


@pytest.mark.spec("FS-08.a")
def test_the_instruction_files_are_those_of_the_configuration() -> None:
    config = parse_config('[instructions]\nfiles = ["RULES.md"]')

    read_file = make_registry(ToolEnvironment(config=config)).get("code.read_file")

    assert read_file is not None
    assert read_file.traits_of({"path": "a/RULES.md"}) == Traits(is_read_only=True, is_concurrency_safe=False)
    assert read_file.traits_of({"path": "AGENTS.md"}).is_concurrency_safe


MODULE = """
from soong import Permission, Toolset

tools = Toolset()

@tools.tool("team.from_module", permission=Permission.READONLY)
def from_module(text: str = "") -> str:
    '''Gives text back.'''
    return text
"""


@pytest.mark.spec("REG-01.b", "REG-01.c", "REG-07.a", "REG-07.e")
@pytest.mark.parametrize("name", ["code.list_dir", "team.from_module", "team.from_file"])
async def test_tools_of_every_source_are_called_in_one_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "sourcetools.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    declared = make_declared(tmp_path)
    declared.python("print('{\"data\": 1}')", name="team.from_file", permission="readonly")
    tools = make_registry(ToolEnvironment(home=declared.home, modules=("sourcetools",))).definitions()
    allowing = make_bench(tools, project=declared.project)
    denying = make_bench(tools, project=declared.project, verdict=DENIED)

    done, wrong = await allowing.call(name), await allowing.call(name, [])
    denied = await denying.call(name)

    assert isinstance(allowing.pipeline.resolve(name), ToolDefinition)
    assert (type(done), done.ok) == (ToolResult, True), done.error
    assert wrong.error is not None
    assert wrong.error.type is ErrorType.INVALID_INPUT
    assert denied.error is not None
    assert denied.error.type is ErrorType.PERMISSION_DENIED
    assert [call.tool for call, _, _ in (*allowing.log.ends, *denying.log.ends)] == [name] * 3
    assert allowing.log.entries == [("started", "call_1"), ("finished", "call_1"), ("finished", "call_1")]
    assert denying.log.starts == []
