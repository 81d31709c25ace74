from typing import Any

import pytest

from soong.shared.agents.outline import MAX_SOURCE_CHARS, python_outline
from soong.shared.core.jsontext import dump, parse_strict


def facts(source: str, kind: str) -> list[dict[str, Any]]:
    return list(python_outline(source)[kind])  # type: ignore[arg-type]  # lists of facts, by their name


@pytest.mark.parametrize(
    ("body", "swallows"),
    [
        pytest.param("pass", True, id="pass"),
        pytest.param("...", True, id="ellipsis"),
        pytest.param("'a reason'; continue", True, id="text-and-continue"),
        pytest.param("return False", True, id="constant"),
        pytest.param("return", True, id="nothing"),
        pytest.param("return x", False, id="name"),
        pytest.param("log()", False, id="call"),
        pytest.param("raise", False, id="raise"),
        pytest.param("pass; x = 1", False, id="assignment"),
    ],
)
def test_a_handler_swallows_when_its_body_does_nothing(body: str, swallows: bool) -> None:
    source = f"def f():\n  while 1:\n    try: pass\n    except Exception: {body}\n"

    (handler,) = facts(source, "handlers")

    assert (handler["line"], handler["swallows"]) == (4, swallows)


@pytest.mark.parametrize(
    ("caught", "is_broad"),
    [
        pytest.param("", True, id="bare"),
        pytest.param(" BaseException as e", True, id="base"),
        pytest.param(" (OSError, Exception)", True, id="in-a-tuple"),
        pytest.param(" ValueError", False, id="narrow"),
        pytest.param(" my.Exception", False, id="somebody-elses"),
    ],
)
def test_only_broad_handlers_are_facts(caught: str, is_broad: bool) -> None:
    assert bool(facts(f"try: pass\nexcept{caught}: pass\n", "handlers")) is is_broad


def test_a_functions_length_counts_from_its_def_without_decorators() -> None:
    source = "@one\n@two\ndef f(\n    a,\n):\n    return a\n\n\nasync def g(): pass\n"

    assert facts(source, "functions") == [
        {"line": 3, "name": "f", "lines": 4},
        {"line": 9, "name": "g", "lines": 1},
    ]


def test_calls_are_named_as_they_were_imported() -> None:
    imports = "import pickle as p\nfrom marshal import loads as m, dump\nfrom . import here\n"
    source = imports + "p.loads(x)\nm(x)\nhere.f(x)\nf()()"

    assert [call["name"] for call in facts(source, "calls")] == ["pickle.loads", "marshal.loads", "here.f", "f"]


def test_calls_keep_constant_keywords_and_the_text_of_others() -> None:
    (call,) = facts("run(a, b.c, shell=True, cwd=x + y, **more)", "calls")

    assert call["keywords"] == {"shell": True, "cwd": "x + y"}
    assert call["arguments"] == ["a", "b.c"]


def test_mutable_defaults_of_every_kind_of_parameter_are_facts() -> None:
    source = "def f(a, b=[], /, c=(), d={}, *, e=set(), g=None, h=[x for x in y], i=frozenset()): pass"

    assert [one["default"] for one in facts(source, "mutable_defaults")] == ["[]", "{}", "set()", "[x for x in y]"]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        pytest.param("print 'x'", "line 1", id="python-2"),
        pytest.param("a\0b", "null bytes", id="nul"),
        pytest.param("(" * 5000 + ")" * 5000, "", id="deep"),
        pytest.param("x" * (MAX_SOURCE_CHARS + 1), "characters", id="huge"),
    ],
)
def test_what_is_not_readable_python_is_a_problem_and_no_crash(source: str, words: str) -> None:
    outline = python_outline(source)

    assert outline["problem"]
    assert words in str(outline["problem"])
    assert outline["functions"] == []


def test_an_empty_file_has_no_facts_and_no_problem() -> None:
    assert python_outline("") == {"functions": [], "handlers": [], "calls": [], "mutable_defaults": [], "problem": ""}


@pytest.mark.parametrize(
    ("argument", "shown"),
    [
        pytest.param(" + ".join(["x"] * 400), " + ".join(["x"] * 400)[:80], id="a-sum-of-400-terms"),
        pytest.param("f(" * 90 + ")" * 90, ("f(" * 90)[:80], id="nested-calls"),
        pytest.param("a,\n    b" * 40, None, id="many-lines"),
        pytest.param("1e999", "1e999", id="a-number-beyond-floats"),
        pytest.param("0x" + "f" * 5000, ("0x" + "f" * 5000)[:80], id="a-number-of-5000-digits"),
        pytest.param("'\\ud800'", "'\\ud800'", id="half-a-character"),
        pytest.param("'é' + x", "'é' + x", id="columns-after-a-wide-character"),
    ],
)
@pytest.mark.parametrize("place", ["call({0})", "call(key={0})", "def g(a=list({0})): pass"])
def test_a_line_whatever_it_says_hides_no_fact_of_its_file(argument: str, shown: str | None, place: str) -> None:
    if shown is None and "(key=" in place:
        argument = f"[{argument}]"
    source = f"try: x()\nexcept: pass\n{place.format(argument)}\npickle.loads(y)\n"

    outline = python_outline(source)

    assert outline["problem"] == ""
    assert [one["line"] for one in facts(source, "handlers")] == [2]
    assert "pickle.loads" in [one["name"] for one in facts(source, "calls")]
    assert parse_strict(dump(outline)) == outline, "a step's output is stored as JSON"
    if shown is not None and place == "call({0})":
        assert {"line": 3, "name": "call", "keywords": {}, "arguments": [shown]} in facts(source, "calls")
