"""``dataclass`` for what a tick loads: its classes are made in a third of the time, and a tick makes over a hundred.

The standard library compiles ``__eq__``, ``__repr__`` and ``__hash__`` for each class; here all share the same, which
mean the same.
"""

from __future__ import annotations

from reprlib import recursive_repr
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from operator import attrgetter

    def dataclass(cls=None, /, *, frozen=False, **options):
        """As ``dataclasses.dataclass``, for classes that are not ordered."""

        def made(cls):
            own = vars(cls).keys() & {"__eq__", "__repr__", "__hash__"}
            cls = dataclasses.dataclass(cls, frozen=frozen, eq=False, repr=False, **options)
            fields = dataclasses.fields(cls)
            cls.__compared__ = _values([each.name for each in fields if each.compare])
            cls.__shown__ = [each.name for each in fields if each.repr]
            shared = {"__eq__": _equal, "__repr__": _shown, "__hash__": _hashed if frozen else None}
            for name in shared.keys() - own:
                setattr(cls, name, shared[name])
            return cls

        return made if cls is None else made(cls)

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
