"""Handlers that are registered twice, for a thread and for a separate process, and the results of their jobs."""

from __future__ import annotations

import json
from typing import Any

from support.ticking import Project

KINDS = ("thread", "process")

# Every handler of ``both`` is registered twice: as thread.NAME, and as process.NAME, which runs in a separate process.
HANDLERS = r"""
import asyncio, atexit, ctypes, locale, logging, signal, subprocess, warnings
from datetime import timedelta

SOON = RetryPolicy(base="5m", jitter=0)

def apart(name, **options):
    return job(name, **{"isolation": "process", "timeout": "20s", "retry": SOON} | options)

def both(name, **options):
    def register(function):
        job(f"thread.{name}", **{"timeout": "20s", "retry": SOON} | options)(function)
        return apart(f"process.{name}", **options)(function)
    return register

class CardDeclined(Exception): pass
class StolenCard(CardDeclined): pass
class Rude(BaseException): pass

class Unreadable(Exception):
    def __str__(self): raise RuntimeError("no words")
"""


def ran(project: Project, job_id: int) -> dict[str, Any]:
    """Return the result of a job's only attempt, and how long the job waits for the next one."""
    gap = "(j.run_at - r.finished_at) / 1e6" if project.is_sqlite else "extract(epoch FROM j.run_at - r.finished_at)"
    names = "status, failures, losses, result, outcome, error_type, error, traceback, output, waits_s"
    [row] = project.sql(
        f"SELECT j.status, j.failures, j.losses, j.result, r.outcome, r.error_type, r.error, r.traceback, r.output, "
        f"{gap} FROM cronjobs_jobs j JOIN cronjobs_job_runs r ON r.job_id = j.id WHERE j.id = {job_id}"
    )
    found = dict(zip(names.split(", "), row, strict=True))
    if isinstance(found["result"], str) and project.is_sqlite:
        found["result"] = json.loads(found["result"])
    found["waits_s"] = max(0.0, float(found["waits_s"]))  # for a job that has ended, this is how long it had waited
    return found


def run_each(project: Project, handlers: str, *job_types: str, yaml: str = "", **changes: Any) -> dict[str, Any]:
    """Run one tick with a job of each type. Return the results by the last part of the type."""
    project.configure(yaml or "run: {workers: 4}\n", handlers)
    ids = {job_type: project.add(job_type) for job_type in job_types}
    tick = project.tick(within_s=60, **changes)
    assert tick.process.returncode in (0, 1), tick.stderr
    assert "Traceback" not in tick.stderr
    return {job_type: ran(project, job_id) for job_type, job_id in ids.items()}
