"""The classes differ from those of the standard library in nothing but the time at which methods are compiled."""

import copy
import dataclasses
import inspect
import pickle
from dataclasses import InitVar, field
from threading import Barrier, Thread
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from soong.shared.core.lazy_dataclass import dataclass

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    y: int = 0
    tags: list[str] = field(default_factory=list, compare=False)
    kind: ClassVar[str] = "point"


@dataclass(slots=True)
class Counter:
    count: int
    step: InitVar[int]
    note: str = field(default="", kw_only=True, repr=False)

    def __post_init__(self, step: int) -> None:
        self.count += step


@dataclass(frozen=True, slots=True)
class Box(Generic[T]):
    content: T


@dataclass(frozen=True, slots=True)
class Named(Point):
    name: str = ""


@dataclass(frozen=True)
class Own:
    value: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Own)

    def __hash__(self) -> int:
        return 7

    def __repr__(self) -> str:
        return "own"


@dataclass(slots=True, eq=False)
class Identity:
    value: int


@dataclass(frozen=True, slots=True)
class Row:
    first: int
    second: str = "b"
    third: list[str] = field(default_factory=list)
    fourth: float = 0.5


class DoubledRow(Row):
    """Has a dict beside the slots."""


@dataclass(frozen=True, slots=True)
class BoxedRow(Generic[T]):
    first: T
    second: int = 2
    third: int = 3


@dataclass(frozen=True, slots=True)
class CheckedRow:
    first: int
    second: int
    third: int

    def __post_init__(self) -> None:
        if self.third < 0:
            raise ValueError(f"{type(self).__name__} with a negative third")


class Plain(Counter):
    """Not a data class itself."""


def test_methods_are_compiled_at_their_first_use() -> None:
    @dataclass(frozen=True, slots=True)
    class Fresh:
        value: int

    assert not inspect.isfunction(vars(Fresh)["__init__"])

    first = Fresh(1)

    assert inspect.isfunction(vars(Fresh)["__init__"])
    assert not inspect.isfunction(vars(Fresh)["__eq__"])
    assert first == Fresh(1)
    assert first != Fresh(2)
    assert inspect.isfunction(vars(Fresh)["__eq__"])
    assert inspect.isfunction(vars(Fresh)["__hash__"])


def test_values_are_equal_hashed_and_shown_by_their_fields() -> None:
    assert Point(1, tags=["a"]) == Point(1, 0, ["b"])
    assert hash(Point(1)) == hash((1, 0))
    assert repr(Point(1)) == "Point(x=1, y=0, tags=[])"
    assert (Point(1) == object()) is False
    assert {Box(1), Box(1)} == {Box(1)}
    assert repr(Named(1, name="n")) == "Named(x=1, y=0, tags=[], name='n')"
    assert Point.__doc__ == "A place."


def test_the_first_use_may_be_any_method() -> None:
    @dataclass(frozen=True, slots=True)
    class Left:
        value: int

    blank = object.__new__(Left)
    object.__setattr__(blank, "value", 3)

    assert hash(blank) == hash((3,))
    assert repr(blank).endswith("Left(value=3)")


def test_signature_and_match_are_those_of_the_fields() -> None:
    assert str(inspect.signature(Counter)).startswith("(count: int, step: ")
    assert str(inspect.signature(Counter)).endswith(", *, note: str = '') -> None")
    assert Counter.__init__.__qualname__ == "Counter.__init__"
    match Point(4, 5):
        case Point(x, y):
            assert (x, y) == (4, 5)


def test_functions_of_the_standard_library_know_the_class() -> None:
    point = Point(1, 2, ["t"])

    assert dataclasses.replace(point, y=3) == Point(1, 3)
    assert dataclasses.asdict(point) == {"x": 1, "y": 2, "tags": ["t"]}
    assert [each.name for each in dataclasses.fields(Counter)] == ["count", "note"]
    assert dataclasses.is_dataclass(Box)


def test_frozen_values_refuse_changes() -> None:
    point: Any = Point(1)

    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot assign to field 'x'"):
        point.x = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'x'"):
        del point.x
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):
        dataclasses.dataclass(type("Loose", (Point,), {}))


@pytest.mark.parametrize("make", [Row, DoubledRow])
def test_values_of_several_fields_are_of_their_class_and_refuse_changes(make: type[Row]) -> None:
    row: Any = make(1, fourth=2.0)

    assert type(row) is make
    assert (row.first, row.second, row.third, row.fourth) == (1, "b", [], 2.0)
    assert row.third is not make(1).third
    changed: Any = row
    with pytest.raises(dataclasses.FrozenInstanceError):
        changed.first = 2
    assert dataclasses.replace(row, second="c") == make(1, "c", [], 2.0)


def test_a_check_of_several_fields_sees_the_value_as_it_is() -> None:
    with pytest.raises(ValueError, match="CheckedRow with a negative third"):
        CheckedRow(1, 2, -3)


@pytest.mark.parametrize(
    "value", [Row(1), BoxedRow("b"), Point(1, 2), Box("b"), Counter(1, 1), Named(1), Own(3), Identity(1)], ids=str
)
def test_values_survive_copies_and_pickles(value: Any) -> None:
    for again in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
        assert type(again) is type(value)
        assert repr(again) == repr(value)


def test_changing_values_have_no_hash_unless_they_are_identities() -> None:
    first = Identity(1)

    with pytest.raises(TypeError, match="unhashable"):
        hash(Counter(1, 0))
    assert first != Identity(1)
    assert {first} == {first}


def test_own_methods_stay() -> None:
    assert Own(1) == Own(2)
    assert hash(Own(1)) == 7
    assert repr(Own(1)) == "own"


def test_a_plain_subclass_uses_the_methods_of_its_base() -> None:
    assert repr(Plain(2, 3, note="n")) == "Plain(count=5)"


def test_wrong_arguments_are_named_as_usual() -> None:
    missing: Any = Point

    with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required positional argument: 'x'"):
        missing()


def test_many_threads_may_use_a_class_first() -> None:
    @dataclass(frozen=True, slots=True)
    class Shared:
        value: int

    barrier, made = Barrier(8), list[object]()

    def use() -> None:
        barrier.wait()
        made.append(Shared(1))

    threads = [Thread(target=use) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert made == [Shared(1)] * 8


@dataclass(slots=True)
class Signals:
    most: int = 0
    count: int = field(default=3, init=False)


def test_a_default_that_is_no_parameter_is_assigned() -> None:
    signals = Signals()

    signals.count += 1

    assert signals.count == 4


def test_a_class_is_like_that_of_the_standard_library() -> None:
    def made(decorate: Any) -> type:
        @decorate(frozen=True, slots=True)
        class Sample:
            """Words."""

            first: int
            second: str = "b"
            third: list[int] = field(default_factory=list, repr=False)
            fourth: int = field(default=4, kw_only=True)
            fifth: "str | None" = None

        return Sample

    ours: Any = made(dataclass)
    theirs: Any = made(dataclasses.dataclass)

    assert dir(ours) == dir(theirs)
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert repr(ours(1)) == repr(theirs(1))
    for name in ("__slots__", "__match_args__", "__doc__", "__qualname__", "__annotations__"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.__init__.__annotations__ == theirs.__init__.__annotations__
    assert repr(dataclasses.fields(ours)) == repr(dataclasses.fields(theirs))
