"""The script language: what its expressions compute, what its statements do, and what is refused."""

from collections.abc import Sequence
from typing import Any

import pytest

from soong.shared.agents.expressions import CONDITIONS, OPERATIONS, evaluate, holds
from soong.shared.agents.player import Player, Wanted
from soong.shared.agents.script import check_script, parse_script
from soong.shared.core.errors import InvalidPlanError, TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.budget import Budget

HITS: list[Json] = [{"path": "b", "n": 2}, {"path": "a", "n": 10}, {"path": "a", "n": 9}]


def names() -> dict[str, Json]:
    return {"hits": list(HITS), "word": "lib/app.py", "item": "outer", "nothing": None}


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        pytest.param(
            {"$map": "${hits}", "as": "h", "to": {"at": "${h.path}:${h.n}"}},
            [{"at": "b:2"}, {"at": "a:10"}, {"at": "a:9"}],
            id="map",
        ),
        pytest.param({"$map": "${nothing}", "to": "${item}"}, [], id="map-of-null"),
        pytest.param({"$map": [1, 2], "to": "${item}"}, [1, 2], id="map-names-its-item-item"),
        pytest.param({"$filter": "${hits}", "as": "h", "where": {"gt": ["${h.n}", 5]}}, HITS[1:], id="filter"),
        pytest.param({"$count": "${hits}"}, 3, id="count"),
        pytest.param({"$count": "${hits}", "as": "h", "where": {"eq": ["${h.path}", "a"]}}, 2, id="count-where"),
        pytest.param({"$concat": [[1], None, [2, 3]]}, [1, 2, 3], id="concat"),
        pytest.param({"$sort": "${hits}", "by": ["path", "n"]}, [HITS[2], HITS[1], HITS[0]], id="sort"),
        pytest.param({"$sort": ["b", 3, "a", 1]}, [1, 3, "a", "b"], id="sort-mixed"),
        pytest.param({"$unique": [{"a": 1}, 2, {"a": 1}, 2, 3]}, [{"a": 1}, 2, 3], id="unique-keeps-the-first"),
        pytest.param({"$join": ["a", 1, None], "with": "-"}, "a-1-", id="join"),
        pytest.param({"$join": ["a", "b"]}, "a\nb", id="join-lines"),
        pytest.param({"$if": {"empty": "${hits}"}, "then": 1, "else": 2}, 2, id="if"),
        pytest.param({"$if": "${nothing}", "then": 1}, None, id="if-without-else"),
        pytest.param({"$sum": [1, 2.5]}, 3.5, id="sum"),
        pytest.param({"$merge": [{"a": 1}, {"b": 2, "a": 3}]}, {"a": 3, "b": 2}, id="merge"),
        pytest.param({"$take": "${hits}", "first": 1}, HITS[:1], id="take"),
        pytest.param({"$path": "${word}", "get": "stem"}, "app", id="path-stem"),
        pytest.param({"$path": "app.py", "get": "parent"}, ".", id="path-parent"),
        pytest.param({"$replace": "a`b", "old": "`", "new": "'"}, "a'b", id="replace"),
        pytest.param({"$strip": "test_x_test", "prefix": "test_", "suffix": "_test"}, "x", id="strip"),
        pytest.param({"$trim": "  x \n"}, "x", id="trim"),
        pytest.param({"a": ["${word}", {"b": "${hits | length}"}]}, {"a": ["lib/app.py", {"b": 3}]}, id="plain-json"),
    ],
)
def test_an_expression_computes(expression: Json, value: Json) -> None:
    scope = names()

    assert evaluate(expression, scope, Budget("the test")) == value
    assert scope == names(), "an operation leaves the names as they were"


