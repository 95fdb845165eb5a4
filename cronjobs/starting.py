"""Collects less garbage while a process starts: nearly all that imports allocate stays for good."""

from __future__ import annotations

import gc

# allocations between two collections while it starts: in effect none, as a tick with work leaves 100,000 by then
OBJECTS = 300_000
WORKING = 10_000  # while it works: each job of a drain keeps some thirty objects until its end is written

_usual: tuple[int, int, int] | None = None


def begin() -> None:
    """Collect rarely from here on."""
    global _usual
    if _usual is None:
        _usual = gc.get_threshold()
        gc.set_threshold(OBJECTS, *_usual[1:])


def end() -> None:
    """Collect nearly as usual again, but nothing that exists now. Call it before user code is imported."""
    global _usual
    if _usual is not None:
        gc.freeze()
        gc.set_threshold(_usual[0] and max(WORKING, _usual[0]), *_usual[1:])  # 0: somebody has switched collection off
        _usual = None
