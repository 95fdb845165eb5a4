"""A home folder for the crontabs of this folder.

Each program that they call writes a note there, and tests read the notes.
"""

from __future__ import annotations

import re
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
_IGNORED = re.compile(r"(?<=ignored )[0-9a-f]+")
_REAL_SIGNALS = 0x7FFFFFFF  # the next two signals are the C library's own, and no program can use them


def furnish(home: Path, name: str) -> str:
    """Prepare *home* for the crontab *name*. Return the crontab's text."""
    for folder in ("bin", "ran", "app", "my app"):
        (home / folder).mkdir()
    for program in PROGRAMS:
        shutil.copy(HERE / "note", home / "bin" / program)
    return (HERE / name).read_text().replace("@HOME@", str(home))


def left(home: Path, user: str, *, ignored: int | None = None) -> dict[str, Any]:
    """Return what the programs were given, sorted, and the files that the lines wrote.

    *ignored* is the mask of signals that the programs' common ancestor ignores. If it is given, the result also has
    what a program inherits from its parent process. If cron is not the parent, that is the test's process.
    """

    def mask(found: re.Match[str]) -> str:
        return f"{int(found[0], 16) & _REAL_SIGNALS & ~(ignored or 0):x}"

    def neutral(file: Path) -> str:
        return file.read_bytes().decode("utf-8", "surrogateescape").replace(str(home), "@HOME@")

    def run(folder: Path) -> dict[str, Any]:
        env = dict(sorted(line.split("=", 1) for line in neutral(folder / "env").split("\0")[:-1]))
        if env.get("LOGNAME") == user:
            env["LOGNAME"] = "@USER@"
        return {
            "words": neutral(folder / "words").split("\0")[:-1],
            "folder": neutral(folder / "folder").removesuffix("\n"),
            "stdin": neutral(folder / "stdin"),
            "env": {name: value for name, value in env.items() if not name.startswith("CRONJOBS_")},
        } | ({} if ignored is None else {"process": _IGNORED.sub(mask, neutral(folder / "process"))})

    runs = [run(folder) for folder in (home / "ran").iterdir()]
    files = {
        str(file.relative_to(home)): neutral(file)
        for file in [*home.iterdir(), *(home / "app").iterdir(), *(home / "my app").iterdir()]
        if file.is_file()
    }
    return {"runs": sorted(runs, key=lambda run: (run["words"], run["stdin"])), "files": dict(sorted(files.items()))}
