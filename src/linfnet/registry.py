"""Tables of losses, systems, attacks and kernels by name; a decorator adds entries.

Other packages can add entries in the same way when their modules are imported (see `linfnet.plugins`).
"""

from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Generic, TypeVar

from linfnet import plugins
from linfnet.errors import ArgumentError, nearest

T = TypeVar("T")
Added = TypeVar("Added")


class Registry(Generic[T]):
    """A table from names to objects of one kind. An unknown name first loads the entry points of installed plugins.

    Args:
        kind: the word for a name in error messages, such as `loss.name`.

    >>> shapes: Registry[type] = Registry("shape")
    >>> @shapes.register("circle")
    ... class Circle: ...
    >>> shapes["circle"].__name__, shapes.names()
    ('Circle', ('circle',))
    """

    of_kind: ClassVar[dict[str, "Registry[Any]"]] = {}
    """The registry of each kind."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.of_kind[kind] = self
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[Added], Added]:
        """Return a decorator that adds a class or function under a name. A name can be registered only once."""

        def add(entry: Added) -> Added:
            if name in self._entries:
                raise ArgumentError(f"{self.kind} {name!r} is already registered as {self._entries[name]!r}")
            self._entries[name] = entry  # pyright: ignore[reportArgumentType]
            return entry

        return add

    def __getitem__(self, name: str) -> T:
        if name not in self:
            known = ", ".join(self.names())
            hint = f"{nearest(name, self._entries)} ({plugins.HINT})"
            raise ArgumentError(f"{self.kind} is {name!r}; expected one of {known}{hint}")
        return self._entries[name]

    def __contains__(self, name: object) -> bool:
        if name not in self._entries:
            plugins.load_entry_points()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def name_of(self, entry: object) -> str:
        """Return the name under which an entry is registered."""
        for name, known in self._entries.items():
            if known is entry:
                return name
        raise ArgumentError(f"{entry!r} is not registered as a {self.kind}")

    def names(self) -> tuple[str, ...]:
        """Return all names, sorted."""
        return tuple(sorted(self._entries))
