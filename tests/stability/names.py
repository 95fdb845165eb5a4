"""Read from the code the names that cronjobs promises to keep, and compare each list with the one stored here.

python tests/stability/names.py writes the lists anew. What a changed line needs, docs/reference/stability.md says.
"""

from __future__ import annotations

import inspect
import re
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

import generate
from sqlalchemy.dialects import postgresql
from support.project import Project

import cronjobs
from cronjobs.desk.cli.main import root
from cronjobs.engine.config import environment
from cronjobs.engine.config.reference import sections
from cronjobs.engine.database.tables import metadata
from cronjobs.engine.schema import migrations
from cronjobs.errors import EX_SOFTWARE, CronjobsError

STORED = Path(__file__).parent
ROOT = STORED.parents[1]


def python() -> Iterator[str]:
    """Each exported name with its signature, and the fields, properties and methods of each class."""
    for module_name in generate.MODULES:
        module = import_module(module_name)
        for name in generate.exported(module):
            value = getattr(module, name)
            if not callable(value):
                yield f"{module_name}.{name} = {value!r}"
                continue
            yield f"{module_name}: {_in_a_line(generate._heading(name, value))}"
            if inspect.isclass(value):
                yield from (f"{module_name}.{name}: {member}" for member in _members(value))


def _members(value: type) -> Iterator[str]:
    fields = {name: kind for name, kind in inspect.get_annotations(value).items() if not name.startswith("_")}
    yield from (f"{name}: {getattr(kind, '__forward_arg__', kind)}" for name, kind in fields.items())
    for name, member in value.__dict__.items():
        function = member.__func__ if isinstance(member, (classmethod, staticmethod)) else member
        if (name.startswith("_") and name != "__init__") or name in fields:
            continue
        if isinstance(member, property):
            yield f"{name} (property)"
        elif inspect.isfunction(function) and function.__code__.co_filename == inspect.getsourcefile(value):
            yield _in_a_line(generate._heading(name, function))


def _in_a_line(text: str) -> str:
    return re.sub(r"\(\s+", "(", re.sub(r",? \)", ")", re.sub(r"\s+", " ", text)))


def commands() -> Iterator[str]:
    """Each command and group; below it its options and arguments with their defaults."""
    yield from _taken("cronjobs", root)
    for command in generate.all_commands():
        yield f"cronjobs {command.path}"
        if command.function is not None:
            yield from _taken(f"cronjobs {command.path}", command.function)


def _taken(path: str, function: Callable[..., Any]) -> Iterator[str]:
    for each in generate.parameters(function):
        words = ", ".join(each.names) or each.value
        value = f" {each.value}" if each.names and each.value else ""
        yield f"{path}: {words}{value}" + (f" ({each.default})" if each.default else "")


def keys() -> Iterator[str]:
    """Each key of cronjobs.yaml with what it takes, and the variables of the environment."""
    for section in sections():
        for path in section.paths:
            for row in section.rows:
                yield f"{path + '.' if path else ''}{row.name}: {row.key.reader.words} (default: {row.default})"
    yield from (f"environment, read: {name}" for name in environment.READ)
    yield from (f"environment, given to commands: {name}" for name in environment.GIVEN)


def sql() -> Iterator[str]:
    """Of what docs/tables.md promises: the columns of tables and views on both databases, PostgreSQL's functions."""
    page = (ROOT / "docs/reference/tables.md").read_text(encoding="utf-8")
    promised = {name for line in re.findall(r"(?m)^##+ .*", page) for name in re.findall(r"cronjobs_\w+", line)}
    promised |= {f"{name}_readable" for name in promised} | {"cronjobs_dead_jobs", "cronjobs_long_running_jobs"}
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in migrations.statements("sqlite"):
            connection.execute(statement)
        found = connection.execute("SELECT type, name FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY 1, 2")
        for kind, name in found.fetchall():
            if name in promised:
                for _, column, declared, required, default, *_ in connection.execute(f"PRAGMA table_info({name})"):
                    given = "default now" if "strftime" in str(default) else f"default {default}"
                    must = "" if default is not None or not required else "required"
                    yield f"sqlite {kind} {name}.{column} {declared} {given if default else must}".rstrip()
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    for table in metadata.sorted_tables:
        if table.name in promised:
            for each in table.columns:
                yield f"postgresql table {table.name}.{each.name} {each.type.compile(dialect=dialect)}"
    for statement in migrations.statements("postgresql"):
        view = re.match(r"CREATE VIEW (\w+)", statement)
        function = re.match(r"CREATE FUNCTION (\w+)(.*?)\nLANGUAGE", statement, re.DOTALL)
        if view and view[1] in promised:
            yield f"postgresql view {view[1]}"
        if function and function[1] in promised:
            yield f"postgresql function {function[1]}{_in_a_line(function[2])}"


