"""Findings of extras. An extra that fails or is not installed becomes a finding, and does not stop the look."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import Connection, text

from cronjobs.desk import doors
from cronjobs.desk.insight.finding import Finding
from cronjobs.desk.insight.findings import judge
from cronjobs.desk.insight.findings_of_extras import Findings
from cronjobs.desk.insight.gathering import look
from cronjobs.engine.config.settings import Settings
from cronjobs.engine.database.connection import Database
from cronjobs.engine.jobs.job_types import JobTypes
from cronjobs.engine.tick import extras
from cronjobs.engine.tick.extras import Door


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(file=tmp_path / "cronjobs.yaml", folder=tmp_path)


def put(monkeypatch: pytest.MonkeyPatch, name: str, found: Any) -> None:
    module = ModuleType(name)
    module.found = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(doors, "FINDINGS", (*doors.FINDINGS, name))


def told(database: Database, settings: Settings) -> tuple[dict[str, str], datetime | None]:
    """The findings of extras by their key, and when they are to be asked again."""
    with database.read() as connection:
        health = look(connection, settings, JobTypes())
        assert connection.execute(text("SELECT 1")).scalar_one() == 1, "an extra ended the caller's transaction"
    found = {each.key: each.text for each in judge(health, settings) if each.kind in ("extra", "acme")}
    return found, health.of_extras.again_at


def test_an_extra_adds_its_finding_and_says_when_to_ask_again(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(_connection: Connection, _settings: Settings, now: datetime) -> Findings:
        return Findings([Finding("acme", "the printer is out of paper")], now + timedelta(minutes=3))

    put(monkeypatch, "acme_printer", found)
    findings, again = told(database, settings)
    assert findings == {"acme": "the printer is out of paper"}
    assert again is not None


@pytest.mark.parametrize("how", ["raises", "bad SQL", "exits", "is not there"])
def test_an_extra_that_fails_is_a_finding_and_the_others_are_heard(
    how: str, database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(connection: Connection, *_: Any) -> Findings:
        if how == "raises":
            raise ZeroDivisionError("no paper at all")
        if how == "exits":
            sys.exit("no paper at all")
        connection.execute(text("SELECT nothing FROM nowhere"))
        return Findings()

    if how == "is not there":
        settings = replace(settings, extras=("acme_broken",))
    else:
        put(monkeypatch, "acme_broken", found)
    put(monkeypatch, "acme_printer", lambda *_: Findings([Finding("acme", "the printer is out of paper")]))
    findings, _ = told(database, settings)
    assert findings.keys() == {"acme", "extra:acme_broken"}
    assert findings["extra:acme_broken"].startswith("acme_broken cannot report its findings: ")


def test_an_extra_of_ours_that_the_file_uses_and_that_is_not_there_is_named(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(extras, "DOORS", {"printing": Door("cronjobs.contrib.printing.hook", lambda *_: True)})
    findings, _ = told(database, settings)
    assert findings == {
        "extra:printing": "cronjobs.yaml uses printing, which is not installed: cronjobs.contrib.printing"
    }
    monkeypatch.setattr(extras, "DOORS", {"printing": Door("cronjobs.contrib.printing.hook", lambda *_: False)})
    assert told(database, settings)[0] == {}