@pytest.mark.parametrize(
    ("condition", "is_held"),
    [
        pytest.param({"eq": ["${word}", "lib/app.py"]}, True, id="eq"),
        pytest.param({"ne": [1, 2]}, True, id="ne"),
        pytest.param({"le": [2, 2]}, True, id="le"),
        pytest.param({"lt": [2, 2]}, False, id="lt"),
        pytest.param({"ge": [1, 2]}, False, id="ge"),
        pytest.param({"in": ["a", ["a"]]}, True, id="in-list"),
        pytest.param({"in": ["app", "${word}"]}, True, id="in-text"),
        pytest.param({"in": ["k", {"k": 1}]}, True, id="in-object"),
        pytest.param({"in": ["x", "${nothing}"]}, False, id="in-null"),
        pytest.param({"matches": ["${word}", "[.]py$"]}, True, id="matches"),
        pytest.param({"all": [{"eq": [1, 1]}, {"not": {"empty": "${hits}"}}]}, True, id="all"),
        pytest.param({"any": [{"eq": [1, 2]}, "${nothing}"]}, False, id="any"),
        pytest.param("${hits}", True, id="value"),
        pytest.param(False, False, id="literal"),
    ],
)
def test_a_condition_holds_or_not(condition: Json, is_held: bool) -> None:
    assert holds(condition, names(), Budget("the test")) is is_held


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        pytest.param({"$mop": []}, "there is no such operation (there are: $map", id="unknown-operation"),
        pytest.param({"$if": {"equals": [1, 1]}, "then": 1}, "there is no such comparison", id="unknown-comparison"),
        pytest.param({"$count": "text"}, 'it needs a list and got "text"', id="not-a-list"),
        pytest.param({"$if": {"gt": ["a", 1]}, "then": 1}, "are not both numbers", id="order-of-texts"),
        pytest.param({"$if": {"eq": [1]}, "then": 1}, "a list of two", id="one-operand"),
        pytest.param({"$if": {"matches": ["x", "("]}, "then": 1}, "not a regular expression", id="regex"),
        pytest.param({"$sum": ["1"]}, "adds numbers only", id="sum"),
        pytest.param({"$merge": [1]}, "merges objects only", id="merge"),
        pytest.param({"$path": "x", "get": "size"}, "it gets one of name", id="path"),
    ],
)
def test_an_expression_that_cannot_be_computed_says_why(expression: Json, words: str) -> None:
    with pytest.raises(TemplateError) as raised:
        evaluate(expression, names(), Budget("the test"))

    assert words in str(raised.value)


def play(script: Sequence[Json], inputs: Json, answer: Any) -> tuple[Json, list[list[Wanted]]]:
    """Play a script; ``answer`` gives the result of a call."""
    player = Player(parse_script(script), inputs, {})
    turns, playing = [], player.play()
    try:
        wanted = next(playing)
        while True:
            turns.append(list(wanted))
            wanted = playing.send([answer(call) for call in wanted])
    except StopIteration:
        return player.output, turns


def ok(value: Json) -> Json:
    return {"is_error": False, "error": None, "value": value}


def test_calls_for_each_item_are_one_turn_and_keep_their_items() -> None:
    script: list[Json] = [
        {"for_each": "${inputs.files}", "as": "f", "call": "t.read", "with": {"path": "${f}"}, "save": "got"},
        {"finish": "${got}"},
    ]

    output, turns = play(script, {"files": ["a", "b"]}, lambda call: ok(call.arguments["path"]))

    assert turns == [[Wanted("t.read", {"path": "a"}), Wanted("t.read", {"path": "b"})]]
    assert output == [
        {"item": "a", "is_error": False, "error": None, "value": "a"},
        {"item": "b", "is_error": False, "error": None, "value": "b"},
    ]


def test_two_hundred_and_one_calls_take_two_turns() -> None:
    script: list[Json] = [{"for_each": list(range(201)), "call": "t.x", "with": {"n": "${item}"}, "save": "got"}]

    _, turns = play([*script, {"finish": None}], {}, lambda _call: ok(1))

    assert [len(turn) for turn in turns] == [200, 1]


def test_loops_conditions_and_finish_do_what_they_say() -> None:
    script: list[Json] = [
        {"set": {"left": "${inputs.pages}", "seen": []}},
        {
            "while": {"not": {"empty": "${left}"}},
            "do": [
                {"call": "t.page", "with": {"n": "${left | first}"}, "save": "page"},
                {
                    "set": {
                        "seen": {"$concat": ["${seen}", ["${page.value}"]]},
                        "left": "${page.value.next | default([])}",
                    }
                },
                {"when": {"gt": ["${seen | length}", 2]}, "finish": "too many"},
            ],
        },
        {
            "for_each": "${seen}",
            "as": "one",
            "do": [{"when": {"eq": ["${one.n}", 2]}, "finish": {"found": "${one.n}"}}],
        },
        {"finish": "none"},
    ]

    output, turns = play(
        script,
        {"pages": [1]},
        lambda call: ok({"n": call.arguments["n"], **({"next": [2]} if call.arguments["n"] == 1 else {})}),
    )

    assert output == {"found": 2}
    assert [turn[0].arguments for turn in turns] == [{"n": 1}, {"n": 2}]


