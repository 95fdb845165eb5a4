"""Records whether this process is importing handlers."""

from __future__ import annotations


class Loading:
    """A block in which handlers are imported.

    Inside the block, a wrong argument to ``@job`` or RetryPolicy disables only that job type, because an exception
    would also stop the import of the module's other handlers. Outside such a block, the decorator raises the error, so
    that the handler's author sees it.
    """

    depth = 0

    def __enter__(self) -> None:
        Loading.depth += 1

    def __exit__(self, *_: object) -> None:
        Loading.depth -= 1
