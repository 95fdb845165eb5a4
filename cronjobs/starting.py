"""Runs the garbage collector less often while a process starts. Most objects that imports allocate are never freed."""

from __future__ import annotations

import gc

# How many allocations trigger a collection during start-up. In effect there is none, because even a tick with work
# allocates only 100,000 objects by then.
OBJECTS = 300_000
# How many allocations trigger a collection during work. A job keeps about thirty objects alive until its outcome is
# written.
WORKING = 10_000

_usual: tuple[int, int, int] | None = None


def begin() -> None:
    """From now on, run the garbage collector rarely."""
    global _usual
    if _usual is None:
        _usual = gc.get_threshold()
        gc.set_threshold(OBJECTS, *_usual[1:])


def end() -> None:
    """From now on, collect garbage almost as often as usual, but ignore the objects that exist now. Call this before
    user code is imported.
    """
    global _usual
    if _usual is not None:
        gc.freeze()
        # If the usual threshold is 0, someone has turned the garbage collector off. Keep it off.
        gc.set_threshold(_usual[0] and max(WORKING, _usual[0]), *_usual[1:])
        _usual = None
