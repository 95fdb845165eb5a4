"""The notes of ``cronjobs check``: valid settings that may not mean what their author expects."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from cronjobs.desk.init.app_alembic import unfiltered
from cronjobs.desk.init.starter import OWN_FILE, SCHEMA_FILE, starter_schema
from cronjobs.desk.insight.finding import several
from cronjobs.desk.insight.formatting import counted, safe
from cronjobs.engine.config.settings import JobTypeSettings, RetryChanges, ScheduleSettings, Settings
from cronjobs.engine.crontime.grammar import parse
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.rules.concurrency import Limit
from cronjobs.engine.rules.shell_words import as_shell_line, shell_word
from cronjobs.errors import CronjobsError
from cronjobs.model import RetryPolicy, duration_text

# A note has a text and dotted paths. The first of these paths that the file contains gives the note's position.
Note = tuple[str, tuple[str, ...]]


def notes(settings: Settings, known: JobTypes | None) -> Iterator[Note]:
    yield from _either_day(settings.schedules)
    yield from _shell_words(settings.job_types)
    yield from _short_delays(settings, known)
    yield from _limits_of_types(settings.limits, {*settings.job_types, *(known.types if known is not None else ())})
    yield from _limits_without_effect(settings.limits)
    yield from _old_schema(settings.folder)
    yield from _app_alembic(settings)


def _either_day(schedules: Mapping[str, ScheduleSettings]) -> Iterator[Note]:
    for name, schedule in schedules.items():
        if schedule.cron is not None and (said := parse(schedule.cron).day_remark):
            yield said, (f"schedules.{name}.cron", f"schedules.{name}")


def _shell_words(job_types: Mapping[str, JobTypeSettings]) -> Iterator[Note]:
    for name, entry in job_types.items():
        if entry.command is None or (word := shell_word(entry.command)) is None:
            continue
        text = (
            f'"{word}" is passed to {entry.command[0]} as an argument, since commands run without a shell: to use a '
            f"shell, write {as_shell_line(entry.command)}"
        )
        yield text, (f"job_types.{name}.command", f"schedules.{name}.command", f"job_types.{name}", f"schedules.{name}")


def _limits_of_types(limits: Sequence[Limit], types: Collection[str]) -> Iterator[Note]:
    """Add a note for each limit whose prefix names a job type, since limits count by concurrency key, not by type."""
    for limit in limits:
        named = sorted(
            name
            for name in types
            if name == limit.prefix or (limit.prefix[-1:] == "." and name.startswith(limit.prefix))
        )
        if named:
            text = (
                f'"{limit.prefix}" names a job type, but limits count by concurrency_key. This limit counts only jobs '
                f'whose concurrency_key begins with its prefix: enqueue(connection, "{named[0]}", …, '
                f'concurrency_key="{limit.prefix}")'
            )
            yield text, (f"limits.{limit.prefix}", "limits")


def limits_that_never_applied(limits: Sequence[Limit], keys: Sequence[str | None]) -> dict[str, str]:
    """Map the prefix of each limit that applies to none of the newest jobs to a note. *keys*: these jobs' keys."""
    given = [key for key in keys if key is not None]
    others = "none of them has a key"
    if given:
        have = "has" if len(given) == 1 else "have"
        others = f'{len(given):,} of them {have} a key, such as "{safe(given[0], 60)}"'
    return {
        limit.prefix: (
            f"this limit applied to none of the newest {counted(len(keys), 'job')}, since no concurrency_key begins "
            f'with "{limit.prefix}" ({others})'
        )
        for limit in limits
        if keys and limit.most != 0 and not any(map(limit.counts, given))
    }


def _limits_without_effect(limits: Sequence[Limit]) -> Iterator[Note]:
    for limit in limits:
        if limit.most and limit.each is not None and limit.each >= limit.most:
            text = (
                f'"each: {limit.each}" has no effect, because "most: {limit.most}" already limits the jobs of one key'
            )
            yield text, (f"limits.{limit.prefix}.each", f"limits.{limit.prefix}", "limits")


def _short_delays(settings: Settings, known: JobTypes | None) -> Iterator[Note]:
    """Add a note for each retry delay shorter than ``run.every``, since a retry waits for the next tick anyway."""
    every = settings.run.linger or settings.run.every
    written: list[tuple[str, str, RetryPolicy]] = []
    if settings.retry != RetryChanges():
        written.append(("defaults.retry", "", settings.retry.apply(RetryPolicy())))
    for name, entry in settings.job_types.items():
        if entry.retry != RetryChanges():
            written.append((f"job_types.{name}.retry", "", entry.retry.apply(RetryPolicy())))
    for name, found in known.types.items() if known is not None else ():
        in_code = found.registration.retry if found.registration is not None else None
        is_retried = found.retry.max_attempts > 1
        if in_code is not None and is_retried and f"job_types.{name}.retry" not in settings.positions:
            written.append(("imports" if "imports" in settings.positions else "", name, in_code))
    alike: dict[tuple[str, str], list[str]] = {}
    for path, name, policy in written:
        short = [delay for delay in _delays(policy) if timedelta(0) < delay < every]
        if short and policy.max_attempts > 1:
            sooner = "" if settings.run.linger else '; with "run: {linger: true}", ticks poll every second'
            later = f"up to {duration_text(every)} later{sooner}"
            wait = f"begins in the same tick if that tick is still at work, and otherwise in the next tick, {later}"
            alike.setdefault((path, f"a retry after {duration_text(short[0])} {wait}"), []).append(name)
    for (path, text), names in alike.items():
        yield f"{several(names)}: {text}" if any(names) else text, (path,)


def _old_schema(folder: Path) -> Iterator[Note]:
    """Add a note if another version wrote cronjobs.schema.json, since editors check the YAML with that file."""
    try:
        written = (folder / SCHEMA_FILE).read_text(encoding="utf-8")
    except (OSError, ValueError):
        return  # the file does not exist, or editors cannot read it either
    if written != starter_schema():
        text = (
            f"{SCHEMA_FILE} was written by another version, so editors check against that version; to "
            f"update it, run: cronjobs schema > {SCHEMA_FILE}"
        )
        yield text, ("",)


def _app_alembic(settings: Settings) -> Iterator[Note]:
    """Add a note if the app's alembic does not ignore our tables.

    If the jobs have a SQLite file of their own, no note is needed.
    """
    if not settings.database:
        return
    try:
        address = parse_url(settings.database, settings.schema)
    except CronjobsError:
        # check_config reports the invalid URL as a finding.
        return
    if address.is_sqlite and str(address.url.database) == str(settings.folder / OWN_FILE):
        return
    if said := unfiltered(settings.folder, schema=address.schema):
        yield said, ("database",)


def _delays(policy: RetryPolicy) -> list[timedelta]:
    if policy.delays is not None:
        return [delay for delay in policy.delays if isinstance(delay, timedelta)]
    return [policy.base] if isinstance(policy.base, timedelta) else []
