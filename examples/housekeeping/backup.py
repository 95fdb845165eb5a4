"""Back the shop's database up into backups/, a file for each day, and keep the last seven.

cronjobs runs it as a declared command, which can be any program. This one needs nothing but Python: of PostgreSQL it
calls pg_dump. What it prints is kept as the attempt's output; an exit status other than 0 is a failure, tried again.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
from contextlib import closing
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
KEEP = 7


def main() -> None:
    url = os.environ.get("DATABASE_URL") or f"sqlite:///{HERE / 'shop.db'}"
    # The day that the schedule means, in its own zone; run again for the same day, it makes the same file anew.
    day = os.environ.get("CRONJOBS_SCHEDULED_FOR", datetime.now().astimezone().isoformat())[:10]
    os.umask(0o077)  # it is a copy of everything
    folder = HERE / "backups"
    folder.mkdir(exist_ok=True)
    unfinished = folder / "unfinished"
    unfinished.unlink(missing_ok=True)
    kind = back_up_sqlite(url, unfinished) if url.startswith("sqlite") else back_up_postgresql(url, unfinished)
    file = folder / f"shop-{day}.{kind}"
    unfinished.replace(file)  # a file with this name is whole
    for old in sorted(folder.glob("shop-*"))[:-KEEP]:
        old.unlink()
    print(f"{file.name}: {file.stat().st_size:,} bytes")


def back_up_sqlite(url: str, target: Path) -> str:
    source = Path(url.partition(":///")[2])
    with closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, isolation_level=None)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))  # a snapshot; the shop goes on writing meanwhile
    return "db"


def back_up_postgresql(url: str, target: Path) -> str:
    parts = urlsplit(url)
    # Anyone on this host can read a command's arguments; its environment they cannot.
    address = parts._replace(scheme="postgresql", netloc=parts.netloc.replace(f":{parts.password}@", "@"))
    environment = os.environ | {"PGPASSWORD": unquote(parts.password or os.environ.get("PGPASSWORD", ""))}
    command = ["pg_dump", "--format=custom", f"--file={target}", f"--dbname={address.geturl()}"]
    subprocess.run(command, env=environment, check=True)
    return "dump"


if __name__ == "__main__":
    main()
