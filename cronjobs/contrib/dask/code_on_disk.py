"""Detect a deploy: compare the files that this process has loaded with the files on disk."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from cronjobs.engine.jobs.registry import Registration

Mark = tuple[int, int, int]


def changes_from_now(configuration: Iterable[Path], handlers: Iterable[Registration]) -> Callable[[], bool]:
    """Return a function that checks whether the *configuration* or the handlers' files have changed since this call."""
    files = [str(file) for file in configuration]
    for registration in handlers:
        try:
            files.append(inspect.getsourcefile(inspect.unwrap(registration.handler)) or "")
        except TypeError:  # a callable object has no source file
            continue
    marks = {file: _mark(file) for file in files if file}
    return lambda: any(_mark(file) != mark for file, mark in marks.items())


def _mark(file: str) -> Mark | None:
    """Return values that change when the file is rewritten or replaced, or None if the file does not exist."""
    try:
        found = os.stat(file)  # noqa: PTH116 the path is relative to the original working directory
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
