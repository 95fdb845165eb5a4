"""Imports run one way; each outside library, time and SQL have one home."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

# In one process, where each file is parsed once: that takes most of the time.
pytestmark = pytest.mark.xdist_group("imports")

PACKAGE = Path(__file__).resolve().parents[2] / "cronjobs"

# What runs before the command of "cronjobs exec", and what an idle tick asks: without weight, as the probe.
EXEC_FIRST = [f"exec.{name}" for name in ("arguments", "spool", "copying", "recording", "start")]

# Lowest first: a module imports only what stands before it; inside a room, no circle.
ORDER = [
    *("version", "starting", "reserved", "probe", *EXEC_FIRST),
    *("text", "masking", "errors", "clock", "loading", "model", "host", "rules", "events"),
    *("crontime", "database", "config", "store", "schema", "autogenerate", "schedules"),
    *("jobs", "execution", "tick", "run_due"),
    *("metrics", "crontab", "exec", "insight", "alerts", "engines"),
    *("doctor", "testing", "init", "web", "django"),
    *("cli", "__main__", "django.management.commands.cronjobs"),
]
BESIDE = ("cronjobs_copy", "cronjobs_demo", "cronjobs_drill")  # programs that use the package

ONLY = {
    "croniter": {"crontime"},
    "alembic": {"schema"},
    "yaml": {"config"},
    # execution.launcher is a script of its own, started without this package; exec.start is as light as the probe
    "time": {"clock", "probe", "execution", "exec"},
    "typer": {"cli"},
    "distributed": {"engines"},
    "pydantic": {"rules"},
    "pydantic_core": {"rules"},
}


@cache
def modules() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if "__pycache__" in path.parts:
            continue
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            found.append((name, path))
    return found


def imported(path: Path, *, types: bool = False) -> set[str]:
    """Full names of what a file imports when it is loaded or later; with *types*, also for the type checker alone."""
    when_run, for_types = _imported(path)
    return when_run | for_types if types else when_run


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All of a file's syntax tree; every file is read for several tests."""
    return [*ast.walk(ast.parse(path.read_text()))]


@cache
def _imported(path: Path) -> tuple[set[str], set[str]]:
    """What a file imports when it runs, and what for the type checker alone."""
    when_run: set[str] = set()
    for_types: set[str] = set()
    typing_only = {
        id(node)
        for block in nodes(path)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    for node in nodes(path):
        names = for_types if id(node) in typing_only else when_run
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return when_run, for_types


def rank(module: str) -> int:
    """The place of *module* in ORDER: by its own name, or by its folder's."""
    for name in (module, module.partition(".")[0]):
        if name in ORDER:
            return ORDER.index(name)
    raise AssertionError(f"{module} has no place in the order of tests/unit/test_imports.py")


@cache
def own(name: str) -> str | None:
    """The module of ours that an imported full name belongs to."""
    if not name.startswith("cronjobs."):
        return None
    parts = name.removeprefix("cronjobs.").split(".")
    while parts:
        path = PACKAGE.joinpath(*parts)
        if path.with_suffix(".py").exists() or path.is_dir():
            return ".".join(parts)
        parts.pop()
    return None


def test_a_module_imports_only_what_stands_below_it() -> None:
    above = {
        f"{module} imports {name}"
        for module, path in modules()
        for full in imported(path)
        if (name := own(full)) and rank(name) > rank(module) and name.partition(".")[0] != module.partition(".")[0]
    }
    assert not above, "what is imported stands above"


def test_only_tables_of_commands_name_the_programs_beside_the_package_and_nothing_imports_them() -> None:
    named = {module: path for module, path in modules() if any(each in path.read_text() for each in BESIDE)}
    assert set(named) == {"cli.main", "cli.db"}
    assert not {name for path in named.values() for name in imported(path, types=True) if name.startswith(BESIDE)}


def test_no_module_comes_back_to_itself_by_imports_not_even_by_those_for_types() -> None:
    names = {name for name, _ in modules()}
    graph = {
        name: {found for full in imported(path, types=True) if (found := own(full)) in names} - {name}
        for name, path in modules()
    }
    while leaves := {name for name, needed in graph.items() if not needed}:
        graph = {name: needed - leaves for name, needed in graph.items() if name not in leaves}
    assert not graph, f"circles among, or above: {sorted(graph)}"


@pytest.mark.parametrize("library", ONLY)
def test_each_outside_library_has_one_home(library: str) -> None:
    users = {
        module.partition(".")[0]
        for module, path in modules()
        if any(name == library or name.startswith(f"{library}.") for name in imported(path))
    }
    assert users == ONLY[library] & users
    assert users, f"nobody imports {library}: the rule is out of date"


def test_nobody_but_the_clock_reads_time() -> None:
    readers = set()
    for module, path in modules():
        for node in nodes(path):
            if (
                isinstance(node, ast.Attribute)
                and node.attr in ("now", "utcnow", "today")
                and isinstance(node.value, ast.Name)
                and node.value.id in ("datetime", "date")
            ):
                readers.add(module)
    assert readers == {"clock"}