def test_a_while_ends_at_its_limit() -> None:
    script: list[Json] = [{"while": True, "limit": 3, "do": [{"call": "t.x"}]}, {"finish": "done"}]

    output, turns = play(script, {}, lambda _call: ok(1))

    assert (output, len(turns)) == ("done", 3)


def test_errors_of_calls_are_values_that_conditions_see() -> None:
    script: list[Json] = [
        {"call": "t.write", "with": {"when": None}, "save": "done"},
        {"when": "${done.is_error}", "finish": "${done.error.type}"},
        {"finish": "written"},
    ]
    denied: Json = {"is_error": True, "error": {"type": "permission_denied"}, "value": None}

    assert play(script, {}, lambda _call: denied) == ("permission_denied", [[Wanted("t.write", {})]])


@pytest.mark.parametrize(
    ("script", "place", "words"),
    [
        pytest.param("call", (), "a script is a text", id="not-a-list"),
        pytest.param(["call"], (0,), "a statement is a text", id="statement-text"),
        pytest.param([{}], (0,), "says what to do (nothing)", id="empty-statement"),
        pytest.param([{"call": "t.x", "wiht": {}}], (0, "wiht"), "unknown field 'wiht'", id="unknown-field"),
        pytest.param([{"call": "t.x", "with": [1]}], (0, "with"), "the arguments are a list", id="arguments"),
        pytest.param([{"together": [{"set": {}}]}], (0, "together"), "something else than a call", id="together"),
        pytest.param([{"set": {"inputs": 1}}], (0, "set", "inputs"), "cannot be set", id="set-inputs"),
        pytest.param([{"for_each": [1]}], (0,), "'do' is missing", id="loop-without-body"),
        pytest.param([{"finish": {"$map": []}}], (0, "finish"), "$map lacks 'to'", id="parameter-missing"),
        pytest.param([{"finish": {"$trim": "", "by": 1}}], (0, "finish"), "does not take 'by'", id="parameter-extra"),
        pytest.param([{"finish": {"$mop": 1}}], (0, "finish"), "no operation '$mop'", id="operation"),
        pytest.param([{"finish": "${inputs.b}"}], (0, "finish"), "has no input 'b'", id="input"),
        pytest.param([{"finish": "${x}"}], (0, "finish"), "names what nothing sets", id="name"),
        pytest.param(
            [{"call": "t.x", "with": {"n": "${item}"}}], (0, "with", "n"), "names what nothing sets", id="no-items"
        ),
        pytest.param([{"finish": "${"}], (0, "finish"), "malformed", id="malformed"),
        pytest.param([{"set": {}, "when": {"mtches": [1, 2]}}], (0, "when"), "no comparison 'mtches'", id="comparison"),
        pytest.param(
            [{"set": {}, "when": {"all": [{"not": {"matches": ["a", "(?=b)"]}}]}}],
            (0, "when", "all", 0, "not", "matches", 1),
            "lookaround and backreferences are not supported",
            id="lookahead",
        ),
        pytest.param(
            [{"while": {"matches": ["a", r"(a)\1"]}, "do": []}],
            (0, "while", "matches", 1),
            "backref",
            id="backreference",
        ),
        pytest.param(
            [{"finish": {"$filter": [], "where": {"matches": ["a", "("]}}}],
            (0, "finish", "where", "matches", 1),
            "missing )",
            id="pattern",
        ),
        pytest.param(
            [{"finish": {"$if": {"matches": ["a", "a" * 1001]}, "then": 1}}],
            (0, "finish", "$if", "matches", 1),
            "at most 1,000",
            id="long-pattern",
        ),
    ],
)
def test_a_bad_script_is_refused_with_its_place(script: Json, place: tuple[str | int, ...], words: str) -> None:
    found: list[tuple[tuple[str | int, ...], str]] = []
    check_script(script, frozenset({"a"}), None, lambda path, problem, _remedy: found.append((path, problem)))

    assert any(path == place and words in problem for path, problem in found), found


def test_a_bad_script_is_not_played() -> None:
    with pytest.raises(InvalidPlanError, match=r"script\[0\]"):
        parse_script([{"cal": "x"}])


def test_every_operation_and_comparison_is_named_in_the_tests() -> None:
    text = str(test_an_expression_computes.pytestmark) + str(test_a_condition_holds_or_not.pytestmark)  # type: ignore[attr-defined]

    assert set(OPERATIONS) - {"$python_outline"} == {name for name in OPERATIONS if f"'{name}'" in text}
    assert {name for name in CONDITIONS if f"'{name}'" in text} == CONDITIONS
