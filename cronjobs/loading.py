"""Whether this process is importing handlers; then a wrong argument of a decorator stops only its own job type."""

from __future__ import annotations


class Loading:
    """While a tick or a command loads handlers, a wrong argument of ``@job`` or its RetryPolicy is a fault of its type.

    Elsewhere it is raised, for the handler's author; raising it here would stop the module's other handlers.
    """

    depth = 0

    def __enter__(self) -> None:
        Loading.depth += 1

    def __exit__(self, *_: object) -> None:
        Loading.depth -= 1
