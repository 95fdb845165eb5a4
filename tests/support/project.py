"""A project in its own folder, for tests of commands. They are called in this process, or run as users type them."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from cronjobs.engine.command import fault
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs import registry as jobs
from cronjobs.engine.tick import deadline
from support import forked

CRONJOBS = [sys.executable, "-P", "-m", "cronjobs"]
# Cron's environment, with the path of the package if a mutant is tested.
BARE = {"PATH": "/usr/bin:/bin"} | ({"PYTHONPATH": os.environ["PYTHONPATH"]} if "PYTHONPATH" in os.environ else {})


@dataclass
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@contextmanager
def _without_traces(folder: Path) -> Iterator[None]:
    """Forget the user's modules and handlers: another project has modules with the same names, and other handlers."""
    path, finders = list(sys.path), list(sys.meta_path)
    registered, loaded = dict(jobs._registered), set(sys.modules)
    try:
        yield
    finally:
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if name not in loaded and file and Path(file).is_relative_to(folder):
                del sys.modules[name]
        sys.path[:], sys.meta_path[:] = path, finders
        jobs._registered.clear()
        jobs._registered.update(registered)


class Project:
    """``cronjobs.yaml`` and ``handlers.py`` in a folder, and the database that the file names."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder
        self.url = url

    def write(self, yaml: str = "", handlers: str | None = None) -> None:
        imports = "" if handlers is None else "imports: [handlers]\n"
        (self.folder / "cronjobs.yaml").write_text(f"project: shop\ndatabase: {self.url}\n{imports}{yaml}")
        if handlers is not None:
            (self.folder / "handlers.py").write_text(handlers)

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        given: dict[str, Any] = {"cwd": self.folder, "text": True} | pipes | options
        return forked.start([*CRONJOBS, *arguments], env=BARE | dict(env or {}), **given)

    def run(self, *arguments: str, stdin: str = "", env: Mapping[str, str] | None = None, **options: Any) -> Answer:
        """Run the command in a separate process, with cron's environment."""
        process = self.start(*arguments, env=env, **options)
        out, err = process.communicate(stdin, timeout=60)
        return Answer(process.returncode, out or "", err or "")

    def call(self, *arguments: str, stdin: bytes = b"") -> Answer:
        """Call the command in this process. Afterwards, forget the user's modules that it imported."""
        out, err = io.StringIO(), io.StringIO()
        with (
            pytest.MonkeyPatch.context() as patch,
            redirect_stdout(out),
            redirect_stderr(err),
            _without_traces(self.folder),
        ):
            patch.chdir(self.folder)
            patch.setattr(sys, "argv", ["cronjobs", *arguments])
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
            for name in ("CRONJOBS_CONFIG", "CRONJOBS_DATABASE_URL", "NO_COLOR"):
                patch.delenv(name, raising=False)
            patch.setattr("cronjobs.engine.command.leaving.leave", _leave)
            patch.setattr(fault.circumstances, "log", None)  # left by the command before
            from cronjobs.desk.cli import main  # import here, because the engine's tests call no command

            try:
                with pytest.raises(SystemExit) as ended:
                    main.run()
            finally:
                _disarm()
        return Answer(int(ended.value.code or 0), out.getvalue(), err.getvalue())

    def rows(self, table: str) -> list[dict[str, Any]]:
        """Return every row of a table, in the order of its key."""
        return self._read(f"cronjobs_{table}")[0]

    def _read(self, *names: str) -> list[list[dict[str, Any]]]:
        found = [tables.metadata.tables[name] for name in names]
        database = Database(parse_url(self.url))
        try:
            with database.read() as connection:
                rows = [connection.execute(select(table).order_by(*table.primary_key)) for table in found]
                return [[dict(row._mapping) for row in each] for each in rows]
        finally:
            database.close()

    def jobs(self) -> list[dict[str, Any]]:
        return self.rows("jobs")

    def execute(self, statement: Any) -> None:
        database = Database(parse_url(self.url))
        try:
            with database.write() as connection:
                connection.execute(statement)
        finally:
            database.close()

    def everything(self) -> dict[str, list[dict[str, Any]]]:
        return dict(zip(tables.metadata.tables, self._read(*tables.metadata.tables), strict=True))


def _leave(code: int, *, stuck: bool) -> None:
    raise SystemExit(code)  # the real function ends the process if another test has left a thread


def _disarm() -> None:
    """Disarm the kernel's timer, which a tick in this process sets. It would end the whole test run a minute later."""
    if deadline._armed is not None:
        deadline._armed.watchdog.dismiss()
        deadline._armed = None
        signal.signal(signal.SIGINT, signal.default_int_handler)
