"""A pool of migrated PostgreSQL databases. Tests reuse them, because emptying one takes a fifth of the time of a copy.

A database goes back into the pool only if nothing but its rows has changed. Otherwise it is dropped.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import psycopg

from cronjobs.engine.database.tables import metadata
from support.postgres import ENQUEUE, OTHER_VERSION, OWNER, READ, RUN, SUPERUSER, PostgresServer

# Reads tables, columns, constraints, indexes, triggers, functions, rights, settings, and alembic's one row. A copy has
# the template's oids, so compare plain rows of the catalog: that costs half as much as definitions in words.
SHAPE = """
SELECT md5(string_agg(part, chr(10) ORDER BY part)) FROM (
  SELECT concat_ws(' ', 'class', c.oid, relname, relnamespace, relkind, relowner, relacl, reloptions) AS part
  FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE nspname !~ '^pg_|^information_schema$'
  UNION ALL SELECT concat_ws(' ', 'column', attrelid, attnum, attname, atttypid, attnotnull, attacl, attstattarget)
  FROM pg_attribute WHERE attrelid >= 16384 AND attnum > 0
  UNION ALL SELECT concat_ws(' ', 'default', oid, adbin) FROM pg_attrdef
  UNION ALL SELECT concat_ws(' ', 'constraint', oid, conname, convalidated, conbin) FROM pg_constraint
  UNION ALL SELECT concat_ws(' ', 'index', indexrelid, indisvalid) FROM pg_index WHERE indrelid >= 16384
  UNION ALL SELECT concat_ws(' ', 'trigger', oid, tgenabled) FROM pg_trigger
  UNION ALL SELECT concat_ws(' ', 'function', oid, p) FROM pg_proc p WHERE oid >= 16384
  UNION ALL SELECT concat_ws(' ', 'schema', nspname, nspowner, nspacl) FROM pg_namespace WHERE nspname !~ '^pg_t'
  UNION ALL SELECT concat_ws(' ', 'policy', polrelid, polname) FROM pg_policy
  UNION ALL SELECT concat_ws(' ', 'extension', extname) FROM pg_extension
  UNION ALL SELECT concat_ws(' ', 'rights', defaclrole, defaclnamespace, defaclobjtype, defaclacl) FROM pg_default_acl
  UNION ALL SELECT concat_ws(' ', 'database', datdba, datacl, datconnlimit) FROM pg_database
  WHERE datname = current_database()
  UNION ALL SELECT concat_ws(' ', 'setting', setrole, setconfig) FROM pg_db_role_setting
  WHERE setdatabase IN (0, (SELECT oid FROM pg_database WHERE datname = current_database()))
  UNION ALL SELECT concat_ws(' ', 'revision', version_num) FROM cronjobs_alembic_version
) AS parts"""

ROLES = f"""
SELECT string_agg(concat_ws(' ', r), chr(10) ORDER BY r.rolname) FROM pg_roles r
WHERE rolname IN ('{OWNER}', '{RUN}', '{ENQUEUE}', '{READ}', '{SUPERUSER}')"""


META = "cronjobs_meta"
USED = """
SELECT oid::regclass::text FROM pg_class
WHERE oid = ANY(%s::regclass[]) AND (pg_relation_size(oid) > 0 OR reltuples <> -1)"""


def copy_statement(name: str, template: str) -> str:
    # Use FILE_COPY. Without fsync it is faster than the default, which writes the copy through the WAL.
    strategy = "" if OTHER_VERSION else "STRATEGY FILE_COPY"  # before version 15, there was only this strategy
    return f"CREATE DATABASE {name} TEMPLATE {template} {strategy}"


class Pool:
    """A pool of databases on one server. All are copies of *template*."""

    def __init__(self, server: PostgresServer, template: str) -> None:
        self._server, self._template = server, template
        self._numbers = itertools.count(1)
        self._free: list[str] = []
        with self._connect(template) as connection:
            self._shape = self._shape_of(connection)
            self._meta = connection.execute(f"SELECT * FROM {META}".encode()).fetchall()
            sequences = connection.execute("SELECT oid::regclass::text FROM pg_class WHERE relkind = 'S'").fetchall()
        self._restart = "SELECT " + ", ".join(f"setval('{name}', 1, false)" for (name,) in sequences)
        self._tables = [
            table.name for table in metadata.sorted_tables if table.name not in ("cronjobs_alembic_version", META)
        ]

    def take(self) -> str:
        """Return the name of an empty database."""
        if self._free:
            return self._free.pop()
        name = f"pooled_{next(self._numbers)}"
        self._server.execute(copy_statement(name, self._template))
        return name

    def give_back(self, name: str) -> bool:
        """Put a database back. Return False if it cannot be used again. The test may also have ended the server."""
        try:
            with self._connect(name) as connection:
                connection.execute("SET statement_timeout = '5s'")
                connection.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                if self._shape_of(connection) == self._shape:
                    self._wipe(connection)
                    self._free.append(name)
                    return True
        except psycopg.Error:
            pass  # the test ended the server, or the database
        try:
            self._server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
        except psycopg.Error:
            pass
        return False

    def _wipe(self, connection: psycopg.Connection[Any]) -> None:
        """Empty only the tables that have changed, because truncating a table takes longer than looking at it."""
        with connection.transaction():
            used = [name for (name,) in connection.execute(USED, [self._tables]).fetchall()]
            found = connection.execute(f"SELECT * FROM {META}".encode()).fetchall()
            if found != self._meta:
                used.append(META)
            if used:
                connection.execute(f"TRUNCATE {', '.join(used)} CASCADE".encode())
            if found != self._meta:
                for row in self._meta:
                    values = ", ".join(["%s"] * len(row))
                    connection.execute(f"INSERT INTO {META} VALUES ({values})".encode(), row)
            connection.execute(self._restart.encode())
            connection.execute("DELETE FROM pg_statistic WHERE starelid >= 16384")

    def _shape_of(self, connection: psycopg.Connection[Any]) -> Sequence[Any]:
        return [connection.execute(query.encode()).fetchone() for query in (SHAPE, ROLES)]

    def _connect(self, name: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self._server.url(name), autocommit=True)
