"""Whose database is it? A copy restored elsewhere, or another app's, is neither claimed from nor written to."""

from __future__ import annotations

from typing import Final

from cronjobs.config.settings import Settings
from cronjobs.errors import ForeignDatabase, MovedDatabase

MOVED: Final = "moved to "  # what the environment of a database that was copied elsewhere begins with


def is_ours(settings: Settings, project: str, environment: str) -> bool:
    """Whether a database that says *project* and *environment* is that of *settings*; False: nobody's yet.

    Raises ForeignDatabase when it is somebody else's.
    """
    ours, theirs = (settings.project, settings.environment), (project, environment)
    if ours == theirs:
        return True
    if theirs == ("", ""):
        return False
    if environment.startswith(MOVED):
        raise MovedDatabase(environment.removeprefix(MOVED))
    index = 0 if ours[0] != theirs[0] else 1
    raise ForeignDatabase(what=("project", "environment")[index], theirs=theirs[index], ours=ours[index])
