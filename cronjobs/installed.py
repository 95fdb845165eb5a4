"""Imports modules of ``cronjobs.desk`` and of extras by name, because they may not be installed."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from cronjobs.errors import CronjobsError


def if_installed(module: str) -> ModuleType | None:
    """Import *module*. Return None if this installation lacks the module, or a package that contains it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise


def needed(module: str, what: str) -> ModuleType:
    """Import *module*, which *what* needs. Raises CronjobsError if the module is not installed."""
    found = if_installed(module)
    if found is None:
        raise CronjobsError(f"{what} needs {module.rpartition('.')[0]}, which this installation does not have")
    return found
