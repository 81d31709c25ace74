"""code.search finds what ripgrep's own output tells."""

import asyncio
import json
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.sandbox.paths import PathPolicy
from soong.shared.toolsets.code import rg
from tests.unit.tools.parts import make_run_dirs
from tests.unit.toolsets.examples import PART, fixed
from tests.unit.toolsets.parts import make_project

_NAMES: Final = st.sampled_from(
    [
        *("a", "b.py", "ä.md", "with space", ".hidden", ".env", "x.key", ".git", "sub", "node.pem", ".ENV"),
        *("-r", "new\nline"),
    ]
)
_LINES: Final = st.lists(
    st.sampled_from(["hit", "a hit é", "miss", "", "HIT", "hit hit", "\thit\r", "x" * 30]), max_size=6
)
_QUERIES: Final = st.sampled_from(["hit", "^hit", "h.t$", "(?i)hit", "é", "^$", "x{30}", "[hm]i[ts]+", r"\bhit\b"])
_SECRET: Final = PathPolicy().is_sensitive


def rows_of_ripgrep(root: Path, query: str) -> list[tuple[str, int, str]]:
    """Return what rg's JSON output tells of all files that are neither sensitive nor in .git."""
    program = str(rg.program(make_run_dirs(root)))
    argv = [program, "--no-config", "--crlf", "--json", "--hidden", "--no-ignore", f"--regexp={query}", "."]
    output = subprocess.run(argv, cwd=root, capture_output=True, check=False, timeout=60).stdout
    records = (json.loads(line) for line in output.splitlines())
    rows = [_row(record["data"]) for record in records if record["type"] == "match"]
    return sorted(row for row in rows if not _SECRET(row[0]) and ".git" not in row[0].split("/"))


def _row(match: dict[str, Any]) -> tuple[str, int, str]:
    text = match["lines"]["text"].removesuffix("\n").rstrip("\r")
    return match["path"]["text"].removeprefix("./"), match["line_number"], text


@pytest.mark.spec("FS-03.a", "FS-06")
def test_a_search_finds_what_ripgrep_itself_finds(tmp_path: Path) -> None:
    project, found = make_project(tmp_path), Counter[bool]()
    trees = st.dictionaries(st.lists(_NAMES, min_size=1, max_size=3).map(tuple), _LINES, max_size=6)
    with asyncio.Runner() as runner:

        @fixed(120)
        @given(trees, _QUERIES)
        def check(tree: dict[tuple[str, ...], list[str]], query: str) -> None:
            shutil.rmtree(project.root)
            project.root.mkdir()
            for parts, lines in tree.items():
                path = project.root.joinpath(*parts)
                if not any(parent.is_file() for parent in path.parents) and not path.exists():
                    project.file("/".join(parts), "\n".join(lines))

            data = runner.run(project.data("search", query=query, limit=1000))

            expected = rows_of_ripgrep(project.root, query)
            assert [(row["path"], row["line"], row["text"]) for row in data["matches"]] == expected
            assert (data["count"], data["truncated"]) == (len(expected), False)
            found[bool(expected)] += 1

        check()

    assert min(found.values()) > 20 // PART
