"""Records whether this process is importing handlers.

While it is, a wrong argument to a decorator disables only the decorated handler's job type.
"""

from __future__ import annotations


class Loading:
    """A block in which handlers are imported.

    In it, a wrong argument to ``@job`` or RetryPolicy disables only that job type. Outside such a block, the error is
    raised, so that the handler's author sees it. Raising it inside would also stop the other handlers of the module.
    """

    depth = 0

    def __enter__(self) -> None:
        Loading.depth += 1

    def __exit__(self, *_: object) -> None:
        Loading.depth -= 1
