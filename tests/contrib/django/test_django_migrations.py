"""The app's Django migrations create each revision's tables, whether or not something else has created them before."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command  # type: ignore[import-untyped]
from django.db import connections, transaction  # type: ignore[import-untyped]
from django.test.utils import setup_test_environment, teardown_test_environment  # type: ignore[import-untyped]
from support.django_project import django_project
from support.djangos import configured

import cronjobs.contrib.django
from cronjobs import enqueue
from cronjobs.contrib.django.revisions import ToRevision
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.engine.schema import migrations
from cronjobs.engine.store.meta import adopt
from cronjobs.errors import SchemaMissing

FILES = sorted((Path(cronjobs.contrib.django.__file__).parent / "migrations").glob("0*.py"))


@pytest.fixture
def alias(empty_url: str) -> Iterator[str]:
    with django_project(empty_url) as name:
        yield name


@contextmanager
def opened(url: str) -> Iterator[Database]:
    with closing(Database(parse_url(url))) as database:
        yield database


def migrate(*words: str, **options: Any) -> str:
    out = StringIO()
    call_command("migrate", "cronjobs", *words, stdout=out, **options)
    return out.getvalue()


def test_each_revision_has_its_migration() -> None:
    made = [import_module(f"cronjobs.contrib.django.migrations.{file.stem}").Migration for file in FILES]
    assert [operation.revision for each in made for operation in each.operations] == list(migrations.revisions())
    names = [file.stem for file in FILES]
    assert [each.dependencies for each in made] == [[], *([("cronjobs", name)] for name in names[:-1])]
    assert all(each.operations[0].revision == name[:4] for each, name in zip(made, names, strict=True))


def test_migrate_makes_the_tables_that_db_upgrade_makes_and_both_find_them_done(alias: str, empty_url: str) -> None:
    assert f"Applying cronjobs.{FILES[-1].stem}... OK" in migrate()
    with opened(empty_url) as database:
        assert migrations.check(database) == []
        assert migrations.upgrade(database) == (migrations.head(), migrations.head())
    assert "No migrations to apply" in migrate()
    said = StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=said)
    assert "No changes detected" in said.getvalue()


def test_migrate_leaves_tables_alone_that_another_way_has_made(alias: str, empty_url: str) -> None:
    with opened(empty_url) as database:
        migrations.upgrade(database)
        with database.write() as connection:
            adopt(connection, "shop", "", "ada")
    migrate()
    with connections[alias].cursor() as cursor:
        cursor.execute("SELECT project, schema_revision FROM cronjobs_meta")
        assert cursor.fetchall() == [("shop", migrations.head())]


def test_the_search_path_is_as_before_for_what_django_writes_next(postgres_url: str) -> None:
    with django_project(postgres_url) as alias, transaction.atomic(using=alias):
        with connections[alias].cursor() as cursor:
            cursor.execute("CREATE SCHEMA apart")
            cursor.execute("SET search_path = apart, public")
        with connections[alias].schema_editor() as editor:
            ToRevision(migrations.head()).database_forwards("cronjobs", editor, None, None)
        with connections[alias].cursor() as cursor:
            cursor.execute("SELECT current_setting('search_path'), to_regclass('apart.cronjobs_jobs') IS NOT NULL")
            assert cursor.fetchone() == ("apart, public", True)


def test_another_database_gets_no_tables(sqlite_url: str, tmp_path: Path) -> None:
    with django_project(sqlite_url) as alias:
        for other in configured(f"sqlite:///{tmp_path / 'other.db'}", "other"):
            migrate(database=other)
            assert "cronjobs_jobs" not in connections[other].introspection.table_names()
        assert connections[alias].introspection.table_names() == []


def test_the_setting_says_which_database_has_the_jobs(sqlite_url: str, tmp_path: Path) -> None:
    jobs = f"sqlite:///{tmp_path / 'jobs.db'}"
    with django_project(jobs, alias="queue", CRONJOBS={"database": "queue"}) as alias:
        migrate(database=alias)
        assert "cronjobs_jobs" in connections[alias].introspection.table_names()


def test_without_tables_enqueue_names_djangos_command_and_the_jobs_database(sqlite_url: str, tmp_path: Path) -> None:
    with django_project(sqlite_url) as default, pytest.raises(SchemaMissing, match=r'run "python manage.py migrate"$'):
        enqueue(connections[default], "shop.pay")
    with django_project(sqlite_url) as default:
        setup_test_environment()
        try:
            with pytest.raises(SchemaMissing, match=r"cronjobs\.testing\.create_tables\(connection\)"):
                enqueue(connections[default], "shop.pay")
        finally:
            teardown_test_environment()
    with django_project(f"sqlite:///{tmp_path / 'jobs.db'}", alias="queue", CRONJOBS={"database": "queue"}) as queue:
        command = 'run "python manage.py migrate --database queue"'
        with pytest.raises(SchemaMissing, match=f"{command}$"):
            enqueue(connections[queue], "shop.pay")
        for wrong in configured(sqlite_url, "default"):
            with pytest.raises(SchemaMissing) as told:
                enqueue(connections[wrong], "shop.pay")
            assert f"{command}, and enqueue on connections['queue'], the jobs database" in str(told.value)


@pytest.mark.slow
def test_the_way_back_is_refused_with_a_sentence_and_can_be_faked(sqlite_url: str) -> None:
    with django_project(sqlite_url) as alias:
        migrate()
        with pytest.raises(CommandError, match="migrate cronjobs zero --fake"):
            migrate("zero")
        migrate("zero", fake=True)
        assert "cronjobs_jobs" in connections[alias].introspection.table_names()
        migrate()
        with opened(sqlite_url) as database:
            assert migrations.check(database) == []


def test_sqlmigrate_prints_what_migrate_would_execute_and_executes_nothing(alias: str) -> None:
    out = StringIO()
    call_command("sqlmigrate", "cronjobs", FILES[0].stem, stdout=out)
    assert "CREATE TABLE cronjobs_jobs" in out.getvalue()
    assert "cronjobs_jobs" not in connections[alias].introspection.table_names()
