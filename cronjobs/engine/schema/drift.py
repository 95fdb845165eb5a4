"""Find out how the database's tables differ from ``tables.py``, by comparing them with fresh tables.

alembic's own comparison ignores CHECKs and the conditions of partial indexes. So this module compares both sets of
definitions as the database prints them. On PostgreSQL, the fresh tables are temporary and are rolled back. On SQLite,
they are in an in-memory database.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import Connection, create_engine, inspect, text
from sqlalchemy.schema import CreateIndex, CreateTable

from cronjobs.engine.database import indexes  # noqa: F401  importing it adds the indexes to the metadata
from cronjobs.engine.database.tables import metadata
from cronjobs.engine.store.meta import qualified

Facts = dict[tuple[str, str, str], str]
"""(table, kind, name) → definition, as the database writes it. The kind is "column", "constraint" or "index"."""

VIEWS: Final = ("cronjobs_dead_jobs", "cronjobs_long_running_jobs")
_READABLE: Final = "jobs job_runs schedules occurrences ticks job_type_lists crashing_types effects pauses audit acks"
SQLITE_VIEWS: Final = tuple(f"cronjobs_{name}_readable" for name in _READABLE.split())
APP_FUNCTIONS: Final = (
    *("cronjobs_enqueue", "cronjobs_cancel", "cronjobs_reschedule"),
    # A function that enqueues into a capped queue calls these.
    *("cronjobs_lock_queues", "cronjobs_count_full"),
)
# The workers of a cluster call these.
WORKER_FUNCTIONS: Final = ("cronjobs_take_token", "cronjobs_confirm_permit")
FUNCTIONS: Final = (*APP_FUNCTIONS, *WORKER_FUNCTIONS)


def find(connection: Connection) -> list[str]:
    """Return what is missing or changed in the database, as one sentence per finding.

    On PostgreSQL, the comparison creates temporary tables, which are rolled back with the transaction.
    """
    if connection.dialect.name == "sqlite":
        there, wanted = _sqlite_facts(connection), _sqlite_wanted()
        views = _views_missing(connection, "SELECT name FROM sqlite_master WHERE type = 'view'", VIEWS + SQLITE_VIEWS)
        return _compare(there, wanted) + views
    schema = connection.execute(
        text("SELECT relnamespace FROM pg_class WHERE oid = to_regclass(:meta)"),
        {"meta": qualified(connection, "cronjobs_meta")},
    ).scalar_one()
    views = _views_missing(
        connection,
        f"SELECT relname FROM pg_class WHERE relkind = 'v' AND relnamespace = {int(schema)}",  # noqa: S608 a number
        VIEWS,
    )
    functions = [finding for name in FUNCTIONS for finding in _function_wrong(connection, int(schema), name)]
    there = _postgresql_facts(connection, str(int(schema)))
    _create_temporary_tables(connection)
    wanted = _postgresql_facts(connection, "pg_my_temp_schema()")
    for fact in wanted:
        if fact[1] == "constraint" and fact in there and there[fact] != wanted[fact]:
            wanted[fact] = _read_again(connection, fact[0], wanted[fact])
    return _compare(there, wanted) + views + functions


def _read_again(connection: Connection, table: str, definition: str) -> str:
    """Return a constraint's *definition* as the server writes it after parsing its own output.

    A restored dump has constraints in this form, because pg_dump copies the server's output, and restoring parses it
    again. In this form, for example, a nested AND has no parentheses (measured on PostgreSQL 18).
    """
    if not definition.startswith("CHECK "):
        return definition
    # To the driver, a single % begins a parameter.
    escaped = definition.replace("%", "%%")
    connection.exec_driver_sql(f"ALTER TABLE pg_temp.{table} ADD CONSTRAINT read_again {escaped}")
    written = connection.exec_driver_sql(
        "SELECT pg_get_constraintdef(oid) FROM pg_constraint "
        "WHERE conname = 'read_again' AND connamespace = pg_my_temp_schema()"
    ).scalar_one()
    connection.exec_driver_sql(f"ALTER TABLE pg_temp.{table} DROP CONSTRAINT read_again")
    return str(written)


def _create_temporary_tables(connection: Connection) -> None:
    temporary = {"schema_translate_map": {None: "pg_temp"}}
    for table in metadata.sorted_tables:
        connection.execute(CreateTable(table), execution_options=temporary)
        for index in table.indexes:
            connection.execute(CreateIndex(index), execution_options=temporary)


def _compare(there: Facts, wanted: Facts) -> list[str]:
    tables = {table for table, _, _ in there}
    findings = []
    gone = set()
    for (table, kind, name), definition in wanted.items():
        found = there.get((table, kind, name))
        if table not in tables:
            if table not in gone:
                findings.append(f"table {table} is missing")
                gone.add(table)
        elif found is None:
            findings.append(f"{table}: {kind} {name} is missing")
        elif found != definition:
            findings.append(f"{table}: {kind} {name} is «{found}» but should be «{definition}»")
    return findings


def _views_missing(connection: Connection, statement: str, wanted: tuple[str, ...]) -> list[str]:
    there = set(connection.execute(text(statement)).scalars())
    return [f"view {name} is missing" for name in wanted if name not in there]


def _function_wrong(connection: Connection, schema: int, name: str) -> list[str]:
    row = connection.execute(
        text(
            "SELECT array_to_string(p.proconfig, ' ') AS settings, "
            "'search_path=' || quote_ident(n.nspname) || ', pg_temp' AS wanted "
            "FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace "
            "WHERE p.proname = :name AND p.pronamespace = :schema"
        ),
        {"name": name, "schema": schema},
    ).first()
    if row is None:
        return [f"function {name} is missing"]
    if row.settings != row.wanted:
        return [f"function {name} has «{row.settings}» but should have «{row.wanted}»: perhaps the schema was renamed"]
    return []


# --- PostgreSQL: the definitions in the catalogue, without the schema's name ------------------------------------------

_POSTGRESQL_FACTS: Final = """
WITH ours AS (
    -- The schema of temporary tables is written as pg_temp since PostgreSQL 15, and by its own name before.
    SELECT c.oid, c.relname, quote_ident(n.nspname) || '.' AS prefix,
           CASE WHEN n.oid = pg_my_temp_schema() THEN 'pg_temp.' ELSE '' END AS also
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.oid = {schema} AND c.relkind IN ('r', 'p') AND c.relname LIKE 'cronjobs\\_%'
)
SELECT o.relname, 'column', a.attname,
       concat_ws(' ', format_type(a.atttypid, a.atttypmod), CASE WHEN a.attnotnull THEN 'NOT NULL' END,
                 CASE WHEN a.attidentity <> '' THEN 'IDENTITY ' || a.attidentity::text END,
                 'DEFAULT ' || pg_get_expr(d.adbin, d.adrelid))
