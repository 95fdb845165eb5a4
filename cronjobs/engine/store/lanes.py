"""The lanes in which jobs wait, as SQL. A claim visits only lanes of types that it can run."""

from __future__ import annotations

from cronjobs.engine.probe.sql_text import JOBS, either


def lanes_of(kind: str, waiting: str, types: str, where: str = "true") -> str:
    """Return the body of the recursive CTE *kind*: the (type, queue, priority) lanes with waiting jobs of *types*."""
    there = f"FROM {JOBS} j WHERE j.job_type = %s.job_type AND j.{waiting}"
    first = f"{there % 't'} ORDER BY j.queue, j.priority LIMIT 1"
    # Do not use a row comparison here: SQLite would use only the first column of the index for it, and scan the whole
    # queue.
    here = f"{there % 'b'} AND j.queue = b.queue AND j.priority > b.priority ORDER BY j.priority LIMIT 1"
    beyond = f"{there % 'b'} AND j.queue > b.queue ORDER BY j.queue, j.priority LIMIT 1"
    columns = ("queue", "priority")
    firsts = ", ".join(f"(SELECT j.{column} {first})" for column in columns)
    nexts = ", ".join(f"coalesce((SELECT j.{column} {here}), (SELECT j.{column} {beyond}))" for column in columns)
    # On PostgreSQL, take the next row of any type, and compare the type afterwards. With ``job_type =`` the planner may
    # pick the index without job_type. Then, for a type without waiting jobs, it would scan every waiting row.
    row = "j.job_type, j.queue, j.priority"
    step = f"SELECT {row} FROM {JOBS} j WHERE j.{waiting} AND %s ORDER BY {row} LIMIT 1"
    return either(
        postgresql=f"SELECT h.* FROM {types} CROSS JOIN LATERAL ({step % 'j.job_type >= t.job_type'}) h "
        f"WHERE h.job_type = t.job_type AND {where} UNION ALL "
        f"SELECT h.* FROM {kind} b CROSS JOIN LATERAL "
        f"({step % f'({row}) > (b.job_type, b.queue, b.priority)'}) h WHERE h.job_type = b.job_type",
        sqlite=f"SELECT t.job_type, {firsts} FROM {types} WHERE {where} UNION ALL "
        f"SELECT b.job_type, {nexts} FROM {kind} b WHERE b.queue IS NOT NULL",
    )


def types_in(parameter: str) -> str:
    """Return SQL that turns *parameter*, a list of job types, into rows."""
    return either(
        postgresql=f"json_array_elements_text(CAST(:{parameter} AS json)) AS t(job_type)",
        sqlite=f"(SELECT value AS job_type FROM json_each(:{parameter})) AS t",
    )
