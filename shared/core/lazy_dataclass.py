"""Data classes whose methods are compiled when they are first used.

:func:`dataclasses.dataclass` compiles ``__init__``, ``__repr__``, ``__eq__``, ``__hash__`` and two more methods of each
class while its module is imported. A short command imports hundreds of such classes and uses a few dozen. The classes
here are those of the standard library in every other respect: ``fields``, ``replace``, ``asdict``, ``match``, pickles
and signatures see no difference, and a type checker sees :func:`dataclasses.dataclass` itself.

What a type checker reports and the standard library would raise for at import, it raises for at the first use: a field
without a default after one that has a default.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

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


DRAFTED_FROM: Final = 3
"""Fields from which an instance that cannot change is filled as one that can: 21 fields in a fifth of the time."""

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
    """Replace a method by one of our own or that of an equal class, and ``__eq__`` and ``__hash__`` together.

    Harmless when two threads do it.
    """
    if name == "__init__" and (initializer := _initializer(cls, frozen)):
        setattr(cls, name, initializer)
        return
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
        unsafe_hash=name in _COMPARISON and frozen,
        frozen=name == "__init__" and frozen,  # the others are equal without, and two methods less to compile
        slots="__slots__" in vars(cls),
    )
    for made in _COMPARISON if name in _COMPARISON else (name,):
        if isinstance(vars(cls).get(made), _Later):
            setattr(cls, made, vars(equal)[made])


def _initializer(cls: type, frozen: bool, *, drafts: bool = True) -> Callable[..., None] | None:
    """Compile the usual ``__init__`` alone, a quarter of the time of an equal class; None for one with more to it."""
    fields = dataclasses.fields(cls)
    if len(fields) < len(cls.__dataclass_fields__) or not _are_plain(fields):  # type: ignore[attr-defined]  # dataclass() has set it
        return None
    parameters, body = ["self"], []
    values: dict[str, object] = {"__set": object.__setattr__, "__factory": _FACTORY}
    names = tuple(each.name for each in fields)
    has_draft = cls.__bases__ == (object,) and vars(cls).get("__slots__") == names
    drafts = drafts and frozen and has_draft and len(names) >= DRAFTED_FROM
    if drafts:
        values |= {"__cls": cls, "__Draft": _draft_of(cls), "__plain": functools.partial(_initialize, cls)}
        body.append(f"if self.__class__ is not __cls: return __plain(self, {', '.join(names)})")
        body.append("__set(self, '__class__', __Draft)")
    for each in fields:
        name, default, value = each.name, "", each.name
        if each.default is not dataclasses.MISSING:
            values[f"__default_{name}"], default = each.default, f"=__default_{name}"
        elif each.default_factory is not dataclasses.MISSING:
            values[f"__make_{name}"], default = each.default_factory, "=__factory"
            value = f"__make_{name}() if {name} is __factory else {name}"
        parameters.append(name + default)
        body.append(f"__set(self, {name!r}, {value})" if frozen and not drafts else f"self.{name} = {value}")
    if drafts:
        body.append("self.__class__ = __cls")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    lines = "\n  ".join(body or ["pass"])
    source = f"def make({', '.join(values)}):\n def __init__({', '.join(parameters)}):\n  {lines}\n return __init__"
    namespace: dict[str, Any] = {}
    exec(source, sys.modules[cls.__module__].__dict__, namespace)  # noqa: S102  # names of fields, as the standard library does
    initializer: Callable[..., None] = namespace["make"](**values)
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    initializer.__annotations__ = {**{each.name: each.type for each in fields}, "return": None}
    return initializer


def _draft_of(cls: type) -> type:
    """Return a class with the same slots whose instances can change: an instance of ``cls`` is one while it is filled.

    Nobody else has it then.
    """
    return type(cls.__name__, (), {"__slots__": vars(cls)["__slots__"], "__module__": cls.__module__})


def _initialize(cls: type, instance: object, *values: object) -> None:
    """Fill an instance of a subclass, which may have another layout."""
    initializer = _initializer(cls, frozen=True, drafts=False)
    assert initializer is not None  # it has just been compiled with drafts
    initializer(instance, *values)


def _are_plain(fields: Sequence["dataclasses.Field[Any]"]) -> bool:
    """Say whether each field is a parameter by position, and none without a default follows one that has one."""
    has_default = [
        each.default is not dataclasses.MISSING or each.default_factory is not dataclasses.MISSING for each in fields
    ]
    return has_default == sorted(has_default) and all(
        each.init and not each.kw_only and each.name != "self" and not each.name.startswith("__") for each in fields
    )


class _Factory:
    """The default of a parameter whose field has a factory."""

    def __repr__(self) -> str:
        return "<factory>"


_FACTORY: Final = _Factory()


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
