"""Deny and ask rules hold for searches and listings that come from above (FS-06, PER-10)."""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from soong.shared.permissions.configured import withheld_by_rule
from soong.shared.permissions.policy import Policy
from soong.shared.permissions.rules import Effect, Rule
from soong.shared.permissions.scope import Scope, ScopeKind
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.toolsets.code.toolset import CodeTools
from tests.security.scene import PolicyGate
from tests.unit.tools.parts import PipelineHarness, make_bench
from tests.unit.toolsets.parts import declared

FILES = (
    "a.txt",
    "private/payroll.txt",
    "private/deep/x.txt",
    "private.txt",
    "drafts/[1]*.txt",
    "drafts/!b.txt",
    "Private/y.txt",
)
STEP = "task/s"


def scoped(
    effect: Effect, pattern: str, path: Path | None, *, step: str = "", tags: frozenset[str] = frozenset()
) -> Rule:
    scope = None if path is None else Scope(ScopeKind.PATH, str(path))
    return Rule(effect, pattern, tags, scope, step=step)


def bench_of(root: Path, rules: tuple[Rule, ...]) -> PipelineHarness:
    """Return the real tools under the real policy with nobody to ask, in a run of a step."""
    for number, name in enumerate(FILES):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"needle {number}\n")
    tools, policy = CodeTools(PathPolicy(root.parent / "home")).tools(), Policy(rules)
    bench = make_bench(tools, project=root, place={"withheld": withheld_by_rule(policy, tools, "")})
    bench.gate.decide = PolicyGate(policy).decide  # type: ignore[method-assign]
    return bench


async def called(bench: PipelineHarness, name: str, **arguments: Any) -> Any:
    return declared(bench, await bench.call(name, arguments), name)


def shown(result: Any) -> set[str]:
    """Return the files that a result of a search or a listing names."""
    if result.error is not None:
        return set()
    found = result.data.get("matches", result.data.get("entries"))
    return {row["path"] for row in found}


DENIED = ("private/payroll.txt", "private/deep/x.txt")


@pytest.mark.spec("FS-06", "PER-10.c")
@pytest.mark.parametrize("effect", [Effect.DENY, Effect.ASK])
@pytest.mark.parametrize("pattern", ["*", "code.*", "code.search", "code.read_file"])
async def test_a_search_from_above_a_withheld_folder_leaves_it_out_and_counts(
    tmp_path: Path, effect: Effect, pattern: str
) -> None:
    root = tmp_path / "project"
    bench = bench_of(root, (scoped(effect, pattern, root / "private"),))

    found = await called(bench, "code.search", query="needle")
    nothing = await called(bench, "code.search", query="no such words")
    named = await called(bench, "code.search", query="needle", glob="**/payroll.txt")
    inside = await called(bench, "code.search", query="needle", path="private")

    assert shown(found) == set(FILES) - set(DENIED)
    assert (found.data["left_out"], nothing.data["left_out"], named.data["left_out"]) == (2, 2, 2)
    assert (shown(named), shown(inside)) == (set(), set())
    assert "[2 files left out: sensitive, hard-linked, or withheld by a rule]" in repr(found.content)


@pytest.mark.spec("FS-06", "PER-10.c")
@pytest.mark.parametrize("effect", [Effect.DENY, Effect.ASK])
@pytest.mark.parametrize("is_recursive", [True, False])
async def test_a_listing_from_above_a_withheld_folder_leaves_it_out_and_counts(
    tmp_path: Path, effect: Effect, is_recursive: bool
) -> None:
    root = tmp_path / "project"
    bench = bench_of(root, (scoped(effect, "code.list_dir", root / "private"),))

    listed = await called(bench, "code.list_dir", recursive=is_recursive)

    assert "private" not in shown(listed)
    assert not shown(listed) & set(DENIED)
    assert "Private" in shown(listed)
    assert listed.data["left_out"] == 1


@pytest.mark.spec("PER-10.c")
async def test_a_rule_of_a_step_withholds_from_that_step_alone(tmp_path: Path) -> None:
    root = tmp_path / "project"
    tools = CodeTools(PathPolicy(tmp_path / "home")).tools()
    policy = Policy((scoped(Effect.DENY, "code.*", root / "private", step=STEP),))

    of_it, of_a_child, of_another = (withheld_by_rule(policy, tools, step) for step in (STEP, f"{STEP}[a]", "task/t"))

    assert [one.path for one in of_it] == [root / "private"] == [one.path for one in of_a_child]
    assert of_another == ()


@st.composite
def rules(draw: st.DrawFn) -> tuple[tuple[Effect, str, str | None, frozenset[str]], ...]:
    one = st.tuples(
        st.sampled_from([Effect.DENY, Effect.ASK, Effect.ALLOW]),
        st.sampled_from(["*", "code.*", "code.read_file", "code.search", "code.list_dir", "code.r*", "mcp.*"]),
        st.sampled_from(
            [None, "", "private", "private/deep", "private/payroll.txt", "drafts", "drafts/[1]*.txt", "a.txt"]
        ),
        st.sampled_from([frozenset(), frozenset({"readonly"}), frozenset({"network"})]),
    )
    return tuple(draw(st.lists(one, max_size=4)))


@pytest.mark.spec("FS-06", "PER-10.c")
@settings(max_examples=60)
@given(given_rules=rules(), base=st.sampled_from([".", "private", "private/deep", "drafts", "a.txt"]))
def test_nothing_that_a_read_would_be_refused_comes_out_of_a_search(
    given_rules: tuple[tuple[Effect, str, str | None, frozenset[str]], ...], base: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder).resolve() / "project"
        made = tuple(
            scoped(effect, pattern, None if place is None else root / place, tags=tags)
            for effect, pattern, place, tags in given_rules
        )
        bench = bench_of(root, made)
        asyncio.run(_no_search_shows_more_than_reads(bench, base))


async def _no_search_shows_more_than_reads(bench: PipelineHarness, base: str) -> None:
    is_readable = {name: (await called(bench, "code.read_file", path=name)).error is None for name in FILES}
    is_listable = {name: (await called(bench, "code.list_dir", path=name)).error for name in FILES}

    found = await called(bench, "code.search", query="needle", path=base)
    listed = await called(bench, "code.list_dir", path=base if base != "a.txt" else ".", recursive=True)

    assert all(is_readable[name] for name in shown(found) & set(FILES)), json.dumps(found.data)
    refused = {name for name, error in is_listable.items() if error is not None and error.type.is_denial}
    assert not shown(listed) & refused
