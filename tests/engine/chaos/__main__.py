"""``python -m tests.engine.chaos``: run one campaign, long or short. The report is one JSON object on stdout."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

from engine.chaos.campaign import campaign  # noqa: E402
from engine.chaos.plan import Size  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.chaos", description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--kills", type=int, default=2_000)
    parser.add_argument("--freezes", type=int, default=500)
    parser.add_argument("--restarts", type=int, help="of the server; PostgreSQL only, default 50")
    parser.add_argument("--cuts", type=int, help="of connections; PostgreSQL only, default 200")
    parser.add_argument("--promotions", type=int, default=0, help="of a standby; PostgreSQL only")
    parser.add_argument("--asynchronous", action="store_true", help="COMMITs do not wait for the standby")
    parser.add_argument(
        "--paused", type=float, default=0, metavar="SECONDS", help="of the standby before each second one"
    )
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="when it is given up")
    parser.add_argument("--keep", action="store_true", help="leave ledger, log and database where they are")
    given = parser.parse_args()
    on_server = given.database == "postgresql"
    if not on_server and (given.restarts or given.cuts or given.promotions):
        parser.error("SQLite has no server to restart or promote, and no connections to cut")
    restarts = 50 if on_server and given.restarts is None else given.restarts or 0
    cuts = 200 if on_server and given.cuts is None else given.cuts or 0
    size = Size(given.jobs, given.kills, given.freezes, restarts, cuts, given.promotions)
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-chaos-"))
    standby = {"synchronous": not given.asynchronous, "paused_s": given.paused}
    report = campaign(given.database, given.seed, size, folder, limit_s=given.limit, **standby)
    if given.keep or report["violations"]:
        report["folder"] = str(folder)
    else:
        shutil.rmtree(folder)
    print(json.dumps(report, indent=1))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
