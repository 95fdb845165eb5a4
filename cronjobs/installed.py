"""Extras, by the names of their modules: an installation may lack some."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import Final

from cronjobs.errors import CronjobsError

CONTRIB: Final = "cronjobs.contrib"


def if_installed(module: str) -> ModuleType | None:
    """The module of an extra; None: this installation does not have it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith(CONTRIB) and f"{module}.".startswith(f"{error.name}."):
            return None
        raise


def needed(module: str, what: str) -> ModuleType:
    """The module of an extra without which there is no *what*. Raises CronjobsError."""
    found = if_installed(module)
    if found is None:
        raise CronjobsError(f"{what} needs {module.rpartition('.')[0]}, which this installation does not have")
    return found
