"""``python -m tests.contrib.dask.clusters``: kill every part of a real Dask cluster. The report is JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(TESTS))

from contrib.dask.clusters.campaign import campaign  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.contrib.dask.clusters", description=__doc__)
    parser.add_argument("--database", choices=["sqlite", "postgresql"], required=True)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=300)
    parser.add_argument("--faults", type=int, default=40)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=4, help="of each worker: how many attempts it runs at once")
    parser.add_argument("--limit", type=float, default=1800, metavar="SECONDS", help="when it is given up")
    parser.add_argument("--without-tokens", action="store_true", help="workers run all they are given: see doubles")
    parser.add_argument("--keep", action="store_true", help="leave effects, logs and database where they are")
    given = vars(parser.parse_args())
    keep, limit_s = given.pop("keep"), given.pop("limit")
    folder = Path(tempfile.mkdtemp(prefix="cronjobs-clusters-"))
    report = campaign(folder, limit_s=limit_s, **given)
    if keep or report["violations"]:
        report["folder"] = str(folder)
    else:
        shutil.rmtree(folder)
    print(json.dumps(report, indent=1))
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
