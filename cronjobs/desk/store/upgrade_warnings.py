"""Find what ``db upgrade`` warns of: roles without rights on new tables, and another program's alembic."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, text

from cronjobs.engine.store.meta import qualified


def roles_left_behind(connection: Connection, relations: Collection[str]) -> dict[str, list[str]]:
    """Map each role that may read the audit trail, but not all *relations*, to the relations that it may not read.

    If "db grants" lets a role read the audit trail, it lets the role read every relation. So the relations that such a
    role may not read were created by later migrations.
    """
    rows = connection.execute(
        text(
            """SELECT r.rolname, o.name FROM pg_class c CROSS JOIN aclexplode(c.relacl) a
              JOIN pg_roles r ON r.oid = a.grantee CROSS JOIN unnest(CAST(:names AS text[]), CAST(:places AS text[])) AS
              o(name, place)
            WHERE c.oid = to_regclass(:audit) AND a.privilege_type = 'SELECT' AND a.grantee <> c.relowner
              AND to_regclass(o.place) IS NOT NULL AND NOT has_table_privilege(r.oid, to_regclass(o.place), 'SELECT')
            ORDER BY r.rolname, o.name"""
        ),
        {
            "audit": qualified(connection, "cronjobs_audit"),
            "names": list(relations),
            "places": [qualified(connection, name) for name in relations],
        },
    )
    found: dict[str, list[str]] = {}
    for role, name in rows:
        found.setdefault(role, []).append(name)
    return found


def migrated_by_an_app(connection: Connection) -> bool:
    """Return whether another program's alembic keeps its version in this database."""
    if connection.dialect.name == "sqlite":
        statement = "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = 'alembic_version'"
    else:
        statement = "SELECT count(*) FROM pg_class WHERE relkind IN ('r', 'p') AND relname = 'alembic_version'"
    return bool(connection.exec_driver_sql(statement).scalar())
