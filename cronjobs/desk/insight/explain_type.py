"""Explain whether a job type can run. If it cannot, explain why, and when this began."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from shlex import quote

from sqlalchemy import Connection

from cronjobs.desk.insight.explain_facts import Explanation, JobFacts, Now, TypeFacts, plain
from cronjobs.desk.insight.explain_job import job_sentences, tick_that_began, type_reasons
from cronjobs.desk.insight.explain_obstacles import with_obstacles
from cronjobs.desk.insight.explain_phrases import capital, name
from cronjobs.desk.insight.formatting import LocalTimes
from cronjobs.desk.insight.job_evidence import job_facts, surroundings, type_facts
from cronjobs.desk.store import explaining
from cronjobs.desk.store.status_facts import deaths
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.store.crashing_types import crashing
from cronjobs.text import one_line

SCHEDULES_NAMED = 5


@dataclass(frozen=True)
class TypeLife:
    """A job type: which hosts can run it, which schedules use it, its waiting jobs, and the oldest of these jobs."""

    facts: TypeFacts
    around: Now
    schedules: tuple[str, ...]
    waiting: int
    due: int
    oldest: JobFacts | None
    # The time of death of the newest dead job that nobody has dealt with.
    died_at: datetime | None = None
    # When jobs of the type began to run in child processes, because the type had crashed the processes of ticks.
    crashing_since: datetime | None = None


def type_life(connection: Connection, job_type: str, settings: Settings, types: JobTypes) -> TypeLife | None:
    """Return the facts about a job type, or None if nothing has ever named it."""
    facts = type_facts(connection, job_type, settings, types)
    found = explaining.jobs_of_type(connection, job_type)
    schedules = tuple(explaining.schedules_of_type(connection, job_type))
    named = facts.known or facts.here or facts.last or facts.file_fault or job_type in settings.job_types
    if not named and not schedules and not found.waiting:
        return None
    around, oldest = surroundings(connection, settings), None
    if found.oldest is not None:
        pauses = explaining.pause_rows(connection)
        oldest = job_facts(connection, [found.oldest], settings, lambda: types, around, pauses).get(found.oldest)
        oldest = None if oldest is None else with_obstacles(connection, oldest, settings, lambda: types)
    died_at = deaths(connection).last_of.get(job_type)
    crashing_since = next((each.found_at for each in crashing(connection) if each.job_type == job_type), None)
    return TypeLife(facts, around, schedules, found.waiting, found.due, oldest, died_at, crashing_since)


def explain_type(life: TypeLife, timezone: str) -> Explanation:
    """Describe whether a job type can run, and what is waiting."""
    facts, times = life.facts, LocalTimes(life.around.now, timezone)
    subject = f"Job type {name(facts.name)}"
    sentences = []
    if facts.known and facts.here is not False:
        # Report only that the type is known. Whether its jobs can run also depends on pauses, limits, and tick options.
        loaded = f": {tick_that_began(facts.last, times)} loaded it" if facts.last is not None else ""
        sentences.append(f"{subject} is known{loaded}.")
    elif facts.known is None:
        has = {True: "has the type", False: "does not have the type", None: "is invalid, so it does not show the type"}
        here = f"this configuration {has[facts.here]}"
        sentences.append(f"{subject}: recent ticks did not record which types they know; {here}.")
    reasons = type_reasons(facts, times)
    if reasons:
        why = "; ".join(reasons)
        cannot = "" if facts.known else " cannot run"
        sentences.append(f"{capital(why)}." if sentences else f"{subject}{cannot}: {why}.")
    if life.crashing_since is not None:
        sentences.append(
            "Two runners of jobs of this type died or lost the database, so these jobs have run in child processes "
            "since "
            f"{times.clock(life.crashing_since)}."
        )
    if life.schedules:
        more = len(life.schedules) - SCHEDULES_NAMED
        named = ", ".join(name(each) for each in life.schedules[:SCHEDULES_NAMED])
        sentences.append(f"Schedules that use it: {named}{f' and {more} more' if more > 0 else ''}.")
    if life.died_at is not None:
        dead = f"cronjobs jobs list --status dead --type {quote(facts.name)}"
        sentences.append(
            f'Jobs of this type are dead; the last died at {times.clock(life.died_at)}: "{one_line(dead, 300)}".'
        )
    if life.oldest is None:
        sentences.append("No job of this type is waiting.")
    else:
        due = f"1 job of this type is waiting: job {life.oldest.id}, due"
        if life.waiting > 1:
            due = (
                f"{life.waiting:,} jobs of this type are waiting, {life.due:,} of them due; job {life.oldest.id} is "
                "due first"
            )
        due += f"{',' if life.waiting > 1 else ''} {'since' if life.due else 'at'} {times.clock(life.oldest.run_at)}"
        if facts.known is False:
            sentences.append(f"{due}.")
        else:
            sentences += [f"{due}.", *job_sentences(life.oldest, times, life.around)]
    verdict = {True: "runnable", False: "not_runnable", None: "unknown"}[facts.known]
    shown = {key: value for key, value in plain(life).items() if key != "around"}
    return Explanation(f"type {facts.name}", None, verdict, tuple(sentences), facts=shown)
