"""huey.

It has no command that exits when all is done, so the measured process is this script. It calls what huey's consumer
calls.
"""

from __future__ import annotations

import os
from threading import Thread

from huey import PostgresHuey, SqliteHuey  # type: ignore[import-not-found]
from seen import noop
from verbs import SQLITE_FILE, URL, one_by_one, serve, timed

huey = (
    SqliteHuey(filename=SQLITE_FILE, fsync=os.environ["BENCH_FSYNC"] == "on")
    if SQLITE_FILE
    else PostgresHuey(dsn=URL, blocking=False)
)
task = huey.task()(noop)


def fill(count: int) -> None:
    huey.flush()
    task.map(range(count))


def run(workers: int = 4) -> None:
    if huey.pending_count() == 0:
        return
    threads = [Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def work() -> None:
    while (due := huey.dequeue()) is not None:
        huey.execute(due)


if __name__ == "__main__":
    serve(
        setup=lambda: None,
        fill=fill,
        left=huey.pending_count,
        run=run,
        single=one_by_one(task),
        bulk=lambda count: timed(lambda: task.map(range(count))),
    )