def exit_codes() -> Iterator[str]:
    """The codes that mean the same everywhere, and that of each exported error."""
    yield "0: the command did its work"
    yield "1: a job ended dead in this tick (--fail-on), or a check found something"
    yield f"{EX_SOFTWARE}: a fault of cronjobs itself"
    yield "128 + n: signal n; 142: the kernel's timer"
    for name in generate.exported(cronjobs):
        value = getattr(cronjobs, name)
        if isinstance(value, type) and issubclass(value, CronjobsError):
            yield f"{value.exit_code}: {name}"


def events() -> Iterator[str]:
    """Each event with its levels and facts."""
    for name, made in sorted(generate.events_in_code().items()):
        yield f"{name} ({' or '.join(made.levels)}): {' '.join(made.facts)}"


LOOKING = (  # every command of the desk that prints JSON and changes nothing, or little
    ("status",),
    ("jobs", "list"),
    ("jobs", "list", "--group-by", "error"),
    ("jobs", "show", "2"),
    ("schedules", "list"),
    ("schedules", "show", "nightly"),
    ("next",),
    ("history", "--since", "1h"),
    ("explain", "2"),
    ("explain", "nightly"),
    ("audit",),
    ("books",),
    ("effects", "list"),
    ("config", "show"),
    ("check",),
    ("sync", "--plan"),
    ("enqueue", "t.works"),
    ("trigger", "nightly"),
    ("pause", "--all", "--why", "public"),
    ("resume", "--all"),
    ("jobs", "retry", "2"),
    ("jobs", "cancel", "2"),
    ("prune", "--dry-run"),
    ("db", "current"),
    ("run-due",),
)

HANDLERS = """
from cronjobs import GiveUp, job

@job("t.works")
def works():
    return {"done": True}

@job("t.fails")
def fails():
    raise GiveUp("no")
"""
# Once a year: what is shown does not depend on the hour.
SCHEDULES = 'schedules: {nightly: {cron: "15 2 1 1 *", job: t.works}}\n'

OPAQUE = (
    "payload",
    "meta",
    "result",
    "facts",
    "did",
    "detail",
    "job_types",
)  # the user's, or may grow


def json() -> Iterator[str]:
    """The keys of what commands print with --json, from a project with a job that went well and one that is dead."""
    with tempfile.TemporaryDirectory() as folder:
        project = Project(Path(folder), f"sqlite:///{folder}/cronjobs.db")
        project.write(SCHEDULES, HANDLERS)
        for before in (["enqueue", "t.works"], ["enqueue", "t.fails"], ["run-due"]):
            project.run(*before)
        for words in LOOKING:
            # A tick sets a timer of the kernel that ends its process: not this one.
            answer = (project.run if words == ("run-due",) else project.call)(*words, "--json")
            assert answer.out, (words, answer)
            yield from (f"{' '.join(words)}: {path}" for path in sorted(set(_paths(answer.json))))


def _paths(value: Any, path: str = "") -> Iterator[str]:
    if isinstance(value, dict) and path.rpartition(".")[2] not in OPAQUE:
        for key, below in value.items():
            yield from _paths(below, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        yield f"{path}[]"
        for each in value:
            yield from _paths(each, f"{path}[]")
    else:
        yield path


LISTS: dict[str, Callable[[], Iterator[str]]] = {
    "python": python,
    "commands": commands,
    "keys": keys,
    "sql": sql,
    "exit-codes": exit_codes,
    "events": events,
    "json": json,
}


def stored(name: str) -> Path:
    return STORED / f"{name}.txt"


def text_of(name: str) -> str:
    return "".join(f"{line}\n" for line in LISTS[name]())


def main() -> None:
    for name in LISTS:
        stored(name).write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main()
