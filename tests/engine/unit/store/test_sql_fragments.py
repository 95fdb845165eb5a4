"""A module of store/ that is imported alone has every piece of SQL that its templates name."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

STORE = Path(__file__).parents[4] / "cronjobs" / "engine" / "store"
MODULES = sorted(path.stem for path in STORE.glob("*.py") if path.stem != "__init__")
SQL = re.compile(r"\b(SELECT|INSERT|UPDATE|DELETE|WHERE)\b")


def named_in(module: str) -> set[str]:
    """What is in braces in the module's SQL; f-strings are values of Python's."""
    tree = ast.parse((STORE / f"{module}.py").read_text())
    formatted = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    texts = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in formatted
    ]
    return {name for text in texts if SQL.search(text) for name in re.findall(r"\{([a-z_]+)\}", text)}


PROGRAM = """
import importlib, os, sys
import sqlalchemy  # what takes long is loaded once
for module in sys.argv[1:]:
    if os.fork() == 0:
        importlib.import_module(f"cronjobs.engine.store.{module}")
        from cronjobs.engine.store import sql
        print(module, *sql._fragments, flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def pieces() -> dict[str, set[str]]:
    """The pieces that are known where only this module was imported."""
    done = subprocess.run([sys.executable, "-c", PROGRAM, *MODULES], capture_output=True, text=True, check=True)
    return {module: set(names) for module, *names in map(str.split, done.stdout.splitlines())}


def test_its_pieces_of_sql_come_with_what_a_module_imports(pieces: dict[str, set[str]]) -> None:
    """``status`` once failed because only the tick imported the module that defined a piece."""
    every = set().union(*pieces.values())
    missing = {module: (named_in(module) & every) - pieces[module] for module in MODULES}
    assert {module: names for module, names in missing.items() if names} == {}
