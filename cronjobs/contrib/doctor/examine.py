"""The table of all checks of ``doctor``. Each check gathers facts, and a pure function judges them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from cronjobs.contrib.doctor import database_checks as database
from cronjobs.contrib.doctor import host_checks as host
from cronjobs.contrib.doctor.diagnosis import Diagnosis, not_applicable, warning
from cronjobs.contrib.doctor.patient import ExaminedSite
from cronjobs.engine.config.trust import UntrustedFiles
from cronjobs.masking import hide
from cronjobs.text import one_line

Needs = Literal["nothing", "project", "settings", "database", "tables", "ticks", "postgresql", "sqlite"]


@dataclass(frozen=True)
class Examination:
    """One check. ``about`` is the question that the check answers."""

    name: str
    about: str
    needs: Needs
    run: Callable[[ExaminedSite], Diagnosis]


def examine(patient: ExaminedSite, checks: Sequence[Examination] | None = None) -> list[tuple[Examination, Diagnosis]]:
    """Run *checks*, or every check if None. A check that crashes becomes a warning, and the others still run."""
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
            "this check has no result, but the other checks are complete",
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


CHECKS: Final = (
    Examination("configuration", "Is every entry of the file valid?", "project", host.configuration),
    Examination("handlers", "Can the handlers be imported here?", "settings", host.handlers),
    Examination("job types", "Does every job type in use have a handler?", "settings", host.job_types),
    Examination("timeouts", "Can every job start, given its timeout?", "settings", host.timeouts),
    Examination("database", "Does the database answer, and is it this project's?", "nothing", database.database),
    Examination("schema revision", "Are the tables at this version's revision?", "database", database.revision),
    Examination("schema drift", "Have the tables been changed by hand?", "tables", database.drift),
    Examination("clocks", "Do this host and the database agree on the time?", "database", database.clocks),
    Examination("versions", "Was cronjobs tested with this version of the server?", "postgresql", database.versions),
    Examination("locks", "Does another session keep ticks waiting?", "postgresql", database.locks),
    Examination("rights", "Does each role have exactly the rights that it needs?", "postgresql", database.rights),
    Examination("vacuum", "Does vacuum keep up?", "postgresql", database.vacuum),
    Examination("file system", "Is SQLite's file on a local disk?", "sqlite", database.sqlite_place),
    Examination("file modes", "Who can read and write SQLite's file?", "sqlite", database.sqlite_modes),
    Examination("journal mode", "Is SQLite in WAL mode?", "sqlite", database.sqlite_journal),
    Examination("crontab", "Does this user's crontab have the line that starts ticks?", "project", host.crontab),
    Examination("ticks", "Do ticks run on this host?", "ticks", host.ticks),
    Examination("overlapping ticks", "Does each tick end before the next one begins?", "ticks", host.overlapping),
    Examination("cron's mail", "Who receives a failing tick's output?", "project", host.mail),
    Examination("alembic", "Does the app's alembic leave our tables alone?", "project", host.alembic),
    Examination("state folder", "Can ticks write their state files?", "nothing", host.state_folder),
    Examination("disk space", "Is there enough disk space?", "nothing", host.disk_space),
)
