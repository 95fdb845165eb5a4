"""The checks of ``doctor``. Each check gathers its facts, and a pure function judges these facts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Final, Literal

from cronjobs.contrib.doctor import database_facts, database_verdicts, host_facts, host_verdicts, statements
from cronjobs.contrib.doctor.diagnosis import Diagnosis, not_applicable, warning
from cronjobs.desk.crontab import program
from cronjobs.desk.init.app_alembic import env_files
from cronjobs.desk.insight import check_config
from cronjobs.desk.insight.gathering import look
from cronjobs.desk.insight.judged_types import waiting_without_handler
from cronjobs.desk.insight.kept_from_starting import kept_from_starting_here
from cronjobs.desk.insight.pace import at_their_pace
from cronjobs.desk.insight.waiting import MOST_TYPES
from cronjobs.desk.insight.watched import STEADY_TICKS, quiet_after
from cronjobs.desk.store.upgrade_warnings import migrated_by_an_app
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.config.trust import UntrustedFiles
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.schema import migrations
from cronjobs.engine.store.sql import database_now
from cronjobs.masking import hide
from cronjobs.text import one_line

Needs = Literal["nothing", "project", "settings", "database", "tables", "ticks", "postgresql", "sqlite"]


@dataclass(frozen=True)
class ExaminedSite:
    """The host, file and database to examine.

    ``unusable`` says why a tick could not use the file. ``settings`` is None if not even a database address is known.
    If ``database`` is None, ``unreachable`` may say why. ``no_file`` is true if the reason is that the SQLite file does
    not exist. ``tables`` is true if this version can use the database's tables. ``root`` is the root of the host's file
    system.
    """

    file: Path
    host: str
    now: datetime
    environ: Mapping[str, str]
    known_types: Callable[[Settings], JobTypes]
    settings: Settings | None = None
    unusable: str = ""
    database: Database | None = None
    unreachable: str = ""
    no_file: bool = False
    tables: bool = False
    root: Path = Path("/")

    @cached_property
    def types(self) -> JobTypes:
        return self.known_types(self.config)

    @property
    def config(self) -> Settings:
        assert self.settings is not None
        return self.settings

    @property
    def db(self) -> Database:
        assert self.database is not None
        return self.database

    @property
    def sqlite_path(self) -> Path:
        return Path(str(self.db.address.url.database))


@dataclass(frozen=True)
class Examination:
    """One check. ``about`` is the question that the check answers."""

    name: str
    about: str
    needs: Needs
    run: Callable[[ExaminedSite], Diagnosis]


def examine(patient: ExaminedSite, checks: Sequence[Examination] | None = None) -> list[tuple[Examination, Diagnosis]]:
    """Run *checks*. If *checks* is None, run every check.

    A check that crashes is reported as a warning, and the others still run.
    """
    return [(check, _one(check, patient)) for check in (CHECKS if checks is None else checks)]


def _one(check: Examination, patient: ExaminedSite) -> Diagnosis:
    if why := _cannot(check.needs, patient):
        return not_applicable(why)
    try:
        return check.run(patient)
    except UntrustedFiles:  # the check "configuration" reports the untrusted files
        return not_applicable("this check needs the handlers, but root does not trust their files")
    except Exception as error:
        said = one_line(hide(f"{type(error).__name__}: {error}"), 400)
        return warning(
            f"this check itself failed: {said}",
            "this check found out nothing, but the other checks are complete",
        )


def _cannot(needs: Needs, patient: ExaminedSite) -> str | None:
    """Return why a check with these *needs* does not apply, or None if the check applies."""
    if needs in ("project", "settings", "ticks") and patient.settings is not None and patient.settings.without_project:
        return "there is no project here: cronjobs exec records its runs in the state folder"
    if needs == "settings" and (patient.settings is None or patient.unusable):
        return "this check needs the configuration, which cannot be used"
    if needs in ("database", "tables", "ticks", "postgresql", "sqlite"):
        if patient.settings is None or patient.database is None:
            return "this check needs the database, which cannot be reached"
        if needs in ("tables", "ticks") and not patient.tables:
            return "this check needs tables that this version can use"
        if needs == "postgresql" and patient.database.is_sqlite:
            return "the database is SQLite"
        if needs == "sqlite" and not patient.database.is_sqlite:
            return "the database is PostgreSQL"
    return None


# --- the configuration ------------------------------------------------------------------------------------------------


def _configuration(patient: ExaminedSite) -> Diagnosis:
    # If the file is unusable, patient.settings may hold only the database's address, for the database checks.
    if patient.settings is None or patient.unusable:
        return host_verdicts.unreadable(str(patient.file), patient.unusable)
    found = check_config.check(patient.settings, None, file=patient.file.name, environ=patient.environ, now=patient.now)
    problems = [str(finding.problem) for finding in found.findings]
    return host_verdicts.configuration(str(patient.file), problems, is_misread=bool(patient.settings.problems))


def _handlers(patient: ExaminedSite) -> Diagnosis:
    faults = [f"{fault.where}: {fault.what}" for fault in patient.types.faults]
    return host_verdicts.handlers(len(patient.types.types), faults)


def _job_types(patient: ExaminedSite) -> Diagnosis:
    unknown = check_config.wrong_names(patient.config, patient.types)
    waiting: dict[str, int] = {}
    due: set[str] = set()
    if patient.database is not None and patient.tables:
        with patient.database.read() as connection:
            due = set(look(connection, patient.config, patient.types).waiting.unresolved)
            waiting = waiting_without_handler(connection, patient.config, patient.types, patient.host, MOST_TYPES)
    return host_verdicts.job_types([str(each) for each in unknown], sorted(due - waiting.keys()), waiting)


def _timeouts(patient: ExaminedSite) -> Diagnosis:
    never = check_config.never_begin(patient.config, patient.types)
    return host_verdicts.timeouts([str(each.problem) for each in never])


# --- the database -----------------------------------------------------------------------------------------------------


def _database(patient: ExaminedSite) -> Diagnosis:
    if patient.settings is None or patient.database is None:
        if patient.settings is not None and not patient.settings.database:
            return database_verdicts.unknown(patient.unreachable)
        why = (
            patient.unreachable or "there is no configuration and no --database-url, so there is no database to look at"
        )
        return database_verdicts.unreachable(why, no_file=patient.no_file)
    name = str(patient.database.address)
    # Only the configuration file names our project. Without the file, doctor cannot know whether the database belongs
    # to our project.
    if patient.unusable:
        return database_verdicts.database(name, None)
    with patient.database.read() as connection:
        return database_verdicts.database(name, database_facts.other_owner(connection, patient.settings))


def _revision(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        return database_facts.revision(connection)


def _drift(patient: ExaminedSite) -> Diagnosis:
    return database_verdicts.drift(migrations.check(patient.db))


def _sqlite_place(patient: ExaminedSite) -> Diagnosis:
    return database_verdicts.sqlite_place(database_facts.sqlite_file(patient.sqlite_path, patient.root))


def _sqlite_modes(patient: ExaminedSite) -> Diagnosis:
    return database_verdicts.sqlite_modes(database_facts.sqlite_file(patient.sqlite_path, patient.root))


def _sqlite_journal(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        return database_verdicts.sqlite_journal(statements.journal_mode(connection))


def _locks(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        return database_verdicts.locks(database_facts.blockers(connection), database_now(connection))


def _bloat(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        on = statements.server(connection).autovacuum
        return database_verdicts.bloat(statements.table_statistics(connection), autovacuum=on)


def _rights(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        return database_verdicts.rights(database_facts.roles(connection))


def _clocks(patient: ExaminedSite) -> Diagnosis:
    return database_facts.clocks(patient.db)


def _versions(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        return database_verdicts.version(statements.server(connection))


# --- cron and the host ------------------------------------------------------------------------------------------------


def _crontab(patient: ExaminedSite) -> Diagnosis:
    ticks: bool | None = None
    elsewhere = ""
    if patient.database is not None and patient.settings is not None and patient.tables:
        with patient.database.read() as connection:
            every = at_their_pace(connection, patient.settings).run.every
            found = database_facts.fired(connection, every, patient.host)
            begun = [tick.started_at for tick in statements.ticks_of_host(connection, patient.host)]
        quiet = quiet_after(every)
        # Ignore ticks from before the crontab's last change, because a line that is now gone may have started them.
        changed = program.changed_at()
        still = found.last_at is not None and found.now - found.last_at <= quiet
        ticks = still and len(begun) >= STEADY_TICKS and (changed is None or changed < max(begun))
        elsewhere = found.elsewhere
    return host_verdicts.crontab(_cron_line(patient), ticks=ticks, elsewhere=elsewhere)


def _cron_line(patient: ExaminedSite) -> host_verdicts.CronLine:
    settings = None if patient.unusable else patient.settings
    return host_facts.cron_line(patient.file, settings, patient.root)


def _firing(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        found = database_facts.fired(connection, patient.config.run.every, patient.host)
    return host_verdicts.firing(found, _cron_line(patient), kept_from_starting_here(patient.config))


def _mail(patient: ExaminedSite) -> Diagnosis:
    return host_verdicts.mail(host_facts.cron_mail(patient.file, patient.settings, patient.root))


def _overlapping(patient: ExaminedSite) -> Diagnosis:
    with patient.db.read() as connection:
        ticks = statements.ticks_of_host(connection, patient.host)
    return host_verdicts.overlapping(ticks, patient.config.run.every)


def _alembic(patient: ExaminedSite) -> Diagnosis:
    found = env_files(patient.file.parent)
    same = None
    if found and patient.database is not None:
        with patient.database.read() as connection:
            same = migrated_by_an_app(connection)
    return host_verdicts.alembic(found, same_database=same)


def _state_folder(patient: ExaminedSite) -> Diagnosis:
    return host_verdicts.state_folder(host_facts.kept_state(patient.root))


def _disk_space(patient: ExaminedSite) -> Diagnosis:
    return host_verdicts.disk_space(host_facts.volumes(patient.settings))


CHECKS: Final = (
    Examination("configuration", "Is every entry of the file valid?", "project", _configuration),
    Examination("handlers", "Can the handlers be imported here?", "settings", _handlers),
    Examination("job types", "Does every job type in use have a handler?", "settings", _job_types),
    Examination("timeouts", "Can every job start, given its timeout?", "settings", _timeouts),
    Examination("database", "Does the database answer, and is it this project's?", "nothing", _database),
    Examination("schema revision", "Are the tables at this version's revision?", "database", _revision),
    Examination("schema drift", "Have the tables been changed by hand?", "tables", _drift),
    Examination("clocks", "Do this host and the database agree on the time?", "database", _clocks),
    Examination("versions", "Was cronjobs tested with this version of the server?", "postgresql", _versions),
    Examination("locks", "Does another session keep ticks waiting?", "postgresql", _locks),
    Examination("rights", "Does each role have exactly the rights that it needs?", "postgresql", _rights),
    Examination("vacuum", "Does vacuum keep up?", "postgresql", _bloat),
    Examination("file system", "Is SQLite's file on a local disk?", "sqlite", _sqlite_place),
    Examination("file modes", "Who can read and write SQLite's file?", "sqlite", _sqlite_modes),
    Examination("journal mode", "Is SQLite in WAL mode?", "sqlite", _sqlite_journal),
    Examination("crontab", "Does this user's crontab have the line that starts ticks?", "project", _crontab),
    Examination("ticks", "Do ticks run on this host?", "ticks", _firing),
    Examination("overlapping ticks", "Does each tick end before the next one begins?", "ticks", _overlapping),
    Examination("cron's mail", "Who receives a failing tick's output?", "project", _mail),
    Examination("alembic", "Does the app's alembic leave our tables alone?", "project", _alembic),
    Examination("state folder", "Can ticks write their state files?", "nothing", _state_folder),
    Examination("disk space", "Is there enough disk space?", "nothing", _disk_space),
)
