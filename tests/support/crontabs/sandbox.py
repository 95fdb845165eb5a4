"""A home for the crontabs of this folder, in which each program that they call keeps a note; and what is left there."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CRONTABS = sorted(file.name for file in HERE.glob("[0-9]*"))
PROGRAMS = (
    "certbot",
    "daily.job",
    "mail",
    "monthly",
    "note",
    "pg_dump",
    "php",
    "run-parts",
    "sessionclean",
    "vacuumdb",
)


def furnish(home: Path, name: str) -> str:
    """Make *home* as the crontab *name* needs it; return its text."""
    for folder in ("bin", "ran", "app"):
        (home / folder).mkdir()
    for program in PROGRAMS:
        shutil.copy(HERE / "note", home / "bin" / program)
    return (HERE / name).read_text().replace("@HOME@", str(home))


def left(home: Path, user: str) -> dict[str, Any]:
    """What the programs were given, in an order of its own, and the files that lines wrote."""

    def neutral(text: str) -> str:
        return text.replace(str(home), "@HOME@").replace(user, "@USER@")

    def run(folder: Path) -> dict[str, Any]:
        lines = neutral((folder / "env").read_text()).splitlines()
        return {
            "words": neutral((folder / "words").read_text()).splitlines(),
            "folder": neutral((folder / "folder").read_text()).strip(),
            "stdin": (folder / "stdin").read_text(),
            "env": dict(sorted(line.split("=", 1) for line in lines if not line.startswith("CRONJOBS_"))),
        }

    runs = [run(folder) for folder in (home / "ran").iterdir()]
    files = {
        neutral(str(file)): neutral(file.read_text())
        for file in [*home.iterdir(), *(home / "app").iterdir()]
        if file.is_file() and file.name not in (".bash_logout", ".bashrc", ".profile")
    }
    return {"runs": sorted(runs, key=lambda run: (run["words"], run["stdin"])), "files": dict(sorted(files.items()))}
