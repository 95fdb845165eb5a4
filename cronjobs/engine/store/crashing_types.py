"""The table ``cronjobs_crashing_types``: job types that crash their runners, as ``rules.crashing_types`` decides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from sqlalchemy import Connection, delete, select

from cronjobs.engine.database.tables import crashing_types
from cronjobs.engine.probe.sql_text import CRASHING_TYPES, either
from cronjobs.engine.rules.crashing_types import FOR_AT_MOST, Crashing, EndCounts, after_death, ends_needed
from cronjobs.engine.store.sql import database_now, group, inserted_into, run

_ENDS_BY_TYPE: Final = group("ends", {"job_type": "text", "clean": "int", "crashed": "int"})
_LOCK_TYPE: Final = either(postgresql="FOR UPDATE OF c SKIP LOCKED", sqlite="")


def crashing(connection: Connection) -> list[Crashing]:
    """Return the types that count as crashing, whose jobs now run in child processes."""
    return [each for each in watched(connection) if not each.suspected]


def watched(connection: Connection) -> list[Crashing]:
    """Return the crashing and the suspected types."""
    now = database_now(connection)
    return [each for each in _all(connection).values() if each.holds(now)]


def _all(connection: Connection) -> dict[str, Crashing]:
    rows = connection.execute(select(crashing_types).order_by(crashing_types.c.job_type)).all()
    return {row.job_type: Crashing(**dict(row._mapping) | {"suspected": bool(row.suspected)}) for row in rows}


def note_deaths(connection: Connection, runners: Mapping[str, str]) -> list[Crashing]:
    """Record that runners died while they ran jobs of these types. *runners* maps each type to the runner.

    Returns the types that now count as crashing.
    """
    now = database_now(connection)
    known = _all(connection)
    connection.execute(delete(crashing_types).where(crashing_types.c.found_at < now - FOR_AT_MOST))
    found = []
    for job_type, runner in sorted(runners.items()):
        after = after_death(known.get(job_type), job_type, runner, now)
        if after is None:
            continue
        values = vars(after) | {"suspected": int(after.suspected)}
        insert = inserted_into(connection, crashing_types).values(values)
        connection.execute(insert.on_conflict_do_update(index_elements=[crashing_types.c.job_type], set_=values))
        found += [] if after.suspected else [after]
    return found


def note_ends(connection: Connection, ends: Mapping[str, EndCounts]) -> list[str]:
    """Count how jobs of watched types ended. Return the types that are now cleared, because enough jobs ended cleanly.

    If another transaction has locked the row of a type, the ends of that type are not counted.
    """
    rows = [{"job_type": name, "clean": each.clean, "crashed": int(each.crashed)} for name, each in ends.items()]
    counted = run(
        connection,
        f"""
        SELECT c.job_type, c.suspected, CASE WHEN e.crashed = 1 THEN 0 ELSE c.clean_ends END + e.clean AS clean_ends
        FROM {_ENDS_BY_TYPE} AS e JOIN {CRASHING_TYPES} c ON c.job_type = e.job_type
        ORDER BY c.job_type {_LOCK_TYPE}""",
        ends=rows,
    ).all()
    cleared = [row.job_type for row in counted if row.clean_ends >= ends_needed(bool(row.suspected))]
    for row in counted:
        whose = crashing_types.c.job_type == row.job_type
        if row.job_type in cleared:
            connection.execute(delete(crashing_types).where(whose))
        else:
            connection.execute(crashing_types.update().where(whose).values(clean_ends=row.clean_ends))
    return cleared
