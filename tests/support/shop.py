"""The project of the docs' examples: a folder with a file and handlers, and stand-ins for missing programs."""

from __future__ import annotations

import shlex
import sqlite3
import subprocess
from pathlib import Path

import pytest

from support.pages import Page
from support.project import BARE, CRONJOBS, Answer, Project

PAGE = Page("docs/tutorials/first-job.md")
JOBS = PAGE.block("python", "# jobs.py")
YAML = PAGE.block("yaml", "# cronjobs.yaml")
FAKE = (
    # the stand-in for programs that a host may lack, or that a test must not run
    '#!/bin/sh\necho "$0 $*" >> "$(dirname "$0")/calls"\n'
)


class Shop(Project):
    """The README's project. Stand-ins for the programs that it names are on the PATH."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, f"sqlite:///{folder}/cronjobs.db")
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.program("sqlite3", FAKE)
        self.program("cronjobs", f'#!/bin/sh\nexec {shlex.join(CRONJOBS)} "$@"\n')
        self.program("crontab", FAKE + '[ "$1" != -l ] || { echo "no crontab for shop" >&2; exit 1; }\n')
        (folder / "jobs.py").write_text(JOBS)
        (folder / "cronjobs.yaml").write_text(f"{YAML}env: {{PATH: '{self.path}'}}\n")

    @property
    def path(self) -> str:
        return f"{self.bin}:/usr/bin:/bin"

    def program(self, name: str, text: str) -> None:
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def shell(self, script: str, folder: Path | None = None) -> Answer:
        """Run a command as typed into a shell, in an almost empty environment."""
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", script],
            cwd=folder or self.folder,
            env=BARE | {"PATH": self.path, "HOME": str(self.folder), "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    def calls(self) -> list[str]:
        file = self.bin / "calls"
        return file.read_text().splitlines() if file.exists() else []

    def does(self, *arguments: str, code: int = 0) -> Answer:
        answer = self.run(*arguments)
        assert answer.code == code, answer
        return answer


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


@pytest.fixture
def busy_shop(shop: Shop) -> Shop:
    """A shop with a waiting job 17, and a job with the key invoice:42."""
    shop.does("run-due")
    with sqlite3.connect(shop.folder / "cronjobs.db") as connection:
        insert = "INSERT INTO cronjobs_jobs (job_type, payload) VALUES ('billing.send_invoice', '{\"invoice_id\": 1}')"
        for _ in range(17):
            connection.execute(insert)
        connection.execute("UPDATE cronjobs_jobs SET idempotency_key = 'invoice:42' WHERE id = 1")
    connection.close()
    return shop


def commands(page: Page, heading: str) -> list[str]:
    """Return the text after each prompt of a section, including comments, because a shell reads comments too."""
    lines = [line for one in page.blocks("console") if one.heading == heading for line in one.text.splitlines()]
    assert all(line.startswith("$ ") for line in lines)
    return [line.removeprefix("$ ") for line in lines]
