"""docs/how-to/alerts.md: with a file that names it, its extra reports its finding and is called beside a tick."""

from __future__ import annotations

import re
import subprocess
import sys

from support.pages import Page
from support.ticking import CRONS, Project

from cronjobs.engine.tick.extras import Hook

PAGE = Page("docs/how-to/alerts.md")
PRINTER = """
from pathlib import Path

HERE = Path(__file__).parents[1]

def has_paper():
    return (HERE / "paper").exists()

def tell(what):
    with (HERE / "told").open("a") as file:
        file.write(what + "\\n")
"""


def test_its_extra_does_both(project: Project) -> None:
    project.configure("extras: [acme_printer]\n")
    (project.folder / "acme_printer.py").write_text(PAGE.block("python", "acme_printer"))
    (project.folder / "acme").mkdir()
    (project.folder / "acme" / "printer.py").write_text(PRINTER)
    project.add("t.quick")
    assert project.tick().wait() == 0
    assert (project.folder / "told").read_text() == "a tick ended with 0\n"
    assert "warning acme:printer: the printer is out of paper" in status(project)
    (project.folder / "paper").touch()
    assert "out of paper" not in status(project)


def status(project: Project) -> str:
    command = [sys.executable, "-P", "-m", "cronjobs", "status", "--config", "cronjobs.yaml"]
    shown = subprocess.run(command, cwd=project.folder, env=CRONS, capture_output=True, text=True, check=False)
    return " ".join(shown.stdout.split())


def test_its_table_has_every_method_of_a_hook() -> None:
    methods = {name for name, member in vars(Hook).items() if callable(member) and not name.startswith("_")}
    assert set(re.findall(r"`(\w+)\(", " ".join(row["method"] for row in PAGE.table("Hooks")))) == methods
