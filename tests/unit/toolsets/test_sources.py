"""The sources of tools: every built-in one, modules of the user's, and the files that they are made of."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from types import ModuleType

import pytest

from soong.shared.core.config import Config, parse_config
from soong.shared.core.errors import InvalidConfigError
from soong.shared.tools import permission_check as risk
from soong.shared.tools.definition import Risk, Traits
from soong.shared.tools.permission_check import classified
from soong.shared.tools.registry import ToolRegistry
from soong.shared.toolsets.controls import controls_of
from soong.shared.toolsets.modules import register_modules
from soong.shared.toolsets.sources import ToolEnvironment, make_registry
from tests.unit.tools.parts import make_tool


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


Module = Callable[..., str]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Module:
    """Write a module that can be imported, and forget it afterwards."""
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str, name: str = "own_tools") -> str:
        (tmp_path / f"{name}.py").write_text(dedent(text))
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    return write


CLASSIFIER = """
    from soong import Risk, risk_classifier

    @risk_classifier
    def ours(tool):
        return Risk.CRITICAL if tool.name == "code.write_file" else Risk.READ
"""


@pytest.mark.spec("PER-11.c")
def test_a_module_may_have_a_classifier_and_no_tools(module: Module, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(risk, "_REGISTERED", [])
    names = (module(CLASSIFIER), module("from own_tools import ours", "package_of_it"))

    for _ in range(2):  # a process makes several registries, and imports a module once
        make_registry(ToolEnvironment(modules=names))

    assert classified(make_tool("code.write_file")) is Risk.CRITICAL


REFUSED = {
    "absent": (None, "is not installed; run from its folder, name that in SOONG_IMPORT_PATH, or install it"),
    "not Python": ("def (", "cannot be imported: SyntaxError"),
    "raises": ("raise RuntimeError('no licence')", "cannot be imported: RuntimeError: no licence"),
    "leaves": ("import sys; sys.exit(3)", "cannot be imported: SystemExit"),
    "needs what is absent": ("import nothing_of_that_name", "cannot be imported: ModuleNotFoundError"),
    "offers nothing": ("x = 1", "offers no tools; give it `tools = Toolset()`"),
    "async register": ("async def register(registry): ...", "register is async"),
    "register fails": ("def register(registry): registry.nope()", "failed to register: AttributeError"),
    "bad tool": ("def register(registry): registry.register_tool('x', 'd', {}, print)", "is not a canonical name"),
    "bad function": (
        "from soong import Toolset\ntools = Toolset()\n@tools.tool('team.x')\ndef f(a): 'D.'",
        "'a' has no annotation",
    ),
    "an alias in our namespace": (
        """
        from soong import Toolset
        tools = Toolset()

        @tools.tool("team.x", aliases=("code.x",))
        def x() -> None:
            'X.'
        """,
        "the namespace 'code' of the alias 'code.x' is Soong's own",
    ),
    "a tag of ours": (
        """
        from soong import Toolset
        tools = Toolset()

        @tools.tool("team.x", tags=("internal",))
        def x() -> None:
            'X.'
        """,
        "the tag 'internal' is one of Soong's own tools; choose another",
    ),
    "our namespace": (
        "def register(registry): registry.register_tool('code.x', 'd', {'type': 'object'}, print)",
        "the namespace 'code' is Soong's own; choose another, such as 'team.x'",
    ),
    "twice the same": (
        "def register(registry):\n for _ in 'ab': registry.register_tool('a.x', 'd', {'type': 'object'}, print)",
        "the name 'a.x' is taken",
    ),
}


@pytest.mark.spec("REG-06", "REG-02")
@pytest.mark.parametrize(("text", "told"), REFUSED.values(), ids=REFUSED.keys())
def test_a_module_that_cannot_be_used_is_named_with_its_fault(module: Module, text: str | None, told: str) -> None:
    name = module(text) if text is not None else "own_tools_that_are_absent"

    with pytest.raises(InvalidConfigError) as refused:
        register_modules(ToolRegistry(), (name,))

    assert told in str(refused.value)
    assert f"SOONG_TOOLS names {name!r}" in str(refused.value)


NAMES = ("soong_test_first", "soong_test_second", "soong_test_led_to")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in NAMES:
        sys.modules.pop(name, None)


def imported(folder: Path, name: str, text: str = "") -> Path:
    (folder / f"{name}.py").write_text(text)
    importlib.invalidate_caches()
    importlib.import_module(name)
    return folder / f"{name}.py"


@pytest.mark.spec("FS-09")
def test_a_module_is_found_whenever_it_is_imported_and_whatever_led_to_it(folder: Path) -> None:
    (folder / "soong_test_led_to.py").write_text("")

    first = imported(folder, "soong_test_first", "import soong_test_led_to")
    assert {first, folder / "soong_test_led_to.py"} <= set(controls_of(Config(), ()))
    second = imported(folder, "soong_test_second")

    assert {first, second} <= set(controls_of(Config(), ()))


@pytest.mark.spec("FS-09")
def test_a_module_stays_found_when_it_is_taken_out_again(folder: Path) -> None:
    first = imported(folder, "soong_test_first")
    controls_of(Config(), ())
    del sys.modules["soong_test_first"]

    second = imported(folder, "soong_test_second")

    assert {first, second} <= set(controls_of(Config(), ()))


@pytest.mark.spec("FS-09")
def test_a_module_that_changes_its_place_is_looked_at_again(folder: Path) -> None:
    controls_of(Config(), ())
    stranger = ModuleType("soong_test_first")
    sys.modules["soong_test_first"] = stranger
    controls_of(Config(), ())
    del sys.modules["soong_test_first"]

    first = imported(folder, "soong_test_first")

    assert first in controls_of(Config(), ())
