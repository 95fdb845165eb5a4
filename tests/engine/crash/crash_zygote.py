"""A small process with one thread that has imported everything, and forks a process for each run of a flow.

It reads what to run as lines of JSON from standard input, and writes the results to standard output. A fork takes
milliseconds, while starting Python and importing takes half a second.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import json
import os
import pkgutil
import signal
import sys
import traceback
from contextlib import redirect_stdout
from datetime import datetime
from pathlib import Path
from typing import Any

import cronjobs
from engine.crash import crash_flows, crash_points
from engine.crash.crash_world import COMMANDS, World

LIMIT_S = 60
NEEDED = (  # modules that the code imports only when it needs them; all of our own come besides
    *("croniter", "zoneinfo", "sqlalchemy.dialects.sqlite.pysqlite", "sqlalchemy.dialects.postgresql.psycopg"),
    *("psycopg", "sqlite3", "asyncio", "getpass", "subprocess"),
)
NOT_TO_IMPORT = ("cronjobs.__main__", "cronjobs.engine.execution.launcher")  # scripts
# Django's models cannot be imported without a project of Django; Dask is large, and no flow needs it or the programs.
LEFT_OUT = tuple(f"cronjobs.contrib.{each}" for each in ("django", "dask.dask", "demo", "drill"))


def serve() -> None:
    ours = [module.name for module in pkgutil.walk_packages(cronjobs.__path__, "cronjobs.")]
    for name in (*NEEDED, *ours):
        if name not in NOT_TO_IMPORT and not name.startswith(LEFT_OUT):
            importlib.import_module(name)
    if COMMANDS is not None:
        with redirect_stdout(io.StringIO()):  # what typer imports when it reads its first arguments
            COMMANDS.main(["next", "0 2 * * *", "-n", "1"], standalone_mode=False)
    crash_points.without_fsync()
    gc.freeze()
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), flush=True)


def run(order: dict[str, Any]) -> dict[str, Any]:
    """Fork, run one step of a flow, and wait until that process and all that it forked are gone."""
    folder = Path(order["folder"])
    report = folder / "report"
    report.unlink(missing_ok=True)
    alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(alive[0])
        os.set_inheritable(alive[1], False)
        _child(order, folder, report)
    os.close(alive[1])
    while os.read(alive[0], 1):
        pass
    os.close(alive[0])
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    told = json.loads(report.read_text()) if report.exists() else {}
    return {"pid": pid, "status": status} | told


def _child(order: dict[str, Any], folder: Path, report: Path) -> None:
    signal.alarm(LIMIT_S)
    points = crash_points.Points(order["kill_at"], report)
    atexit.register(points.tell)  # a command that loads handlers leaves by os._exit, after these
    code = 0
    try:
        out = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, out), (2, out)):
            os.dup2(target, number)
        flow = crash_flows.FLOWS[order["flow"]]
        world = World(folder, order["url"], datetime.fromisoformat(order["base"]))
        match order["step"]:
            case "seed":
                flow.seed(world)
            case "run":
                if flow.before is not None:
                    flow.before(world)
                crash_points.install(points)
                flow.run(world)
            case "again":
                if flow.before is not None:
                    flow.before(world)
                flow.run(world)
            case "rest":
                flow.rest(world)
        points.tell()
    except BaseException:
        code = 70
        points.tell(error=traceback.format_exc())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