FROM ours o JOIN pg_attribute a ON a.attrelid = o.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
UNION ALL
SELECT o.relname, 'constraint', k.conname,
       replace(replace(pg_get_constraintdef(k.oid), o.prefix, ''), o.also, '')
FROM ours o JOIN pg_constraint k ON k.conrelid = o.oid AND k.contype IN ('p', 'u', 'f', 'c')
UNION ALL
SELECT o.relname, 'index', i.relname,
       replace(replace(pg_get_indexdef(i.oid), o.prefix, ''), o.also, '')
         || CASE WHEN x.indisvalid THEN '' ELSE ' INVALID' END
FROM ours o JOIN pg_index x ON x.indrelid = o.oid JOIN pg_class i ON i.oid = x.indexrelid
WHERE NOT EXISTS (SELECT 1 FROM pg_constraint k WHERE k.conindid = x.indexrelid AND k.contype IN ('p', 'u'))
"""


def _postgresql_facts(connection: Connection, schema: str) -> Facts:
    rows = connection.execute(text(_POSTGRESQL_FACTS.format(schema=schema)))
    return {(table, kind, name): definition for table, kind, name, definition in rows}


# --- SQLite ---------------------------------------------------------------------------------------------------------


def _sqlite_wanted() -> Facts:
    engine = create_engine("sqlite://")
    try:
        with engine.begin() as connection:
            metadata.create_all(connection)
            return _sqlite_facts(connection)
    finally:
        engine.dispose()


def _sqlite_facts(connection: Connection) -> Facts:
    facts: Facts = {}
    inspector = inspect(connection)
    for table in metadata.tables:
        for _, name, kind, not_null, default, key, _ in connection.exec_driver_sql(f'PRAGMA table_xinfo("{table}")'):
            words = (
                kind,
                "NOT NULL" if not_null else "",
                "KEY" if key else "",
                f"DEFAULT {default}" if default else "",
            )
            facts[table, "column", name] = " ".join(word for word in words if word)
        if not any(known == table for known, _, _ in facts):
            continue
        for check in inspector.get_check_constraints(table):
            facts[table, "constraint", str(check["name"])] = _spaced(f"CHECK ({check['sqltext']})")
        for unique in inspector.get_unique_constraints(table):
            facts[table, "constraint", str(unique["name"])] = f"UNIQUE ({', '.join(unique['column_names'])})"
        for foreign in inspector.get_foreign_keys(table):
            facts[table, "constraint", str(foreign["name"])] = (
                f"FOREIGN KEY ({', '.join(foreign['constrained_columns'])}) REFERENCES {foreign['referred_table']} "
                f"{foreign.get('options')}"
            )
    rows = connection.exec_driver_sql("SELECT tbl_name, name, sql FROM sqlite_master WHERE type = 'index'")
    for table, name, definition in rows:
        if definition is not None and table in metadata.tables:
            facts[table, "index", name] = _spaced(definition)
    return facts


def _spaced(sql: str) -> str:
    return " ".join(sql.split())
