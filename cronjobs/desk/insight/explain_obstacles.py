"""What stands in a single job's way, read for ``explain``: it would cost too much for each job of a list."""

from __future__ import annotations

import shlex
from dataclasses import replace

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import JobFacts
from cronjobs.engine.store import explaining
from cronjobs.errors import EffectUnknown
from cronjobs.model import Status
from cronjobs.text import one_line

_BEFORE, _AFTER = str(EffectUnknown("KEY")).split("KEY")


def with_obstacles(connection: Connection, job: JobFacts) -> JobFacts:
    """The same job, with what keeps it from running."""
    if job.status == Status.DEAD and job.attempts:
        last = job.attempts[-1]
        return replace(job, unsettled=unsettled_effect(connection, last.error_type, last.error))
    return job


def unsettled_effect(connection: Connection, error_type: str | None, error: str | None) -> str | None:
    """The key of the effect for which a job died with this error; None: of none, or somebody has settled it since."""
    said = error or ""
    if error_type != EffectUnknown.__name__ or not (said.startswith(_BEFORE) and said.endswith(_AFTER)):
        return None
    try:
        [key] = shlex.split(said[len(_BEFORE) : -len(_AFTER)])
    except ValueError:
        return None
    return key if explaining.is_unsettled(connection, key) else None


def settling(key: str) -> str:
    """The command that settles an effect, to be followed by a word on how else it can be settled."""
    return one_line(f"cronjobs effects settle {shlex.quote(key)} done", 600)
