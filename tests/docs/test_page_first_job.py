"""docs/tutorials/first-job.md: its code, files, commands and tables, executed."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from support.project import BARE
from support.shop import JOBS, PAGE, YAML, Shop, commands
from support.shop import shop as shop
from support.ticking import Project as Ticking

from cronjobs.engine.config.load import load

ENQUEUE = PAGE.block("python", "from cronjobs import enqueue")


def test_every_block_is_executed_here() -> None:
    assert PAGE.counts() == {"console": 1, "python": 2, "yaml": 1, "sql": 1}
    assert PAGE.dead_links() == []


@pytest.mark.slow
def test_the_five_minutes_run_as_they_stand(shop: Shop, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    typed = commands(PAGE, "Five minutes")
    *others, last = typed
    assert last.split("#")[0].strip() == "cronjobs crontab install"  # the only one that is not for a test to do
    answer = shop.shell("\n".join([*others, last.replace("install", "install --dry-run", 1)]), empty)
    assert answer.code == 0, answer
    assert {path.name for path in (empty / "shop").iterdir()} >= {"cronjobs.yaml", "jobs.py", "cronjobs.db"}
    assert "run-due --config" in answer.out
    assert str(empty / "shop" / "cronjobs.yaml") in answer.out
    assert [call for call in shop.calls() if not call.endswith("crontab -l")] == []

    shop.url = f"sqlite:///{empty}/shop/cronjobs.db"
    [job] = shop.jobs()
    assert (job["job_type"], job["status"], job["payload"]) == ("hello", "succeeded", {"name": "Ada"})
    assert "Hello, Ada!" in shop.rows("job_runs")[0]["output"]


def test_the_yaml_has_no_problem_and_says_what_the_text_says(tmp_path: Path) -> None:
    (tmp_path / "cronjobs.yaml").write_text(YAML)
    settings = load(tmp_path / "cronjobs.yaml", environ={})
    assert settings.problems == ()
    assert settings.database == f"sqlite:///{tmp_path}/cronjobs.db"
    assert set(settings.schedules) == {"nightly-invoices", "nightly-backup", "refresh-cache"}


def test_check_finds_nothing_in_the_shop(shop: Shop) -> None:
    shop.does("check")


def test_the_handler_does_what_its_comments_say(shop: Shop) -> None:
    shop.does("enqueue", "billing.send_invoice", "--payload", '{"invoice_id": 42}')
    shop.does("enqueue", "billing.send_invoice", "--payload", '{"invoice_id": -1}')
    shop.does("run-due", "--workers", "1", code=1)
    sent, refused = shop.jobs()
    assert (sent["status"], sent["result"]) == ("succeeded", {"sent": 42})
    assert (refused["status"], refused["failures"]) == ("dead", 1)
    assert "there is no invoice -1" in refused["last_error"]
    assert "what a handler prints is kept with its attempt\n" in [row["output"] for row in shop.rows("job_runs")]


def test_every_schedule_of_the_shop_runs(shop: Shop) -> None:
    shop.does("run-due")
    assert shop.jobs() == []  # a new schedule never fires for the past
    for name in load(shop.folder / "cronjobs.yaml", environ={}).schedules:
        shop.does("run", name)
    assert [job["status"] for job in shop.jobs()] == ["succeeded"] * 3
    assert shop.calls() == [f"{shop.bin}/sqlite3 shop.db .backup backup.db"]


def enqueue_in(folder: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-W", "ignore::ResourceWarning", "-c", ENQUEUE],
        cwd=folder,
        env=BARE,
        capture_output=True,
        text=True,
    )
    return done.returncode, done.stderr


def test_enqueue_beside_your_own_rows_makes_one_job(shop: Shop) -> None:
    shop.does("run-due")
    for _ in range(2):  # the key is spent with the first
        assert enqueue_in(shop.folder) == (0, "")
    [job] = shop.jobs()
    assert (job["job_type"], job["payload"], job["status"]) == ("billing.send_invoice", {"invoice_id": 42}, "queued")
    assert abs(job["run_at"] - job["created_at"] - timedelta(minutes=5)) < timedelta(seconds=5)


def test_enqueue_into_a_file_without_tables_names_the_command_that_makes_them(shop: Shop) -> None:
    code, said = enqueue_in(shop.folder)
    assert code == 1
    assert said.splitlines()[-1].endswith('cronjobs.db has no cronjobs tables: run "cronjobs db upgrade"')
    shop.does("db", "upgrade")
    assert enqueue_in(shop.folder) == (0, "")
    assert len(shop.jobs()) == 1


@pytest.fixture
def ticking(project: Ticking) -> Ticking:
    return project.configure()


def test_plain_sql_makes_a_job_that_runs(ticking: Ticking) -> None:
    (ticking.folder / "handlers.py").write_text(JOBS)
    for one in PAGE.blocks("sql"):
        ticking.sql(one.text)
    assert ticking.tick().wait() == 0
    assert ticking.job(1)["status"] == "succeeded"
