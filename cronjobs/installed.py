"""Import what stands above the engine, by the names of its modules. An installation may lack some of it."""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from cronjobs.errors import CronjobsError


def if_installed(module: str) -> ModuleType | None:
    """The module, or None if this installation does not have it, or not the folder it is in."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{module}.".startswith(f"{error.name}."):
            return None
        raise


def needed(module: str, what: str) -> ModuleType:
    """Return *module*, which *what* needs. Raises CronjobsError if it is not installed."""
    found = if_installed(module)
    if found is None:
        raise CronjobsError(f"{what} needs {module.rpartition('.')[0]}, which this installation does not have")
    return found
