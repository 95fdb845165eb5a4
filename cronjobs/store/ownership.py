"""Checks whose database it is: we neither claim from nor write to a restored copy or another app's database."""

from __future__ import annotations

from typing import Final

from cronjobs.config.settings import Settings
from cronjobs.errors import ForeignDatabase, MovedDatabase

MOVED: Final = "moved to "  # prefix of the environment of a database that was copied elsewhere


def is_ours(settings: Settings, project: str, environment: str) -> bool:
    """Whether the database of *project* and *environment* is that of *settings*; False: no project owns it yet.

    Raises ForeignDatabase if another one owns it.
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
