"""``cronjobs check --against URL``: check that the payloads in the database at URL fit the code on this host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

from cronjobs import masking
from cronjobs.desk.cli.progress import Progress
from cronjobs.desk.cli.project_database import missing_file
from cronjobs.desk.insight.formatting import counted, safe, status_word
from cronjobs.desk.insight.payload_review import MisfitGroup, PayloadReview, review
from cronjobs.engine.command.printing import coloured
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.errors import DatabaseUnreachable

STATUSES = ("queued", "running", "failed", "dead")


def review_of(url: str, settings: Settings, known: JobTypes) -> PayloadReview:
    """Review the payloads in the database at *url*. Writes nothing and creates no file. Raises DatabaseError."""
    masking.remember(masking.named_secrets({"": url}))
    address = parse_url(url, settings.schema)
    if missing_file(replace(settings, database=url)) is not None:
        raise DatabaseUnreachable(str(address), "there is no such file")
    found = PayloadReview(known)
    with closing(Database(address, connections=1)) as database, Progress() as progress:
        for found in review(database, settings.project, known):
            progress.say(f"{counted(found.checked, 'payload')} read, {found.misfits:,} do not fit")
    return found


def lines(found: PayloadReview) -> Iterator[str]:
    for group in found.groups:
        yield coloured(safe(f"{group.job_type}: {group.example}", 1000), "red")
        yield f"    {counted(group.jobs, 'job')} ({_statuses(group)}): {_ids(group)}; {group.remedy}"
    if found.misfits:
        yield (
            f"checked {counted(found.checked, 'payload')} of jobs that may still run: {found.misfits:,} do not "
            "fit this code"
        )


def as_json_object(found: PayloadReview) -> dict[str, Any]:
    groups = [
        {
            "job_type": group.job_type,
            "fault": group.example,
            "jobs": group.jobs,
            "by_status": {status: group.by_status[status] for status in STATUSES},
            "ids": group.ids,
            "remedy": group.remedy,
        }
        for group in found.groups
    ]
    return {"checked": found.checked, "misfits": found.misfits, "groups": groups}


def _statuses(group: MisfitGroup) -> str:
    return ", ".join(f"{group.by_status[name]:,} {status_word(name)}" for name in STATUSES if group.by_status[name])


def _ids(group: MisfitGroup) -> str:
    more = ", …" if group.jobs > len(group.ids) else ""
    return f"{', '.join(map(str, group.ids))}{more}"
