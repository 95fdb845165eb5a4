"""PostgreSQL's settings of the hot tables: a new database has them, and an owner's own stay."""

from __future__ import annotations

import pytest
from sqlalchemy import text
from support.databases import in_psql, opened

from cronjobs.engine.database.connection import Database
from cronjobs.engine.schema import migrations

EXPECTED = {
    "cronjobs_jobs": {"autovacuum_vacuum_scale_factor": "0.02", "autovacuum_analyze_scale_factor": "0.02"},
    "cronjobs_job_runs": {"autovacuum_vacuum_scale_factor": "0.05", "autovacuum_analyze_scale_factor": "0.05"},
    "cronjobs_occurrences": {"autovacuum_vacuum_scale_factor": "0.05", "autovacuum_analyze_scale_factor": "0.05"},
    "cronjobs_ticks": {"autovacuum_vacuum_scale_factor": "0.05", "autovacuum_analyze_scale_factor": "0.05"},
    "cronjobs_schedules": {"fillfactor": "50"},
    "cronjobs_counts": {"fillfactor": "70"},
}


def settings(database: Database) -> dict[str, dict[str, str]]:
    statement = """
      SELECT c.relname, o.option_name, o.option_value FROM pg_class c, pg_options_to_table(c.reloptions) o
      WHERE c.relname LIKE 'cronjobs%' AND c.relnamespace = current_schema()::regnamespace"""
    found: dict[str, dict[str, str]] = {}
    with database.read() as connection:
        for table, option, value in connection.execute(text(statement.replace("::", "\\:\\:"))):
            found.setdefault(table, {})[option] = value
    return found


def test_a_new_database_has_them(postgres_url: str) -> None:
    with opened(postgres_url) as database:
        migrations.upgrade(database)
        assert settings(database) == EXPECTED
        assert migrations.check(database) == []


def test_what_an_owner_changes_later_stays(postgres_url: str) -> None:
    with opened(postgres_url) as database:
        migrations.upgrade(database)
        in_psql(postgres_url, "ALTER TABLE cronjobs_jobs RESET (autovacuum_vacuum_scale_factor)")
        migrations.upgrade(database)
        assert "autovacuum_vacuum_scale_factor" not in settings(database)["cronjobs_jobs"]


@pytest.mark.slow
def test_watermarks_and_counts_are_updated_in_place(postgres_url: str) -> None:
    """Why they have a fill factor: none of what is updated there is in an index."""
    with opened(postgres_url) as database:
        migrations.upgrade(database)
        indexed = """
          SELECT a.attname FROM pg_index i JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
          WHERE i.indrelid = to_regclass(:table)"""
        with database.read() as connection:
            for table, updated in (
                ("cronjobs_schedules", {"seen_until", "next_at", "owed"}),
                ("cronjobs_counts", {"count", "micros", "longest", "newest"}),
            ):
                found = set(connection.execute(text(indexed), {"table": table}).scalars())
                assert not updated & found
