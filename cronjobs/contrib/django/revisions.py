"""Django migrations. Each brings the tables to one revision, unless they have it already.

``migrate``, ``cronjobs db upgrade`` and a first tick on SQLite can each apply a revision. They record it only in
``cronjobs_alembic_version``, so none of them applies a revision that another has applied.
"""

from __future__ import annotations

from typing import Any, Final

from django.apps import apps  # type: ignore[import-untyped]
from django.core.management.base import CommandError  # type: ignore[import-untyped]
from django.db import router  # type: ignore[import-untyped]
from django.db.migrations import Migration  # type: ignore[import-untyped]
from django.db.migrations.operations.base import Operation  # type: ignore[import-untyped]
from django.db.migrations.state import ModelState  # type: ignore[import-untyped]

from cronjobs.contrib.django.connections import is_jobs_database
from cronjobs.engine.database.tables import FIRST_REVISION, VERSION_TABLE
from cronjobs.engine.schema import migrations
from cronjobs.errors import SchemaNotUpgraded

LABEL: Final = "cronjobs"


def migration(revision: str, *, after: str | None = None) -> Any:
    """Return the migration that brings the tables to *revision*. *after* names the previous migration, if any."""
    parts = {"operations": [ToRevision(revision)], "dependencies": [(LABEL, after)] if after else []}
    return type("Migration", (Migration,), parts | {"__module__": __name__})


class ToRevision(Operation):
    """Bring the tables to *revision* with the SQL of ``cronjobs db sql``."""

    reduces_to_sql = True
    reversible = True  # so that Django calls database_backwards, whose error says what to do instead
    atomic = True

    def __init__(self, revision: str) -> None:
        self.revision = revision

    def deconstruct(self) -> tuple[str, list[Any], dict[str, Any]]:
        return self.__class__.__qualname__, [self.revision], {}

    def describe(self) -> str:
        return f"Migrate the tables of cronjobs to revision {self.revision}"

    def state_forwards(self, app_label: str, state: Any) -> None:
        """Add our models to Django's state. They are unmanaged, so Django changes no table for them."""
        for model in apps.get_app_config(LABEL).get_models():
            state.add_model(ModelState.from_model(model))

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if not is_jobs_database(connection.alias) or not router.allow_migrate(connection.alias, app_label):
            return
        statements = self._statements(connection.vendor)
        if schema_editor.collect_sql:
            schema_editor.collected_sql += [f"{statement};" for statement in statements]
            return
        with connection.cursor() as cursor:
            path = None
            if connection.vendor == "postgresql":
                cursor.execute(migrations.upgrade_lock(None))
                cursor.execute("SELECT current_setting('search_path')")
                path = cursor.fetchone()
            found = _revision(connection, cursor)
            if found is not None and found < FIRST_REVISION:
                raise CommandError(str(SchemaNotUpgraded(found)))
            if found is not None and found >= self.revision:
                return
            for statement in statements:
                cursor.execute(statement)
            # Restore the search_path for Django, which next records the migration in this transaction.
            if path is not None:
                cursor.execute("SELECT set_config('search_path', %s, true)", path)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        raise CommandError(
            "the tables of cronjobs have no downgrade: migrations only add, and older code runs on newer "
            "tables. To make only Django forget the tables, run: migrate cronjobs zero --fake"
        )

    def _statements(self, kind: str) -> tuple[str, ...]:
        known = migrations.revisions()
        place = known.index(self.revision)
        return migrations.statements(kind, None, f"{known[place - 1]}:{self.revision}" if place else self.revision)


def _revision(connection: Any, cursor: Any) -> str | None:
    """Return the tables' revision, or None if there are no tables."""
    if VERSION_TABLE not in connection.introspection.table_names(cursor):
        return None
    cursor.execute(f"SELECT max(version_num) FROM {VERSION_TABLE}")  # noqa: S608 the name is a constant of ours
    [found] = cursor.fetchone()
    return str(found) if found is not None else None
