"""What the style guide fixes in numbers and names."""

import ast
import gc
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sizes import sizes
from tests.spec_document import ROOT

_CODE_FOLDERS = ("orchestrator", "worker", "shared", "soong", "tests", "benchmarks", "examples")
_PRODUCT = ("orchestrator", "worker", "shared", "soong")
_MAX_FILE_LINES = 600
_MAX_FUNCTION_LINES = 60
_MAX_MODULES = 30
_VAGUE_CLASS = re.compile(r"(Manager|Helper|Handler|Base|Impl)$")
_VAGUE_FILES = frozenset({"utils.py", "util.py", "helpers.py", "common.py", "misc.py"})

# Who may touch the process's environment beside settings.py, and why.
_ENVIRONMENT_READERS = {
    "shared/core/log.py": "the standard variables of OpenTelemetry, beside our settings",
    "orchestrator/cli/application.py": "a shell asks for completion by variables of its script",
    "shared/core/settings.py": "the one place for settings",
    "shared/core/secret_values.py": "finds the values that are shown nowhere, and resolves references to variables",
    "worker/bootstrap.py": "the pipe by which a worker passes on what it holds, and that of its starter",
    "worker/lifetime.py": "the pipes with which this process was started: of its report, and to its subreaper",
    "orchestrator/embedded/folders.py": "makes the environment of the processes that a service starts",
    "orchestrator/embedded/preforked_workers.py": "gives a forked worker the environment of a child",
    "orchestrator/cli/main.py": "asks whether any setting is given, without importing the settings",
    "orchestrator/terminal/api.py": "asks for the home and for what changes a command, without importing the settings",
    "orchestrator/embedded/control.py": "compares a command's environment with that of its service",
    "orchestrator/cli/serve.py": "asks whether a browser may have a window: DISPLAY, WAYLAND_DISPLAY",
    "shared/sandbox/programs.py": "makes the environment of a child from an allowlist",
}

# Constants of time beside shared/core/timing.py, and why.
_TIMES_ELSEWHERE = {
    "shared/sandbox/subreaper.py": "it runs isolated and imports nothing",
    "orchestrator/embedded/die_with_parent.py": "it runs isolated and imports nothing",
    "orchestrator/telemetry/consumers.py": "the buckets of a histogram",
}

# Written in parts, so that this file does not match itself.
_FORBIDDEN_TEXTS = (
    re.compile(r"/work/" r"(main|shared)\b"),
    re.compile(r"files\.python" r"hosted\.org"),
    re.compile(r"(?im)^(--(extra-)?index-" r"url|--find-" r"links|--trusted-" r"host)\b"),
    re.compile(r"(?i)co-authored" r"-by"),
    re.compile(r"(?i)generated (by|with) (an )?" r"(ai|llm|assistant)\b"),
)
_TEXT_SUFFIXES = frozenset(
    {".py", ".md", ".toml", ".lock", ".in", ".yaml", ".yml", ".json", ".sql", ".cfg", ".conf", ".sh", ".mako", ""}
)


def _python_files(folders: tuple[str, ...] = _CODE_FOLDERS) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


@cache
def _nodes(path: Path) -> Sequence[ast.AST]:
    """Return the nodes of a module's tree; the first is the module."""
    return [*ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path)))]


def _tree(path: Path) -> ast.Module:
    module = _nodes(path)[0]
    assert isinstance(module, ast.Module)
    return module


@pytest.fixture(scope="module", autouse=True)
def _trees_end_with_the_module() -> Iterator[None]:
    """They are 300 MB, and a second and a half of each full collection of the process: there is none before."""
    gc.disable()
    yield
    _nodes.cache_clear()
    gc.enable()


def _place(path: Path, line: int = 0) -> str:
    return f"{path.relative_to(ROOT)}:{line}" if line else str(path.relative_to(ROOT))


def _is_written_by_hand(path: Path) -> bool:
    # A migration is a frozen record of a schema, as long as the schema is.
    return path.parent.name != "versions"


