import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.errors import InvalidPlanError
from soong.shared.core.jsontext import dotted
from soong.shared.engine.tasks.plan.yaml_document import MAX_DEPTH, read_document
from soong.shared.engine.tasks.problems import MAX_CHARS

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["C"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(min_codepoint=97, max_codepoint=122)), inner, max_size=4)
    ),
    max_leaves=15,
)


@given(JSON)
def test_json_is_read_as_what_it_says(value: object) -> None:
    assert read_document(json.dumps({"plan": value}), "plan.json").value == {"plan": value}


def test_words_that_older_yaml_turns_into_something_else_stay_text() -> None:
    text = "a: no\nb: 2026-01-01\nc: on\nd: 1.2.3\ne: 10.0.0.1\nf: Infinite\ng: 8080:http\nh: 0xylophone\nj: .git"

    value = read_document(text, "plan.yaml").value

    assert value == {
        "a": "no",
        "b": "2026-01-01",
        "c": "on",
        "d": "1.2.3",
        "e": "10.0.0.1",
        "f": "Infinite",
        "g": "8080:http",
        "h": "0xylophone",
        "j": ".git",
    }


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("9007199254740992", 2**53, id="the-largest-integer"),
        pytest.param("-9007199254740992", -(2**53), id="the-smallest-integer"),
        pytest.param("+5", 5, id="signed"),
        pytest.param("0", 0, id="zero"),
        pytest.param("1e3", 1000.0, id="exponent"),
        pytest.param(".5", 0.5, id="no-digit-before-the-point"),
        pytest.param("00.5", 0.5, id="a-fraction-after-two-zeros"),
        pytest.param("'0x10'", "0x10", id="quoted"),
    ],
)
def test_a_number_is_read_exactly(text: str, value: object) -> None:
    read = read_document(f"a: {text}", "plan.yaml").value

    assert read == {"a": value}
    assert [type(one) for one in read.values()] == [type(value)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("9007199254740993", "beyond 2^53", id="16-digits"),
        pytest.param("90071992547409930", "beyond 2^53", id="17-digits"),
        pytest.param("123456789012345678", "beyond 2^53", id="18-digits"),
        pytest.param("-123456789012345678901234567890", "beyond 2^53", id="30-digits"),
        pytest.param("9" * 5000, "beyond 2^53", id="5000-digits"),
        pytest.param("1e999", "too large for any reader", id="beyond-floats"),
        pytest.param("-1e999", "too large for any reader", id="below-floats"),
        pytest.param(".inf", "JSON has no such number", id="infinity"),
        pytest.param("-.INF", "JSON has no such number", id="minus-infinity"),
        pytest.param(".nan", "JSON has no such number", id="nan"),
        pytest.param("NaN", "JSON has no such number", id="nan-of-javascript"),
        pytest.param("-Infinity", "JSON has no such number", id="infinity-of-javascript"),
        pytest.param("0xff", "another base", id="hexadecimal"),
        pytest.param("0o17", "another base", id="octal"),
        pytest.param("-0b101", "another base", id="binary"),
        pytest.param("017", "begins with 0", id="octal-of-yaml-1.1"),
        pytest.param("1_000", "underscores", id="underscores"),
        pytest.param("1_000.5", "underscores", id="a-fraction-with-underscores"),
        pytest.param("190:20:30", "base 60", id="sexagesimal"),
        pytest.param("12:30.5", "base 60", id="sexagesimal-fraction"),
    ],
)
@pytest.mark.parametrize("form", ["a: {0}", "a: [x, {0}]", '{{"a": {0}}}'], ids=["block", "flow", "json"])
def test_a_number_that_cannot_be_kept_is_refused_and_never_rounded_or_made_text(
    text: str, problem: str, form: str
) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        read_document(form.format(text), "p.yaml")

    (found,) = raised.value.problems
    assert problem in found.problem
    assert text[:40] in found.problem
    assert len(found.problem) < 150
    assert "quote it" in found.hint
    assert found.place.startswith("p.yaml:1:")


def test_quoted_scalars_are_text_and_blocks_keep_their_lines() -> None:
    value = read_document("a: \"1\"\nb: 'true'\nc: |\n  one\n  two\n", "plan.yaml").value

    assert value == {"a": "1", "b": "true", "c": "one\ntwo\n"}


def test_a_part_that_is_not_there_is_placed_at_what_is_around_it() -> None:
    document = read_document("title: x\nsteps:\n  - id: a\n", "p.yaml")

    assert document.place(("steps", 0, "missing")) == "p.yaml:3 steps[0].missing"


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        pytest.param("a: [1", "p.yaml:2:1", "invalid YAML", id="syntax"),
        pytest.param("a: 1\nb:\n\t- c", "p.yaml:3:1", "invalid YAML", id="tab"),
        pytest.param("a: 1\nb: 2\na: 3", "p.yaml:3:1", "duplicate key 'a'", id="duplicate"),
        pytest.param("a: {b: 1, b: 2}", "p.yaml:1:11", "duplicate key 'b'", id="duplicate-inside"),
        pytest.param("a: &x 1\nb: *x", "p.yaml:1:4", "anchors", id="anchor"),
        pytest.param("a: *x", "p.yaml:1:4", "aliases", id="alias"),
        pytest.param("a: !!python/object:os.system x", "p.yaml:1:4", "the tag", id="tag"),
        pytest.param("a: !x [1]", "p.yaml:1:4", "the tag", id="tagged-list"),
        pytest.param("? [a]\n: b", "p.yaml:1:3", "a mapping key is not text", id="complex-key"),
        pytest.param("a: 1\n---\nb: 2", "p.yaml:2:1", "a second document", id="two-documents"),
        pytest.param("a: 9007199254740993", "p.yaml:1:4", "beyond 2^53", id="integer"),
        pytest.param("", "p.yaml", "the document is empty", id="empty"),
        pytest.param("# nothing\n", "p.yaml", "the document is empty", id="comment-only"),
        pytest.param("a: \x07", "p.yaml", "invalid YAML", id="control-character"),
        pytest.param("[" * (MAX_DEPTH + 1), f"p.yaml:1:{MAX_DEPTH + 1}", "nested deeper", id="deep"),
        pytest.param("x" * (MAX_CHARS + 1), "p.yaml", "characters", id="huge"),
    ],
)
def test_what_is_not_plain_data_is_refused_with_its_place(text: str, place: str, problem: str) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        read_document(text, "p.yaml")

    (found,) = raised.value.problems
    assert found.place == place
    assert problem in found.problem
    assert found.hint


def test_a_document_nested_beyond_any_stack_is_refused_quickly() -> None:
    with pytest.raises(InvalidPlanError, match="nested deeper"):
        read_document("[" * 1_000_000, "p.yaml")


def test_paths_are_shown_as_people_write_them() -> None:
    assert dotted(("steps", 2, "depends_on", 0)) == "steps[2].depends_on[0]"
