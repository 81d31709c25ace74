"""Values in the arguments of command tools: one word each, looked at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.jsontext import Json
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.declarative.template import TemplateArgument, render_arguments, render_shell, shell_problems

NAMES = st.sampled_from(["a", "b", "c"])
VALUES = st.one_of(
    st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(), st.booleans()
)


def arguments(*texts: str) -> list[TemplateArgument]:
    return [TemplateArgument.parse(text) for text in texts]


def rendered(*texts: str, **values: Json) -> list[str]:
    return render_arguments(arguments(*texts), values)


def problems(*texts: str) -> list[int]:
    return [position for position, _ in shell_problems(arguments(*texts))]


@pytest.mark.spec("CMD-04")
@pytest.mark.parametrize(
    ("text", "value", "expected"),
    [
        ("{{x}}", "plain", "plain"),
        ("--name={{x}}", "a b", "--name=a b"),
        ("{{x}}/{{x}}", "v", "v/v"),
        ("{{x}}", True, "true"),
        ("{{x}}", False, "false"),
        ("{{x}}", 7, "7"),
        ("n={{x}}", -1.5, "n=-1.5"),
        ("{{x}}", "", ""),
        ("{not a field} {x.__class__} %s $x", "v", "{not a field} {x.__class__} %s $x"),
        ("{{{x}}}", "v", "{v}"),
        ("}}{{x}}", "v", "}}v"),
    ],
)
def test_a_value_takes_the_place_of_its_field(text: str, value: Json, expected: str) -> None:
    assert rendered(text, x=value) == [expected]


@pytest.mark.spec("CMD-04.c")
def test_an_element_whose_field_is_absent_is_left_out() -> None:
    assert rendered("a", "--x={{x}}", "{{y}}-{{x}}", "{{y}}", y="v") == ["a", "v"]


@pytest.mark.parametrize(
    "text", ["{{", "{{}}", "{{ x }}", "{{x.y}}", "{{x[0]}}", "{{{{x}}}}", "{{x", "{{.Names}}", "{{1}}"]
)
def test_two_braces_that_begin_no_field_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="begins no field"):
        TemplateArgument.parse(text)


@pytest.mark.spec("CMD-04")
@pytest.mark.parametrize(
    ("texts", "is_taken"),
    [
        (("{{x}}",), False),
        (("--", "{{x}}"), True),
        (("a", "--", "b", "{{x}}"), True),
        (("{{x}}", "--"), False),
        (("--{{y}}", "{{x}}"), False),
        (("--name={{x}}",), True),
        (("./{{x}}",), True),
        (("{{y}}{{x}}",), False),
    ],
)
def test_a_value_becomes_no_option_unless_the_definition_allows_it(texts: tuple[str, ...], is_taken: bool) -> None:
    if is_taken:
        assert "-rf" in "".join(rendered(*texts, x="-rf", y=""))
    else:
        with pytest.raises(ToolError, match="would be taken for an option") as caught:
            rendered(*texts, x="-rf", y="")
        assert caught.value.failure.type is ErrorType.INVALID_INPUT


@pytest.mark.spec("CMD-04")
@given(st.dictionaries(NAMES, VALUES))
def test_the_text_of_a_shell_line_holds_no_value(values: dict[str, Json]) -> None:
    texts = ("grep --", "{{a}}", "p={{b}}", "|", "sort -u -- ", "{{c}}")
    harmless = dict.fromkeys(values, "x")

    line = render_shell(arguments(*texts), values)

    assert line.text == render_shell(arguments(*texts), harmless).text
    assert len(line.values) == len(values)


def test_a_shell_line_is_shown_with_each_value_quoted_in_its_place() -> None:
    line = render_shell(arguments("git log", "--grep={{a}}", "|", "wc", "{{b}}"), {"a": "it's; $(id)", "b": "x y"})

    assert line.text == 'git log --grep="${1}" | wc "${2}"'
    assert line.values == ("it's; $(id)", "x y")
    assert line.shown == "git log --grep='it'\"'\"'s; $(id)' | wc 'x y'"


@pytest.mark.parametrize(
    ("texts", "is_taken"),
    [
        (("cat", "--", "{{x}}"), True),
        (("cat", "--", "{{x}}", "|", "grep", "{{x}}"), False),
        (("cat -- a; grep", "{{x}}"), False),
    ],
)
def test_a_new_command_of_a_shell_line_has_options_again(texts: tuple[str, ...], is_taken: bool) -> None:
    if is_taken:
        assert render_shell(arguments(*texts), {"x": "-v"}).values == ("-v",)
    else:
        with pytest.raises(ToolError, match="option"):
            render_shell(arguments(*texts), {"x": "-v"})


@pytest.mark.spec("CMD-04")
@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("git", "log", "{{x}}"), []),
        (("find . -name", "{{x}}"), []),
        (("awk '{print $1}'", "{{x}}"), []),
        (("grep '[[:space:]]'", "--", "{{x}}"), []),
        (("git push -c", "{{x}}"), []),
        (("echo 'a", "b'", "{{x}}"), []),
        (("echo \\'", "{{x}}"), []),
        (("echo", '"{{x}}"'), [1]),
        (("echo", '"', "{{x}}", '"'), [2]),
        (("echo 'a", "{{x}}", "b'"), [1]),
        (("echo", "$({{x}})"), [1]),
        (("echo", "{{x}};"), [1]),
        (("echo 'a",), [0]),
        (("eval", "{{x}}"), [1]),
        (("true; . ", "{{x}}"), [1]),
        (("sh -c", "{{x}}"), [1]),
        (("bash -e -c", "{{x}}"), [1]),
        (("echo $((", "{{x}}", "))"), [1]),
        (("[[ ", "{{x}}", "-eq 1 ]]"), [1]),
        (("eval 'echo a'",), []),
    ],
    ids=str,
)
def test_a_field_of_a_shell_line_is_where_it_is_one_word(texts: tuple[str, ...], expected: list[int]) -> None:
    assert problems(*texts) == expected
