import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.tools.naming import NameTable, check_name, mangle, name_matches, unmangle

PARTS = st.from_regex(r"[a-z0-9_][a-z0-9_-]{0,8}", fullmatch=True)
NAMES = st.builds(
    lambda first, rest: ".".join([first, *rest]),
    st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True),
    st.lists(PARTS, min_size=1, max_size=3),
)


@pytest.mark.spec("REG-02.a")
@pytest.mark.parametrize(
    "name", ["code.read_file", "mcp.git-hub.list_issues", "agent.dispatch_worker", "internal.load_skill"]
)
def test_canonical_names_are_dotted_lower_case(name: str) -> None:
    check_name(name)


@pytest.mark.spec("REG-04.a")
def test_a_dot_becomes_two_underscores_and_an_unknown_name_comes_back_for_the_refusal() -> None:
    table = NameTable(["internal.load_skill"])

    assert table.to_provider("internal.load_skill") == "internal__load_skill"
    assert table.to_canonical("internal__load_skill") == "internal.load_skill"

    assert NameTable(["code.search"]).to_canonical("code__delete") == "code__delete"


@pytest.mark.spec("REG-04.a")
@given(NAMES)
def test_mangling_is_reversible_without_a_table(name: str) -> None:
    assert unmangle(mangle(name)) == name


@pytest.mark.spec("REG-04.b")
@given(st.lists(NAMES, unique=True, max_size=20), st.integers(20, 64))
def test_every_name_fits_the_provider_and_comes_back(names: list[str], limit: int) -> None:
    table = NameTable(names, pattern="[a-zA-Z0-9_]+", max_length=limit)

    for name in names:
        assert len(table.to_provider(name)) <= limit
        assert table.to_canonical(table.to_provider(name)) == name


@pytest.mark.spec("REG-08.a")
@pytest.mark.parametrize(
    ("pattern", "name", "is_match"),
    [
        ("code.*", "code.read_file", True),
        ("*", "mcp.a.b", True),
        ("mcp.*", "mcp.a.b", True),
        ("code", "code.x", False),
        ("code.?", "code.xy", False),
    ],
)
def test_patterns_are_globs_over_the_whole_name(pattern: str, name: str, is_match: bool) -> None:
    assert name_matches(pattern, name) is is_match
