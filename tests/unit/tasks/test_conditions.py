"""Conditions of plans: what they mean, and what is no condition."""

import pytest

from soong.shared.core.errors import TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.condition import MAX_CHARS, condition

SCOPE: dict[str, Json] = {
    "inputs": {"quick": False, "name": "x"},
    "a": {
        "output": {
            "n": 3,
            "half": 3.0,
            "names": ["x", 1, ["y"]],
            "ok": True,
            "text": "hello",
            "none": None,
            "o": {"k": 1},
        }
    },
}


def holds(text: str) -> bool:
    return condition(text).holds(SCOPE, ExpansionBudget("the condition"))


@pytest.mark.spec("CTL-01.a")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("${a.output.n} > 2", True),
        ("${a.output.n}>2 and not ${inputs.quick}", True),
        ("1 < ${a.output.n} <= 2", False),
        ("${a.output.n} == 3.0", True),
        ("${a.output.n} != -3", True),
        ("${a.output.ok}", True),
        ("${a.output.ok} == 1", False),
        ("${a.output.none} == null", True),
        ("${a.output.none} or ${inputs.quick}", False),
        ("'x' in ${a.output.names}", True),
        ("true in ${a.output.names}", False),
        ('["y"] in ${a.output.names}', True),
        ('"ell" in ${a.output.text}', True),
        ('"k" in ${a.output.o} and "z" not in ${a.output.o}', True),
        ("${inputs.name} in ['x', 'y']", True),
        ("length(${a.output.names}) == 3 and length(${a.output.text}) > 4", True),
        ("${a.output.names | length} == 3", True),
        ("${a.output.missing | default(0)} == 0", True),
        ("${a.output.text} < 'world'", True),
        ("(${a.output.n} > 5 or ${a.output.n} < 4) and true", True),
        ('"$${x}" == "$${x}"', True),
    ],
)
def test_conditions_mean_what_they_say(text: str, expected: bool) -> None:
    assert holds(text) is expected


@pytest.mark.spec("CTL-01.a")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("__import__('os').system('true')", "write comparisons"),
        ("length(1, 2)", "write comparisons"),
        ("${a.output.n}.real", "write comparisons"),
        ("${a.output.n} + 1 > 3", "write comparisons"),
        ("${a.output.names}[0] == 1", "write comparisons"),
        ("[one for one in [1]]", "write comparisons"),
        ("(lambda: 1)()", "write comparisons"),
        ("1 if true else 2", "write comparisons"),
        ("x := 1", "write comparisons"),
        ("${a.output.n} >", "write comparisons"),
        ("", "write comparisons"),
        ("(" * 500, "write comparisons"),
        ("${a.output.n} is null", "write comparisons"),
        ("look > 1", r"'look' is not known; write `\$\{look\}` for a value of the plan, or \"look\" for a text"),
        ("soong_reference_0 > 1", "is not known|write comparisons"),
        ("\u017foong_reference_0 > 1", "write comparisons"),  # Python reads the first letter of a name as an s
        ('"${a.output.text}" == "hello"', "a reference is in quotes"),
        ("x" * (MAX_CHARS + 1), f"more than {MAX_CHARS} characters"),
        ("${a.output.n > 1", "not closed"),
    ],
)
def test_what_is_no_condition_is_refused_when_it_is_read(text: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        condition(text)


@pytest.mark.spec("CTL-01.d")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("${a.output.missing} == 1", "there is no 'missing'"),
        ("${a.output.text} > 3", "a number and a text cannot be put in an order"),
        ("${a.output.none} < 3", "a number and null cannot be put in an order"),
        ("${a.output.ok} > 0", "a boolean and a number cannot be put in an order"),
        ("1 in ${a.output.n}", "`in` cannot look for a number in a number"),
        ("length(${a.output.n}) > 1", "`length` cannot be taken of a number"),
    ],
)
def test_what_cannot_be_decided_says_why(text: str, problem: str) -> None:
    with pytest.raises(TemplateError, match=problem):
        holds(text)
