"""SQL that is written once for both databases, and its conversion to the text for each database.

A statement is an f-string made of constants. Before it runs, ``statement_text`` fills in two things: the names of our
tables and functions, which may be in a configured schema, and the parts that differ between the databases (``either``).
"""

from __future__ import annotations

JOBS = "{jobs}"
JOB_RUNS = "{job_runs}"
SCHEDULES = "{schedules}"
OCCURRENCES = "{occurrences}"
QUARTERS = "{quarters}"
TICKS = "{ticks}"
JOB_TYPE_LISTS = "{job_type_lists}"
CRASHING_TYPES = "{crashing_types}"
EFFECTS = "{effects}"
QUEUES = "{queues}"
PAUSES = "{pauses}"
AUDIT = "{audit}"
COUNTS = "{counts}"
NEW_COUNTS = "{new_counts}"
FINDINGS = "{findings}"
ALERTS = "{alerts}"
TOKENS = "{tokens}"
META = "{meta}"
# The names of our functions in the database, and of one sequence.
CANCEL = "{cancel}"
RESCHEDULE = "{reschedule}"
TAKE_TOKEN = "{take_token}"
CONFIRM_PERMIT = "{confirm_permit}"
LOCK_QUEUES = "{lock_queues}"
COUNT_FULL = "{count_full}"
QUEUES_HELD = "{queues_held}"

# These control characters mark the parts of ``either``. They never occur in SQL.
_BEGIN, _OR, _END = "\x01", "\x02", "\x03"


def either(*, postgresql: str, sqlite: str) -> str:
    """Return SQL, for use as part of a statement, whose text differs between the two databases."""
    return f"{_BEGIN}{postgresql}{_OR}{sqlite}{_END}"


# Use statement_timestamp(): clock_timestamp() is volatile, so PostgreSQL could not use an index with it. On PostgreSQL
# :now_ is a shift in seconds, which is zero except in tests that move the clock of a real database. On SQLite, which
# has no clock of its own, :now_ is the time by the host's clock.
POSTGRESQL_NOW = "(statement_timestamp() + make_interval(secs => :now_))"
NOW = either(postgresql=POSTGRESQL_NOW, sqlite=":now_")


def shifted(instant: str, seconds: str) -> str:
    """Return SQL for *instant* plus *seconds*, both of which are SQL expressions.

    *seconds* may be negative. To subtract a parameter, use ``shifted_back``. asyncpg sends no types, and PostgreSQL
    cannot infer the type of the parameter in ``-:x``.
    """
    return either(
        postgresql=f"({instant} + make_interval(secs => {seconds}))",
        sqlite=f"({instant} + CAST(({seconds}) * 1000000 AS INTEGER))",
    )


def shifted_back(instant: str, seconds: str) -> str:
    """Return SQL for *instant* minus *seconds*."""
    return either(
        postgresql=f"({instant} - make_interval(secs => {seconds}))",
        sqlite=f"({instant} - CAST(({seconds}) * 1000000 AS INTEGER))",
    )


def after_now(seconds: str) -> str:
    return shifted(NOW, seconds)


def before_now(seconds: str) -> str:
    return shifted_back(NOW, seconds)


def qualified(table: str, schema: str | None) -> str:
    """Return the full name of *table*, qualified with *schema*. If *schema* is None, the name is not qualified, and the
    search_path applies.
    """
    if schema is None:
        return f"cronjobs_{table}"
    quoted = schema.replace('"', '""')
    return f'"{quoted}".cronjobs_{table}'


class _Qualified(dict[str, str]):
    """Maps each of our names to its form for tables in *schema*."""

    def __init__(self, schema: str | None) -> None:
        self._schema = schema

    def __missing__(self, name: str) -> str:
        return qualified(name, self._schema)


def statement_text(statement: str, *, postgresql: bool, schema: str | None = None) -> str:
    """Return the SQL text of *statement* for one of the databases. To run the text by hand, replace its ``:parameters``
    by values.
    """
    # Replace the innermost part first.
    while _END in statement:
        before, _, after = statement.partition(_END)
        before, _, texts = before.rpartition(_BEGIN)
        for_postgresql, _, for_sqlite = texts.partition(_OR)
        statement = before + (for_postgresql if postgresql else for_sqlite) + after
    return statement.format_map(_Qualified(schema))
