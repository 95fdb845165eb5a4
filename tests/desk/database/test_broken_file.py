"""While the file is broken, commands that only show things still work: they report the fault and read the database."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from support.lookingrows import NOW, Cronjobs, Rows, ago
from support.lookingrows import cronjobs as cronjobs
from support.lookingrows import rows as rows

from cronjobs import health
from cronjobs.engine.database.connection import Database
from cronjobs.testing import FakeClock

pytestmark = pytest.mark.either

NO_YAML = '\nschedules:\n  a: {cron: "* * * * *\n  ]: [\n'
LOOKING = ["history", "jobs list", "jobs show 1", "audit", "effects list", "explain 1", "explain 2"]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(NOW)


@pytest.fixture
def life(rows: Rows) -> None:
    rows.tick("web1", ago(minutes=1))
    rows.tick()
    rows.attempt(rows.job("reports.nightly", "succeeded"))
    rows.job("mail.send")


@pytest.fixture
def file(tmp_path: Path, cronjobs: Cronjobs) -> Path:
    return tmp_path / "cronjobs.yaml"


@pytest.mark.parametrize(
    "broken",
    [
        NO_YAML,
        "\nschedules: [1]\n",
        "\nproject: [1]\nproject: b\n",
        "\njob_types: 7\nretention: 3\nrun: no\n",
        "\nnonsense: 1\n\tx: 2\n",
        "\nimports: [no.such.module]\n",
    ],
)
def test_they_read_the_url_from_what_can_still_be_read(cronjobs: Cronjobs, life: None, file: Path, broken: str) -> None:
    file.write_text(file.read_text() + broken)
    answer = cronjobs("status")
    assert answer.code == 0
    assert "cronjobs.yaml:" in answer.out or "no.such" in answer.out
    assert "web1" in answer.out
    assert cronjobs("status", "--json").json["project"] == "shop"
    kinds = {finding["kind"] for finding in cronjobs("status", "--json").json["findings"]}
    assert kinds == {"config"}
    assert {finding["kind"] for finding in cronjobs("ack", "--json").json} == kinds
    for command in LOOKING:
        answer = cronjobs(*command.split())
        assert answer.code == 0, (command, answer)
        said = "nothing runs with this file (cronjobs.yaml:"
        assert (said in answer.err) == ("imports" not in broken)
    assert "reports.nightly" in cronjobs("history").out
    told = " ".join(cronjobs("explain", "2").out.split())
    assert "Job 2 waits for its turn" in told
    assert "is registered in this configuration" not in told
    assert "refuse this database" not in told


def test_where_no_tick_comes_the_file_that_they_refuse_is_named_with_it(
    cronjobs: Cronjobs, life: None, file: Path, clock: FakeClock
) -> None:
    file.write_text(file.read_text() + NO_YAML)
    clock.advance(timedelta(hours=1))
    first = cronjobs("status", "--json").json["findings"][0]
    assert (first["kind"], first["command"]) == ("no_tick", "cronjobs check")
    assert first["text"].endswith("; ticks refuse the file here")


def test_without_a_readable_file_the_ticks_show_how_often_cron_starts_them(
    cronjobs: Cronjobs, rows: Rows, file: Path, database_url: str, clock: FakeClock, database: Database
) -> None:
    for minutes in (*range(180, 50, -10), 58, *range(50, 0, -10)):  # someone started one by hand
        rows.tick("web1", ago(minutes=minutes))
    clock.advance(timedelta(minutes=4))
    url = ("--database-url", database_url)
    for broken in (NO_YAML, "run: {every: 10m\n", None):
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        assert {each["kind"] for each in cronjobs("status", "--json", *url).json["findings"]} == {"config"}
        assert "without ticks" not in cronjobs("history", *url).out
        if broken is not None:
            assert "no tick has reached" not in cronjobs("check", "--live", *url).out
    with database.read() as connection:
        assert health(connection).ok
    clock.advance(timedelta(minutes=30))
    [first, _] = cronjobs("status", "--json", *url).json["findings"]
    assert first["text"] == "no tick has reached this database for 44m"
    with database.read() as connection:
        assert [each.text for each in health(connection).findings] == [first["text"]]


def test_a_file_that_is_no_yaml_or_not_there_says_nothing_and_the_url_may_come_from_elsewhere(
    cronjobs: Cronjobs, life: None, file: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broken in (f"database: {database_url}\ndatabase: {database_url}\n: : [\n", "x: [\n", None):
        if broken is None:
            file.unlink()
        else:
            file.write_text(broken)
        refused = cronjobs("status")
        assert (refused.code, refused.out) == (3, "")
        assert refused.err.startswith("cronjobs.yaml:")
        for command in LOOKING:
            assert cronjobs(*command.split(), "--database-url", database_url).code == 0
        seen = cronjobs("status", "--json", "--database-url", database_url).json
        assert {finding["kind"] for finding in seen["findings"]} == {"config"}
        monkeypatch.setenv("CRONJOBS_DATABASE_URL", database_url)
        assert "web1" in cronjobs("status").out
        monkeypatch.delenv("CRONJOBS_DATABASE_URL")


def test_with_a_schema_that_cannot_be_read_they_are_refused_for_it_says_which_tables(
    cronjobs: Cronjobs, life: None, file: Path, database_url: str
) -> None:
    file.write_text(file.read_text() + "\nschema: [jobs]\n")
    assert cronjobs("status", "--database-url", database_url).code == 3


def test_a_module_that_ends_the_process_or_raises_anything_does_not_keep_status_from_looking(
    cronjobs: Cronjobs, life: None, file: Path
) -> None:
    (file.parent / "leaving_module.py").write_text("raise SystemExit(3)\n")
    file.write_text(file.read_text() + "\nimports: [leaving_module]\n")
    answer = cronjobs("status")
    assert answer.code == 0
    assert "leaving_module" in answer.out
