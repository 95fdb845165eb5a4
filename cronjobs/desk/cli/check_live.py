"""``check --live``: list what is going wrong in the configured database and clusters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from cronjobs.desk import doors
from cronjobs.desk.cli.output import sentence
from cronjobs.desk.cli.project_database import missing_file
from cronjobs.desk.crontab.other_blocks import runs_twice
from cronjobs.desk.insight.check_notes import limits_that_never_applied
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.findings_of_ticks import row_of, wrong
from cronjobs.desk.insight.formatting import Times, safe
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.pace import at_their_pace
from cronjobs.desk.insight.same_cause import faults_here
from cronjobs.desk.store.workload import newest_keys
from cronjobs.engine.command.database import open_database
from cronjobs.engine.config.settings import ExecutorSettings, Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.schedules.changes import renames_without_effect
from cronjobs.engine.store.meta import require_schema
from cronjobs.engine.store.schedules import all_schedules
from cronjobs.errors import ConfigError, Problem
from cronjobs.installed import needed

JOBS_READ: Final = 1000  # compare the limits with the keys of this many jobs


@dataclass(frozen=True)
class Live:
    """What is wrong in the database, as one sentence each, and notes about the file."""

    wrong: Sequence[str]
    notes: Sequence[Problem] = ()


def ask_database(settings: Settings, known: JobTypes | None) -> Live:
    """Return what is wrong in the database, and notes about the file. Raises DatabaseError."""
    if not settings.database:
        why = settings.database_unset or "--live needs a database, and none is set"
        raise ConfigError([Problem(str(settings.file), *settings.positions.get("database", (0, 0)), "database", why)])
    if file := missing_file(settings):
        return Live([f'there is no database {file} yet: the first "cronjobs run-due" creates it'])
    with closing(open_database(settings)) as database, database.read() as connection:
        require_schema(connection)
        renames = renames_without_effect(settings, all_schedules(connection))
        keys = newest_keys(connection, JOBS_READ) if settings.limits else []
        settings = at_their_pace(connection, settings)
        health = look(connection, settings, known or JobTypes())
    found = judge(health, settings)
    ours = {row_of(*fault) for fault in faults_here(health.faults, (*settings.problems, *health.log))}
    elsewhere = [each for each in found if each.kind == "config" and each.subject and not ours.issuperset(wrong(each))]
    # A fault in a configuration file or its code may cause other findings. Skip those findings, since the fault itself
    # is reported. The exception is "behind", which lists the schedules that are due but have not fired: if the fault is
    # on this host, keep that finding, since ``check`` does not list the schedules that the fault holds back.
    config = [each for each in found if each.kind == "config"]
    covering = [by for each in config for by in each.covers if each in elsewhere or by.key != "behind"]
    # Leave out these kinds: ``check`` already reports the faults in the file on this host.
    kinds = {"config"} if known else {"config", "unresolved", "late"}
    troubles = [each for each in judge(health, settings, but=kinds) if not any(by.is_all_of(each) for by in covering)]
    times = Times(health.now, settings.timezone)
    alarms = [sentence(each, times) for each in (*elsewhere, *troubles) if each.alarm]
    unnamed = [_problem(settings, f"schedules.{name}.renamed_from", why) for name, why in renames.items()]
    unused = limits_that_never_applied(settings.limits, keys)
    notes = [_problem(settings, f"limits.{prefix}", why) for prefix, why in unused.items()]
    twice = runs_twice(settings)
    return Live([*(safe(each, 2000) for each in unnamed), *alarms, *([twice] if twice else [])], notes)


def _problem(settings: Settings, path: str, message: str) -> Problem:
    return Problem(str(settings.file), *settings.positions.get(path, (0, 0)), path, message)


def ask_clusters(executors: Mapping[str, ExecutorSettings]) -> list[str]:
    """Ask the cluster of each executor in the file. Return one sentence for each fault."""
    if not executors:
        return []
    asked = needed(doors.EXECUTORS, "executors:")
    return [fault for executor in executors.values() for fault in asked.wrong_with(executor)]
