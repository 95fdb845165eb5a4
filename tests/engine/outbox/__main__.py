"""``python -m tests.engine.outbox hour|kills --database …``: the long forms; a report is one JSON object."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

from support.postgres import PostgresServer  # noqa: E402

from cronjobs.engine.database.address import parse_url  # noqa: E402
from cronjobs.engine.database.connection import Database  # noqa: E402
from cronjobs.engine.schema import migrations  # noqa: E402
from engine.outbox.hour import hour  # noqa: E402
from engine.outbox.kills import kills  # noqa: E402
from engine.outbox.stage import new_stage  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.outbox", description=__doc__)
    parser.add_argument("what", choices=["hour", "kills"])
    parser.add_argument("--database", choices=["sqlite", "postgresql"], required=True)
    parser.add_argument("--orders", type=int, default=1000)
    parser.add_argument("--kills", type=int, default=100, help="at least so many")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--pace", type=float, default=0.25, metavar="SECONDS", help="from one customer to the next")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-outbox-"))
    server = PostgresServer() if given.database == "postgresql" else None
    try:
        if server is not None:
            server.start()
        url = server.url() if server is not None else f"sqlite:///{folder / 'shop.db'}"
        database = Database(parse_url(url))
        migrations.upgrade(database)
        database.close()
        stage = new_stage(folder / "shop", url)
        with stage.providers():
            if given.what == "hour":
                report = hour(stage, given.orders)
            else:
                report = kills(stage, given.orders, given.kills, 1_000_000, given.seed, given.pace)
    finally:
        if server is not None:
            server.remove()
    if report["violations"]:
        report["folder"] = str(folder)
    else:
        shutil.rmtree(folder)
    print(json.dumps(report, indent=1))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
