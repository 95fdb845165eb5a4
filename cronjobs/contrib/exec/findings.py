"""Find absent and overlapping runs of ``cronjobs exec``. The finding for dead jobs also covers dead runs."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Connection

from cronjobs.contrib.exec.watching import ExecWatch, watch_exec
from cronjobs.desk.insight.finding import Finding, typed
from cronjobs.desk.insight.findings_of_extras import Findings
from cronjobs.desk.store import exec_runs
from cronjobs.engine.config.settings import Settings


def found(connection: Connection, _settings: Settings, now: datetime) -> Findings:
    watch = watch_exec(connection, now)
    return Findings(list(findings_of(watch)), watch.absent_at)


def findings_of(watch: ExecWatch) -> Iterator[Finding]:
    """Turn *watch* into findings. Pure."""
    for name, due in sorted(watch.absent.items()):
        text = f"{name} was due under cron, but exec has recorded no run of it"
        yield Finding("absent", text, since=due, command=typed("cronjobs explain", f"exec:{name}"), subject=name)
    for name, began in sorted(watch.overlapped.items()):
        text = f"the last run of {name} began while the previous run was still running"
        # Both runs may have succeeded, and history prints a line for each success only with --all.
        command = f"{typed('cronjobs history --type', f'exec:{name}')} --all"
        yield Finding("overlapped", text, since=began, command=command, subject=name, rows=(str(watch.ids[name]),))
    if watch.unwatched:
        most = f"{exec_runs.MOST_NAMES:,}"
        text = f"cronjobs exec has run under more than {most} names; only the first {most} are watched"
        yield Finding("unwatched", text, command="cronjobs history")