def test_no_file_is_longer_than_600_lines() -> None:
    files = filter(_is_written_by_hand, _python_files())

    lengths = {_place(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files}

    assert not {place: length for place, length in lengths.items() if length > _MAX_FILE_LINES}


def test_no_function_is_longer_than_60_lines() -> None:
    long = {
        _place(path, function.lineno): length
        for path in filter(_is_written_by_hand, _python_files())
        for function in _nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        and (length := (function.end_lineno or 0) - function.lineno + 1) > _MAX_FUNCTION_LINES
    }

    assert not long


def test_no_folder_has_more_than_30_modules() -> None:
    found = Counter(
        str(path.parent.relative_to(ROOT)) for path in _python_files(_PRODUCT) if path.name != "__init__.py"
    )

    assert [name for name, count in found.items() if count > _MAX_MODULES] == []


def test_every_module_of_the_product_is_part_of_one_capability() -> None:
    assert sum(sizes().values()) > 50_000


def test_no_module_or_class_has_a_name_that_says_nothing() -> None:
    vague_files = [_place(path) for path in _python_files() if path.name in _VAGUE_FILES]
    vague_classes = [
        f"{_place(path, node.lineno)} {node.name}"
        for path in _python_files(_PRODUCT)
        for node in _nodes(path)
        if isinstance(node, ast.ClassDef) and _VAGUE_CLASS.search(node.name)
    ]

    assert not vague_files
    assert not vague_classes


def test_no_class_name_is_used_twice() -> None:
    places = defaultdict(list)
    for path in _python_files(_PRODUCT):
        for node in _nodes(path):
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(_place(path))

    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_module_of_the_product_says_what_it_owns() -> None:
    trees = {path: _tree(path) for path in _python_files(_PRODUCT)}

    assert not [_place(path) for path, tree in trees.items() if tree.body and ast.get_docstring(tree) is None]


def test_the_environment_is_read_in_few_places() -> None:
    readers = {
        _place(path)
        for path in _python_files(_PRODUCT)
        for node in _nodes(path)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "os"
        and node.attr in {"environ", "getenv", "environb", "putenv"}
    }

    assert readers <= _ENVIRONMENT_READERS.keys(), "pass settings in, or give the reason here"


def test_times_are_named_in_one_place() -> None:
    found = {
        path.relative_to(ROOT).as_posix()
        for path in _python_files(_PRODUCT)
        for node in _tree(path).body
        for target in (node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)])
        if isinstance(target, ast.Name) and re.fullmatch(r"[A-Z_]+_(S|MS|US)", target.id)
    }

    assert found == {"shared/core/timing.py", *_TIMES_ELSEWHERE}


def test_no_test_mocks_our_own_code() -> None:
    mocking = [
        _place(path, node.lineno)
        for path in _python_files(("tests",))
        for node in _nodes(path)
        if (isinstance(node, ast.ImportFrom) and node.module in {"unittest.mock", "mock"})
        or (isinstance(node, ast.Import) and any(name.name in {"unittest.mock", "mock"} for name in node.names))
    ]

    assert not mocking


@pytest.mark.parametrize("pattern", _FORBIDDEN_TEXTS, ids=lambda pattern: pattern.pattern)
def test_no_file_names_a_place_outside_the_project(pattern: re.Pattern[str]) -> None:
    texts = ((path, path.read_text(encoding="utf-8", errors="replace")) for path in _project_texts())

    found = [_place(path) for path, text in texts if pattern.search(text)]

    assert not found


@cache
def _project_texts() -> tuple[Path, ...]:
    folders = (*_CODE_FOLDERS, "docs", "deploy", "requirements", ".ci")
    nested = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return tuple(
        path
        for path in (*ROOT.glob("*"), *nested)
        if path.name != ".git"  # a file in a worktree: it names the checkout
        and path.is_file()
        and path.suffix in _TEXT_SUFFIXES
        and "__pycache__" not in path.parts
    )


def test_modules_that_docstrings_name_exist() -> None:
    gone = {
        f"{_place(path)}: {name}"
        for path in _python_files()
        for name in re.findall(r":mod:`~?([\w.]+)`", path.read_text(encoding="utf-8"))
        if not _is_module(name, path.parent)
    }

    assert not gone


def _is_module(name: str, folder: Path) -> bool:
    """Say whether a docstring's name is that of a module of ours, or of a neighbour."""
    start = ROOT if "." in name else folder
    place = start.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").exists()
