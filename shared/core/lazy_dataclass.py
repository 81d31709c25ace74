"""Data classes whose methods are compiled when they are first used.

:func:`dataclasses.dataclass` compiles ``__init__``, ``__repr__``, ``__eq__``, ``__hash__`` and two more methods of each
class while its module is imported. A short command imports hundreds of such classes and uses a few dozen. The classes
here are those of the standard library in every other respect: ``fields``, ``replace``, ``asdict``, ``match``, pickles
and signatures see no difference, and a type checker sees :func:`dataclasses.dataclass` itself.

What a type checker reports and the standard library would raise for at import, it raises for at the first use: a field
without a default after one that has a default.
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass  # noqa: PLC0414 - re-exported under its own name
else:

    def dataclass(*, frozen: bool = False, slots: bool = False, **options: bool) -> Callable[[type], type]:
        """Return the decorator of a data class; options are those of :func:`dataclasses.dataclass`."""

        def decorate(cls: type) -> type:
            # Inherited fields and rare options are left to the standard library.
            if options.keys() - _LATER or dataclasses.is_dataclass(cls):
                return dataclasses.dataclass(frozen=frozen, slots=slots, **options)(cls)
            return _prepared(cls, frozen, slots, options)

        return decorate


_LATER = frozenset({"init", "repr", "eq"})
_COMPARISON = ("__eq__", "__hash__")


def _prepared(cls: type, frozen: bool, slots: bool, options: Mapping[str, bool]) -> type:
    own = vars(cls)
    wanted = [
        name for name in ("__init__", "__repr__", "__eq__") if options.get(name.strip("_"), True) and name not in own
    ]
    has_hash = own.get("__hash__") is not None or ("__hash__" in own and "__eq__" not in own)
    if options.get("eq", True) and not has_hash:
        if frozen:
            wanted.append("__hash__")
        else:
            cls.__hash__ = None  # type: ignore[assignment]  # instances that can change are not hashable
    if cls.__doc__ is None:
        cls.__doc__ = cls.__name__  # otherwise the standard library writes a signature, which takes __init__
    made: type = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    for name in wanted:
        setattr(made, name, _Later(made, name, frozen))
    if frozen:
        _freeze(made, slots)
    return made


class _Later:
    """A method of a data class that is not compiled yet; the first look at it compiles it."""

    __slots__ = ("cls", "frozen", "name")

    def __init__(self, cls: type, name: str, frozen: bool) -> None:
        self.cls = cls
        self.name = name
        self.frozen = frozen

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        cls = self.cls
        if vars(cls)[self.name] is self:
            _compile(cls, self.name, self.frozen)
        return vars(cls)[self.name].__get__(instance, owner)


def _compile(cls: type, name: str, frozen: bool) -> None:
    """Replace a method by that of an equal class, and ``__eq__`` and ``__hash__`` together.

    Harmless when two threads do it.
    """
    namespace: dict[str, object] = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": name}
    if hasattr(cls, "__post_init__"):
        namespace["__post_init__"] = cls.__post_init__
    members = [(each.name, each.type, each) for each in cls.__dataclass_fields__.values()]  # type: ignore[attr-defined]  # dataclass() has set it
    # With slots a default that is no parameter is assigned; without, it would be left to the class, which has a slot.
    equal = dataclasses.make_dataclass(
        cls.__name__,
        members,
        namespace=namespace,
        init=name == "__init__",
        repr=name == "__repr__",
        eq=name in _COMPARISON,
        frozen=frozen,
        slots="__slots__" in vars(cls),
    )
    for made in _COMPARISON if name in _COMPARISON else (name,):
        if isinstance(vars(cls).get(made), _Later):
            setattr(cls, made, vars(equal)[made])


def _freeze(cls: type, slots: bool) -> None:
    names = frozenset(each.name for each in dataclasses.fields(cls))
    cls.__setattr__ = _refusal(cls, names, "assign to", "__setattr__")  # type: ignore[method-assign]  # as frozen=True does
    cls.__delattr__ = _refusal(cls, names, "delete", "__delattr__")  # type: ignore[method-assign]  # likewise
    cls.__dataclass_params__.frozen = True  # type: ignore[attr-defined]  # for subclasses, which have to be frozen too
    if slots:
        for method in (_getstate, _setstate):
            name = f"__{method.__name__.strip('_')}__"
            if name not in vars(cls):
                setattr(cls, name, method)


def _refusal(cls: type, names: frozenset[str], verb: str, method: str) -> Callable[..., None]:
    def refuse(self: object, name: str, *value: object) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot {verb} field {name!r}")
        getattr(super(cls, self), method)(name, *value)

    return refuse


def _getstate(self: Any) -> list[object]:
    return [getattr(self, each.name) for each in dataclasses.fields(self)]


def _setstate(self: Any, state: list[object]) -> None:
    for each, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)
