"""Each command is loaded only when it is called, and the list of commands has the same text as the command's help."""

from __future__ import annotations

import inspect
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
import typer
from typer.main import get_command
from typer.testing import CliRunner

from cronjobs.desk.cli.commands import Listed
from cronjobs.desk.cli.main import app


def listed(group: Any, path: str = "") -> Iterator[tuple[str, Listed]]:
    for name, found in group.commands.items():
        if isinstance(found, Listed):
            yield f"{path}{name}", found
            loaded = found.load()
            if hasattr(loaded, "commands"):
                yield from listed(loaded, f"{path}{name} ")


COMMANDS = dict(listed(get_command(app)))


def test_the_table_has_every_command_and_each_has_a_panel() -> None:
    assert len(COMMANDS) == 35 + 6 + 9 + 9
    assert {found.row.panel for path, found in COMMANDS.items() if " " not in path} == {
        "Every day",
        "Schedules",
        "Repair",
        "Set up",
    }


@pytest.mark.parametrize("path", COMMANDS)
def test_the_list_says_of_a_command_what_its_own_help_begins_with(path: str) -> None:
    row, loaded = COMMANDS[path].row, COMMANDS[path].load()
    assert inspect.cleandoc(loaded.help).splitlines()[0] == row.help
    assert loaded.name == path.rpartition(" ")[2]
    assert loaded.epilog == row.epilog or row.where.endswith(":app")


def loaded_by(*words: str) -> set[str]:
    program = (
        "import sys, io, contextlib, json\n"
        "from cronjobs.desk.cli import main\n"
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):\n"
        "    main.app(sys.argv[1:], prog_name='cronjobs')\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


@pytest.mark.parametrize("words", [("--version",), ("--help",), ("jobs", "--help"), ("next", "0 2 * * *", "-n", "1")])
def test_what_needs_no_database_loads_no_sqlalchemy(words: tuple[str, ...]) -> None:
    found = loaded_by(*words)
    assert {"sqlalchemy", "alembic"} & found == set()


def test_a_plain_tick_loads_no_typer() -> None:
    program = (
        "import sys; from cronjobs.__main__ import _load; _load(['run-due', '--config', 'x']); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert {"typer", "pydantic", "rich", "alembic", "croniter"} & {*done.stdout.split()} == set()


def test_a_tick_with_work_on_sqlite_loads_neither_postgresqls_modules_nor_what_only_commands_need(
    tmp_path: Path,
) -> None:
    (tmp_path / "cronjobs.yaml").write_text("database: sqlite:///jobs.db\nimports: [handlers]\n")
    (tmp_path / "handlers.py").write_text("""
import sys
from cronjobs import job
@job("t.loaded")
def loaded(ids: list[int]):
    unused = ("psycopg", "pydantic", "typer", "rich", "alembic", "croniter")
    return [name for name in sys.modules if "postgresql" in name or name in unused]
""")
    given: dict[str, Any] = {"cwd": tmp_path, "check": True, "env": {"XDG_STATE_HOME": str(tmp_path), "HOME": "/"}}
    for words in (["db", "upgrade"], ["enqueue", "t.loaded", "--payload", '{"ids": [1]}'], ["run-due"]):
        subprocess.run([sys.executable, "-m", "cronjobs", *words], capture_output=True, **given)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        [(result,)] = connection.execute("SELECT result FROM cronjobs_jobs")
    assert json.loads(result) == []


def test_a_tick_with_work_on_postgresql_loads_nothing_of_sqlalchemys_for_sqlite(
    tmp_path: Path, postgres_migrated: str
) -> None:
    (tmp_path / "cronjobs.yaml").write_text(f"database: {postgres_migrated}\nimports: [handlers]\n")
    (tmp_path / "handlers.py").write_text("""
import sys
from cronjobs import job
@job("t.loaded")
def loaded():
    return [name for name in sys.modules if name.startswith("sqlalchemy.dialects.")]
""")
    with psycopg.connect(postgres_migrated.replace("+psycopg", "")) as connection:
        connection.execute("INSERT INTO cronjobs_jobs (job_type) VALUES ('t.loaded')")
        connection.commit()
        given: dict[str, Any] = {"cwd": tmp_path, "check": True, "env": {"XDG_STATE_HOME": str(tmp_path), "HOME": "/"}}
        subprocess.run([sys.executable, "-m", "cronjobs", "run-due"], capture_output=True, **given)
        [(result,)] = connection.execute("SELECT result FROM cronjobs_jobs").fetchall()
    assert "sqlalchemy.dialects.postgresql.psycopg" in result
    assert not [name for name in result if "sqlite" in name]


@pytest.mark.parametrize("words", [("status", "--help"), ("jobs", "show", "--help"), ("enqueue", "--help")])
def test_a_command_loads_no_module_of_another(words: tuple[str, ...]) -> None:
    modules = {found.row.where.partition(":")[0] for found in COMMANDS.values()}
    mine = {"jobs", "jobs_list"} if words[0] == "jobs" else {words[0]}
    loaded = {
        name.removeprefix("cronjobs.desk.cli.") for name in loaded_by(*words) if name.startswith("cronjobs.desk.cli.")
    }
    assert loaded & modules == mine


@pytest.mark.parametrize("path", [path for path in COMMANDS if not hasattr(COMMANDS[path].load(), "commands")])
def test_no_flag_shows_a_type(path: str) -> None:
    loaded: Any = COMMANDS[path].load()
    context = typer.Context(loaded)
    flags = [each for each in loaded.get_params(context) if getattr(each, "is_flag", False)]
    assert flags
    assert {each.metavar for each in flags} == {""}


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("retry", 'write "cronjobs jobs retry"'),
        ("drop", 'write "cronjobs db drop"'),
        ("list", 'write "cronjobs schedules list" or "cronjobs jobs list" or "cronjobs effects list"'),
        ("hstory", "Did you mean 'history'?"),
    ],
)
def test_a_command_that_is_typed_without_its_group_is_found(typed: str, meant: str) -> None:
    answer = CliRunner().invoke(app, [typed])
    assert answer.exit_code == 2
    assert meant in " ".join(answer.output.replace("│", " ").split())
