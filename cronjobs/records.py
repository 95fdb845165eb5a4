"""``dataclass`` for what a tick loads: its classes are made in a tenth of the time, and a tick makes over a hundred.

The standard library compiles each class's own ``__init__``, ``__eq__``, ``__repr__``, ``__hash__``, ``__setattr__`` and
``__delattr__``. Here all classes share the same, which mean the same; only ``__init__`` is compiled, at its first use,
which most classes of a tick never see.
"""

from __future__ import annotations

from reprlib import recursive_repr
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    import sys
    from operator import attrgetter

    def dataclass(cls=None, /, *, frozen=False, **options):
        """As ``dataclasses.dataclass``, for classes that are not ordered."""

        def made(cls):
            own = {*vars(cls)}
            cls = _with_late_init(cls, own, frozen, options) if _is_plain(cls) else _with_its_own(cls, frozen, options)
            fields = dataclasses.fields(cls)
            cls.__compared__ = _values([each.name for each in fields if each.compare])
            cls.__shown__ = [each.name for each in fields if each.repr]
            shared = {"__eq__": _equal, "__repr__": _shown, "__hash__": _hashed if frozen else None}
            for name in shared.keys() - own:
                setattr(cls, name, shared[name])
            return cls

        return made if cls is None else made(cls)

    def _is_plain(cls):
        """Whether it inherits nothing, and ``__init__`` takes nothing that it does not keep."""
        return cls.__bases__ == (object,) and not any("InitVar" in str(kind) for kind in cls.__annotations__.values())

    def _with_its_own(cls, frozen, options):
        return dataclasses.dataclass(cls, frozen=frozen, eq=False, repr=False, **options)

    def _with_late_init(cls, own, frozen, options):
        if cls.__doc__ is None:  # the standard library would write the signature, for which it needs an __init__
            cls.__doc__ = f"{cls.__name__}({', '.join(cls.__annotations__)})"
        cls = dataclasses.dataclass(cls, init=False, eq=False, repr=False, **options)
        cls.__dataclass_params__.init = True
        if "__init__" not in own:
            cls.__init__ = _LateInit(cls, frozen)
        if frozen:
            cls.__dataclass_params__.frozen = True
            cls.__setattr__, cls.__delattr__ = _not_set, _not_deleted
            if options.get("slots") and "__getstate__" not in own:
                cls.__getstate__, cls.__setstate__ = _state, _with_state
        return cls

    class _LateInit:
        """An ``__init__`` that takes its place when an object is made, or when somebody looks at it."""

        def __init__(self, cls, frozen):
            self._cls, self._frozen = cls, frozen

        def __get__(self, instance, owner=None):
            made = _init_of(self._cls, self._frozen)
            self._cls.__init__ = made
            return made.__get__(instance, owner)

    def _init_of(cls, frozen):
        fields = dataclasses.fields(cls)
        me = "__dataclass_self__" if "self" in {each.name for each in fields} else "self"
        values = {"__set__": object.__setattr__, "__default__": _DEFAULT}
        parameters, by_name, lines = [], [], []
        for each in fields:
            name, value, parameter = each.name, each.name, each.name
            if each.default is not dataclasses.MISSING:
                values[f"__default_{name}__"] = each.default
                parameter = f"{name}=__default_{name}__"
                value = name if each.init else f"__default_{name}__" if "__slots__" in vars(cls) else None
            elif each.default_factory is not dataclasses.MISSING:
                values[f"__new_{name}__"] = each.default_factory
                parameter = f"{name}=__default__"
                value = f"__new_{name}__()" + (f" if {name} is __default__ else {name}" if each.init else "")
            elif not each.init:
                value = None
            if each.init:
                (by_name if each.kw_only else parameters).append(parameter)
            if value is not None:
                lines.append(f"__set__({me}, {name!r}, {value})" if frozen else f"{me}.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append(f"{me}.__post_init__()")
        listed = ", ".join([me, *parameters, *(["*", *by_name] if by_name else [])])
        body = "\n  ".join(lines or ["pass"])
        source = f"def __with__({', '.join(values)}):\n def __init__({listed}):\n  {body}\n return __init__"
        found = {}
        exec(source, vars(sys.modules[cls.__module__]) if cls.__module__ in sys.modules else {}, found)
        made = found["__with__"](**values)
        made.__qualname__ = f"{cls.__qualname__}.__init__"
        made.__annotations__ = {each.name: each.type for each in fields if each.init} | {"return": None}
        return made

    class _Default:
        def __repr__(self):
            return "<factory>"

    _DEFAULT = _Default()

    def _not_set(self, name, value):
        if _is_fixed(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        object.__setattr__(self, name, value)

    def _not_deleted(self, name):
        if _is_fixed(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        object.__delattr__(self, name)

    def _is_fixed(self, name):
        """An object of a class that inherits from a dataclass may have attributes beside the fields."""
        return "__dataclass_fields__" in vars(type(self)) or name in self.__dataclass_fields__

    def _state(self):
        return [getattr(self, each.name) for each in dataclasses.fields(self)]

    def _with_state(self, state):
        for each, value in zip(dataclasses.fields(self), state, strict=True):
            object.__setattr__(self, each.name, value)

    def _values(names):
        """A function from an object to the tuple of its values of these *names*: of several, one in C."""
        if len(names) > 1:
            return staticmethod(attrgetter(*names))
        return staticmethod(lambda found: tuple([getattr(found, name) for name in names]))

    def _equal(self, other):
        if other.__class__ is not self.__class__:
            return NotImplemented
        return self.__compared__(self) == other.__compared__(other)

    def _hashed(self):
        return hash(self.__compared__(self))

    @recursive_repr("...")
    def _shown(self):
        values = ", ".join([f"{name}={getattr(self, name)!r}" for name in self.__shown__])
        return f"{self.__class__.__qualname__}({values})"
