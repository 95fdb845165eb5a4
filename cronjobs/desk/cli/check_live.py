"""``check --live``: what the database says of the configuration as it runs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing

from cronjobs.desk import doors
from cronjobs.desk.cli.output import Times, sentence
from cronjobs.desk.cli.project_database import missing_file
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.command.database import open_database
from cronjobs.engine.config.settings import ExecutorSettings, Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.meta import require_schema
from cronjobs.errors import ConfigError, Problem
from cronjobs.installed import needed


def ask_database(settings: Settings, known: JobTypes | None) -> list[str]:
    """What is wrong with the system as it runs, in sentences; raises DatabaseError."""
    if not settings.database:
        raise ConfigError([Problem(str(settings.file), 0, 0, "database", "--live needs a database, and none is set")])
    if file := missing_file(settings):
        return [f'there is no database {file} yet: the first "cronjobs run-due" makes it']
    with closing(open_database(settings)) as database, database.read() as connection:
        require_schema(connection)
        health = look(connection, settings, known or JobTypes())
    kinds = {"config"} if known else {"config", "unresolved", "late"}  # config: told already
    times = Times(health.now, settings.timezone)
    # Of a fault that somebody has acknowledged, what comes of it is no news either.
    known_faults = [each for each in judge(health, settings) if each.kind == "config" and not each.alarm]
    quiet = [covered for fault in known_faults for covered in fault.covers]
    troubles = [each for each in judge(health, settings, but=kinds) if each.alarm]
    return [sentence(each, times) for each in troubles if not any(covered.is_all_of(each) for covered in quiet)]


def ask_clusters(executors: Mapping[str, ExecutorSettings]) -> list[str]:
    """What is wrong with the clusters of the file's executors, as they answer just now, in sentences."""
    if not executors:
        return []
    asked = needed(doors.EXECUTORS, "executors:")
    return [fault for executor in executors.values() for fault in asked.wrong_with(executor)]
