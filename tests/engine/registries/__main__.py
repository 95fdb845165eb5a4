"""``python -m tests.engine.registries``: the long form, with many cases on one database.

The report is JSON on stdout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

TESTS = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(TESTS))

from support import nofsync  # noqa: E402
from support.postgres import PostgresServer  # noqa: E402

from cronjobs.clock import SYSTEM  # noqa: E402
from cronjobs.engine.database.address import parse_url  # noqa: E402
from cronjobs.engine.database.connection import Database  # noqa: E402
from cronjobs.engine.schema import migrations  # noqa: E402
from engine.registries.world import world  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.engine.registries", description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], default="sqlite")
    parser.add_argument("--first", type=int, default=0, help="the seed of the first case")
    parser.add_argument("--cases", type=int, default=10_000)
    given = parser.parse_args()
    nofsync.install()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cronjobs-registries-")))
        url = f"sqlite:///{folder / 'jobs.db'}"
        if given.database == "postgresql":
            server = PostgresServer()
            stack.callback(server.remove)
            server.start()
            server.execute("CREATE DATABASE registries")
            url = server.url("registries")
        database = Database(parse_url(url))
        migrations.upgrade(database)
        database.close()
        here = stack.enter_context(world(url, folder))
        began, totals, violations = SYSTEM.monotonic(), Counter[str](), {}
        for seed in range(given.first, given.first + given.cases):
            report = here.case(seed)
            totals.update({name: getattr(report, name) for name in ("ticks", "kills", "executions")})
            if report.violations:
                violations[seed] = report.violations
    took_s = round(SYSTEM.monotonic() - began, 1)
    print(json.dumps({"cases": given.cases, "took_s": took_s, **totals, "violations": violations}, indent=1))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
