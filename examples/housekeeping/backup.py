"""Back up the shop's database to backups/. There is a file for each day, and the last seven files are kept.

cronjobs runs this program as a command. The command could be any other program. This one needs only Python, and for a
PostgreSQL database also pg_dump. cronjobs keeps what the program prints as the attempt's output. If the exit status is
not 0, the attempt has failed and is retried.
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
    # Use the day of the occurrence in the schedule's time zone. A second run for the same day replaces the same file.
    day = os.environ.get("CRONJOBS_SCHEDULED_FOR", datetime.now().astimezone().isoformat())[:10]
    os.umask(0o077)  # the backup has all of the shop's data
    folder = HERE / "backups"
    folder.mkdir(exist_ok=True)
    unfinished = folder / "unfinished"
    unfinished.unlink(missing_ok=True)
    kind = back_up_sqlite(url, unfinished) if url.startswith("sqlite") else back_up_postgresql(url, unfinished)
    file = folder / f"shop-{day}.{kind}"
    unfinished.replace(file)  # renamed at the end, so a file with this name is complete
    for old in sorted(folder.glob("shop-*"))[:-KEEP]:
        old.unlink()
    print(f"{file.name}: {file.stat().st_size:,} bytes")


def back_up_sqlite(url: str, target: Path) -> str:
    source = Path(url.partition(":///")[2])
    with closing(sqlite3.connect(f"{source.as_uri()}?mode=rw", uri=True, isolation_level=None)) as connection:
        connection.execute("VACUUM INTO ?", (str(target),))  # this copies a snapshot, and the shop can write meanwhile
    return "db"


def back_up_postgresql(url: str, target: Path) -> str:
    parts = urlsplit(url)
    # Everyone on this host can read a command's arguments, but not its environment.
    address = parts._replace(scheme="postgresql", netloc=parts.netloc.replace(f":{parts.password}@", "@"))
    environment = os.environ | {"PGPASSWORD": unquote(parts.password or os.environ.get("PGPASSWORD", ""))}
    command = ["pg_dump", "--format=custom", f"--file={target}", f"--dbname={address.geturl()}"]
    subprocess.run(command, env=environment, check=True)
    return "dump"


if __name__ == "__main__":
    main()
