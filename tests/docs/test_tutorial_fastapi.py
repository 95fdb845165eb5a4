"""docs/tutorials/fastapi.md, played from its first line to its last."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from support.pages import Page
from support.postgres import OWNER
from support.project import Project
from support.tutorial import Tutorial

from cronjobs import enqueue_many

PAGE = Page("docs/tutorials/fastapi.md")
REQUEST = """
import sys
from fastapi.testclient import TestClient
from shop.main import app
print(TestClient(app).request(sys.argv[1], sys.argv[2].removeprefix("http://localhost:8000")).text)
"""


@pytest.mark.either
def test_no_link_is_dead() -> None:
    assert PAGE.dead_links() == []


@pytest.mark.slow
@pytest.mark.either
def test_a_newcomer_comes_from_the_app_to_a_job_that_cron_runs(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    folder.mkdir()
    Tutorial(PAGE, folder, REQUEST).play()
    assert "run-due --config" in (tmp_path / "shop-bin/crontab.lines").read_text()


@pytest.mark.slow
@pytest.mark.connects_as(OWNER)
@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
def test_async_handlers_with_engines_of_their_own_run_side_by_side(
    tmp_path: Path, postgres_migrated: str, driver: str
) -> None:
    (tmp_path / "shop").mkdir()
    for name in ("shop/database.py", "shop/refunds.py"):
        (tmp_path / name).write_text(PAGE.block("python", f"# {name}\n"))
    plain, for_async = (postgres_migrated.replace("postgresql:", f"postgresql+{each}:") for each in ("psycopg", driver))
    project = Project(tmp_path, postgres_migrated)
    project.write("imports: [shop.refunds]\nrun: {workers: 4}\n")
    engine = create_engine(plain)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (id int PRIMARY KEY, email text, status text)"))
        connection.execute(text("INSERT INTO orders SELECT n, 'ada', 'paid' FROM generate_series(1, 12) n"))
        enqueue_many(connection, "shop.refund", [{"order_id": n} for n in range(1, 13)], max_attempts=1)
    ticked = project.run("run-due", env={"DATABASE_URL": plain, "ASYNC_DATABASE_URL": for_async})
    assert (ticked.code, ticked.err) == (0, "")
    with engine.connect() as connection:
        assert connection.execute(text("SELECT DISTINCT status FROM orders")).scalars().all() == ["refunded"]
    engine.dispose()
