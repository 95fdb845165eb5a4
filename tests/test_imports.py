"""Imports between layers go only one way. Each outside library, the clock and SQL are each used in one place only."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

# In one process, where each file is parsed once: that takes most of the time.
pytestmark = pytest.mark.xdist_group("imports")

PACKAGE = Path(__file__).resolve().parents[1] / "cronjobs"

# The layers. Lowest first: what a layer holds imports nothing of those that follow it.
LAYERS = ["engine", "desk", "contrib"]
# Public names, and the start of a process: what they load, they load when it is used.
ABOVE_ALL = {"", "extras", "__main__"}

# Inside the engine, and what stands beside it, lowest first: a module imports only what stands before it.
ORDER = [
    *("version", "starting", "reserved", "engine.probe"),
    *("text", "masking", "errors", "installed", "clock", "loading", "model", "engine.host", "engine.rules", "events"),
    *("engine.crontime", "engine.database", "engine.config", "engine.store", "engine.schema", "autogenerate"),
    *(
        "engine.schedules",
        "engine.jobs",
        "engine.execution",
        "engine.tick",
        "engine.command",
        "engine.run_due",
        "testing",
    ),
]

ONLY = {
    "croniter": {"engine.crontime"},
    "alembic": {"engine.schema"},
    "yaml": {"engine.config"},
    # execution.launcher is a script of its own, started without this package; exec.start is as light as the probe
    "time": {"clock", "engine.probe", "engine.execution", "contrib.exec"},
    "typer": {"desk.cli", "contrib"},
    "distributed": {"contrib.dask"},
    "werkzeug": {"contrib.web"},
    "jinja2": {"contrib.web"},
    "waitress": {"contrib.web"},
    "pydantic": {"engine.rules"},
    "pydantic_core": {"engine.rules"},
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


def layer(module: str) -> str:
    """The layer of *module*; what stands beside the layers belongs to the engine."""
    first = module.partition(".")[0]
    return first if first in LAYERS else "engine"


def room(module: str) -> str:
    """The folder of *module* in its layer, or its own name if it stands beside the layers."""
    parts = module.split(".")
    return ".".join(parts[:2]) if parts[0] in LAYERS else parts[0]


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


@cache
def our_imports() -> list[tuple[str, str]]:
    """Each module of ours with each of ours that it imports when it runs."""
    return [
        (module, name)
        for module, path in modules()
        if module not in ABOVE_ALL
        for full in imported(path)
        if (name := own(full))
    ]


def test_a_layer_imports_nothing_of_those_above_it() -> None:
    assert [each for each in our_imports() if LAYERS.index(layer(each[1])) > LAYERS.index(layer(each[0]))] == []


def test_no_extra_imports_another() -> None:
    of_extras = [each for each in our_imports() if layer(each[0]) == layer(each[1]) == "contrib"]
    assert [each for each in of_extras if room(each[0]) != room(each[1])] == []
    assert of_extras


def test_inside_the_engine_a_module_imports_only_what_stands_below_it() -> None:
    places = {name: place for place, name in enumerate(ORDER)}
    inside = [(room(module), room(name)) for module, name in our_imports() if layer(module) == layer(name) == "engine"]
    assert {name for pair in inside for name in pair} == places.keys()
    assert {pair for pair in inside if places[pair[1]] > places[pair[0]]} == set()


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
        next(home for home in (room(module), layer(module)) if home in ONLY[library] or home == layer(module))
        for module, path in modules()
        if any(name == library or name.startswith(f"{library}.") for name in imported(path))
    }
    assert users == ONLY[library]


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
