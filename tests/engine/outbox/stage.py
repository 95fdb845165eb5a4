"""A copy of ``examples/invoices`` with its providers running beside it, and the commands that people and cron type."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support import forked
from support.ticking import CRONS, Project

EXAMPLE = Path(__file__).parents[3] / "examples" / "invoices"
CRONJOBS = ("-m", "cronjobs")


@dataclass
class Stage(Project):
    """The folder, its database, and what the mail server and the receiver of events took.

    The addresses are in ``env_file``, so that commands get nothing but cron's own environment.
    """

    def set_up(self) -> None:
        shutil.copytree(EXAMPLE, self.folder, ignore=shutil.ignore_patterns("__pycache__"))
        configured = (self.folder / "cronjobs.yaml").read_text() + "env_file: .env\n"
        (self.folder / "cronjobs.yaml").write_text(configured)

    @contextmanager
    def providers(self) -> Iterator[None]:
        """Run both servers on free ports, in a process of their own."""
        with (self.folder / "providers.err").open("wb") as errors:
            process = subprocess.Popen(
                [sys.executable, "providers.py"],
                cwd=self.folder,
                env=CRONS | {"SMTP_PORT": "0", "WEBHOOK_PORT": "0"},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            found = re.search(r"mail server on port (\d+), events on port (\d+)", said)
            assert found, (said, (self.folder / "providers.err").read_text())
            self.env = {
                "DATABASE_URL": self.url.replace("postgresql://", "postgresql+psycopg://"),
                "SMTP_PORT": found[1],
                "SMTP_PATIENCE_S": "2",
                "WEBHOOK_URL": f"http://127.0.0.1:{found[2]}/events",
            }
            (self.folder / ".env").write_text("".join(f"{name}={value}\n" for name, value in self.env.items()))
            yield
        finally:
            self.end_everything()
            process.kill()
            process.communicate()

    # --- commands -----------------------------------------------------------------------------------------------------

    def begin(self, *arguments: str) -> subprocess.Popen[str]:
        """Start a program of the app's, which knows the app's environment."""
        return forked.start(
            [sys.executable, *arguments],
            cwd=self.folder,
            env=CRONS | self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def python(self, *arguments: str) -> str:
        process = self.begin(*arguments)
        try:
            out, err = process.communicate(timeout=600)
        finally:
            process.kill()
        assert process.returncode == 0, (arguments, process.returncode, out, err)
        return out

    def cronjobs(self, *arguments: str) -> Any:
        """Return the JSON that a command prints with ``--json``."""
        return json.loads(self.python(*CRONJOBS, *arguments, "--json"))

    def drain(self) -> None:
        """Tick until nothing waits; what would have to wait for its retry need not."""
        for _ in range(20):
            assert self.tick("--fail-on=never", within_s=90).wait() == 0, self.ticks[-1].stderr
            if not self.value("SELECT count(*) FROM cronjobs_jobs WHERE status IN ('queued', 'running', 'failed')"):
                return
            self.make_due()
        raise AssertionError(f"there is always something left: {self.statuses()}")

    # --- what came of it ----------------------------------------------------------------------------------------------

    def lines(self, name: str) -> list[dict[str, Any]]:
        file = self.folder / name
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def mails(self) -> list[dict[str, Any]]:
        return self.lines("mails.jsonl")

    def events(self) -> list[dict[str, Any]]:
        return self.lines("events.jsonl")

    def orders(self, status: str) -> set[int]:
        return {row[0] for row in self.sql(f"SELECT id FROM orders WHERE status = '{status}'")}


def new_stage(folder: Path, url: str) -> Stage:
    stage = Stage(folder, url)
    stage.set_up()
    return stage


def python_path() -> str:
    """For a process of the tests' own code."""
    return os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
