"""Store this version's databases for test_upgrades.py. Run ``python -m tests.upgrades.store`` once for each release.

A folder named after the version gets a SQLite file and a PostgreSQL dump with the same rows, something of everything.
A released version's folder is never written again; while 0.2.0 is not published, its migration is edited in place.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from sqlalchemy import insert, select, text

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tests")]

from support.copied import everything, fill  # noqa: E402
from support.databases import opened  # noqa: E402
from support.postgres import PostgresServer, as_nobody  # noqa: E402

from cronjobs.contrib.copy import statements  # noqa: E402
from cronjobs.engine.database.connection import Database  # noqa: E402
from cronjobs.engine.database.tables import meta, metadata  # noqa: E402
from cronjobs.engine.schema import migrations  # noqa: E402
from cronjobs.version import __version__  # noqa: E402

# Comments; what every database has; what only psql and newer servers understand.
LEFT_OUT = ("--", "CREATE SCHEMA public;", "SET transaction_timeout", "\\restrict", "\\unrestrict")


def main() -> None:
    folder = Path(__file__).parent / __version__
    folder.mkdir(exist_ok=True)
    server = PostgresServer()
    try:
        server.start()
        file = server.folder / "cronjobs.sqlite3"  # a folder that goes with the server
        with opened(f"sqlite:///{file}") as small, opened(server.url()) as big:
            migrations.upgrade(small)
            fill(small)
            with small.write() as connection:  # who made it is nobody's business
                connection.execute(text("UPDATE cronjobs_jobs SET enqueued_by = 'ann/shop'"))
                connection.execute(text("UPDATE cronjobs_audit SET actor = 'ann/shop'"))
            migrations.upgrade(big)
            copy(small, big)
            assert everything(big) == everything(small)
        shutil.copyfile(file, folder / file.name)
        options = ["--inserts", "--no-owner", "--no-privileges", "--no-comments", "--schema=public"]
        done = subprocess.run(
            [server.bin / "pg_dump", *options, server.url()], check=True, capture_output=True, text=True, **as_nobody()
        )
    finally:
        server.remove()
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith(LEFT_OUT)]
    (folder / "postgresql.sql").write_text("\n".join(lines) + "\n")


def copy(small: Database, big: Database) -> None:
    with small.read() as old, big.write() as new:
        for table in metadata.sorted_tables:
            rows = [dict(row._mapping) for row in old.execute(select(table))]
            if rows and table is not meta:
                new.execute(insert(table), rows)
                if "id" in table.c and table.c.id.identity is not None:
                    statements.count_on(new, table, max(row["id"] for row in rows))


if __name__ == "__main__":
    main()
