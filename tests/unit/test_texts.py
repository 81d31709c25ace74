"""Text that cannot be stored is found wherever it is in a value, and shown escaped."""

import pytest

from soong.shared.core.errors import UsageError
from soong.shared.core.jsontext import fault, faults, require_text


@pytest.mark.parametrize("text", ["", "a", "ä", "\N{GRINNING FACE}", "\x01\x7f\n", "\ufffd"])
def test_text_that_can_be_stored_has_no_fault(text: str) -> None:
    assert fault(text) == ""


def test_a_fault_is_shown_with_what_is_around_it() -> None:
    assert fault("a\0b") == r"'a\x00b' holds a NUL character"
    assert fault("a\udcffb") == r"'a\udcffb' holds a lone surrogate, which is not Unicode"
    assert fault("x" * 100 + "\0" + "y" * 100) == f"…{'x' * 30 + chr(0) + 'y' * 29!a}… holds a NUL character"


def test_each_part_of_a_value_is_looked_at_once_and_in_order() -> None:
    twice = ["\0"]
    value = {"a": ["fine", "b\0"], "k\0": "passed over\0", "c": {"d": "\ud800"}, "e": twice, "f": twice, "g": 1}

    found = list(faults(value))

    assert [place for place, _ in found] == [(), ("a", 1), ("c", "d"), ("e", 0)]
    assert found[0][1] == r"the key 'k\x00' holds a NUL character"


def test_a_value_that_holds_itself_ends() -> None:
    value: dict[str, object] = {"a": "\0"}
    value["self"] = value

    assert [place for place, _ in faults(value)] == [("a",)]


def test_what_is_required_names_the_value_and_what_is_expected() -> None:
    with pytest.raises(UsageError) as caught:
        require_text("the model", "fine", "half\udcff")

    assert str(caught.value) == (
        r"the model 'half\udcff' holds a lone surrogate, which is not Unicode; expected Unicode text without NUL"
    )
