"""A user's own alembic beside our tables. With our hook, autogenerate ignores them. Without it, it would drop them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from support.databases import in_psql, opened
from support.postgres import OWNER

from cronjobs.autogenerate import OURS, include_name, include_object
from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.schema import migrations

pytestmark = pytest.mark.connects_as(OWNER)

mine = sa.MetaData()
orders = sa.Table("orders", mine, sa.Column("id", sa.Integer, primary_key=True), sa.Column("total", sa.Integer))

HOOKED: dict[str, Any] = {"include_object": include_object}


def differences(url: str, metadata: sa.MetaData = mine, **options: Any) -> list[Any]:
    """What the autogenerate of the user's own alembic finds to do."""
    engine = sa.create_engine(parse_url(url).url)
    try:
        with engine.connect() as connection:
            return list(compare_metadata(MigrationContext.configure(connection, opts=options), metadata))
    finally:
        engine.dispose()


@pytest.fixture
def app_url(database_url: str) -> str:
    """The tables of an app and ours in one database."""
    with opened(database_url) as database, database.write() as connection:
        mine.create_all(connection)
    return database_url


def test_without_the_hook_our_tables_would_be_dropped(app_url: str) -> None:
    found = {change[1].name for change in differences(app_url) if change[0] == "remove_table"}
    assert found == {*tables.metadata.tables, tables.VERSION_TABLE}


@pytest.mark.parametrize(
    "hooks", [HOOKED, {"include_name": include_name}, HOOKED | {"include_name": include_name}], ids=" and ".join
)
def test_with_the_hook_there_is_nothing_to_do(app_url: str, hooks: dict[str, Any]) -> None:
    assert differences(app_url, **hooks) == []
    assert differences(app_url, include_schemas=True, **hooks) == []


def test_the_users_own_changes_are_found_as_ever(app_url: str) -> None:
    changed = sa.MetaData()
    sa.Table("orders", changed, sa.Column("id", sa.Integer, primary_key=True), sa.Column("paid", sa.Boolean))
    sa.Table("cronjobs_of_mine", changed, sa.Column("id", sa.Integer, primary_key=True))
    found = differences(app_url, changed, **HOOKED)
    assert sorted(change[0] for change in found) == ["add_column", "add_table", "remove_column"]
    with opened(app_url) as database, database.write() as connection:
        changed.tables["cronjobs_of_mine"].create(connection)
        connection.execute(sa.text("DROP TABLE orders"))
        changed.tables["orders"].create(connection)
    assert differences(app_url, changed, **HOOKED) == []


def test_a_table_of_a_newer_version_is_left_alone(app_url: str) -> None:
    with opened(app_url) as database, database.write() as connection:
        connection.execute(sa.text("CREATE TABLE cronjobs_newer (id int)"))
    assert differences(app_url, **HOOKED) == []


def test_our_tables_may_be_described_in_the_users_metadata(app_url: str) -> None:
    """For queries: half of a table, and a view."""
    described = sa.MetaData()
    orders.to_metadata(described)
    sa.Table("cronjobs_jobs", described, sa.Column("id", sa.BigInteger, primary_key=True))
    sa.Table("cronjobs_dead_jobs", described, sa.Column("id", sa.BigInteger))
    assert differences(app_url, described, **HOOKED) == []


def test_a_rule_of_the_users_own_is_joined_to_it(app_url: str) -> None:
    def both(thing: Any, name: str | None, kind: str, reflected: bool, compare_to: Any) -> bool:
        return include_object(thing, name, kind, reflected, compare_to) and name != "orders"

    assert differences(app_url, sa.MetaData(), include_object=both) == []


def test_tables_in_a_schema_of_their_own_are_left_alone(new_postgres_url: Callable[..., str]) -> None:
    url = new_postgres_url()
    with opened(url, "jobs") as database:
        migrations.upgrade(database)
    in_psql(url, "CREATE TABLE orders (id int PRIMARY KEY, total int)")
    assert len(differences(url, include_schemas=True)) > len(tables.metadata.tables)
    assert differences(url, include_schemas=True, **HOOKED) == []
    assert differences(url) == []  # a schema that nobody asks for is not looked at


def test_everything_that_a_migration_makes_is_known(database_url: str) -> None:
    with opened(database_url) as database, database.read() as connection:
        inspector = sa.inspect(connection)
        assert {*inspector.get_table_names(), *inspector.get_view_names()} <= OURS
