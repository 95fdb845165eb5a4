"""The modules of examples/recipes, for tests that call their handlers in this process."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from cronjobs.engine.jobs import registry

FOLDER = Path(__file__).parents[2] / "examples" / "recipes"


def recipe(name: str) -> Any:
    """Yield the module *name*. Afterwards unregister its job types, so that other tests do not see them."""
    before = dict(registry._registered)
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    try:
        return importlib.import_module(name)
    finally:
        registry._registered.clear()
        registry._registered.update(before)
