"""``cronjobs config show``: every value in effect, where it comes from, and no secret."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.project import Project

from cronjobs.desk.insight.effective_settings import Overrides, effective
from cronjobs.engine.config.load import load
from cronjobs.engine.config.reference import as_written, sections
from cronjobs.engine.config.settings import Settings

FILE = """\
project: shop
database: ${DATABASE_URL}
env_file: .env
timezone: Europe/Berlin
env: {LANG: C.UTF-8, API_TOKEN: tk_1}
imports: [t_good, "no module"]
run:
  workers: ${WORKERS:-7}
  budget: 50s
  every: 5
  ping: ${PING}
limits: {"smtp:": 4, "x:": {each: 1}}
job_types:
  backup.all: {command: [pg_dump, "${APP}"], hide: [card], env: {PASSWORD: pw}}
schedules:
  nightly: {cron: "0 2 * * *", job: backup.all, payload: {card: 4711, region: us, days: [1, "1"]}}
  bad: {cron: "0 2 * *", job: backup.all, payload: {card: 4711}}
alerts: {channels: {ops: {mail: {host: h, from: a@b.c, to: d@e.f, user: u, password: pw_2}}}}
"""
ENV_FILE = "DATABASE_URL=postgresql://u:pw_3@h/x\nAPP=shop-app\nOTHER=pw_4\nPING=https://h/pw_5\n"
SECRETS = ("tk_1", "pw_2", "pw_3", "pw_4", "pw_5", "4711", "PASSWORD: pw", '"pw"')


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "cronjobs.yaml").write_text(FILE)
    (tmp_path / ".env").write_text(ENV_FILE)
    return Project(tmp_path, "")


def shown(project: Project, *arguments: str) -> dict[str, tuple[Any, str, str]]:
    answer = project.call("config", "show", "--json", *arguments)
    assert answer.code == 0, answer.err
    assert not [secret for secret in SECRETS if secret in answer.out + answer.err]
    return {each["key"]: (each["value"], each["source"], each["where"]) for each in answer.json}


@pytest.mark.needs("contrib")
def test_each_value_says_where_it_comes_from(project: Project) -> None:
    found = shown(project)
    expected: dict[str, tuple[Any, str, str]] = {
        "--config": (str(project.folder / "cronjobs.yaml"), "default", ""),
        "project": ("shop", "file", "cronjobs.yaml:1"),
        "environment": (None, "default", "none"),
        "database": ("postgresql://u:***@h/x", "env_file", "cronjobs.yaml:2, $DATABASE_URL in .env"),
        "imports": (["t_good"], "file", "cronjobs.yaml:6"),
        "run.workers": ("7", "file", "cronjobs.yaml:8"),
        "run.budget": ("50s", "file", "cronjobs.yaml:9"),
        "run.lease": ("1m", "default", "the longer of 60s and budget + 5s"),
        "run.every": ("1m", "bad", "cronjobs.yaml:10"),
        "run.ping": ("***", "env_file", "cronjobs.yaml:11, $PING in .env"),
        "run.long_jobs": ("4", "default", ""),
        "limits.smtp:": ("4", "file", "cronjobs.yaml:12"),
        "limits.x:.each": ("1", "file", "cronjobs.yaml:12"),
        "job_types.backup.all.command": (["pg_dump", "***"], "env_file", "cronjobs.yaml:14, $APP in .env"),
        "job_types.backup.all.env": ({"PASSWORD": "***"}, "file", "cronjobs.yaml:14"),
        "schedules.nightly.timezone": ("Europe/Berlin", "file", "cronjobs.yaml:4"),
        "schedules.nightly.payload": ({"card": "***", "region": "us", "days": [1, "1"]}, "file", "cronjobs.yaml:16"),
        "schedules.nightly.queue": ("default", "default", ""),
        "schedules.bad": (None, "bad", "cronjobs.yaml:17"),
        "alerts.channels.ops.mail.password": ("***", "file", "cronjobs.yaml:18"),
    }
    assert {key: found.get(key) for key in expected} == expected
    assert found["env"][0] == {
        "LANG": "C.UTF-8",
        **dict.fromkeys(("API_TOKEN", "DATABASE_URL", "APP", "OTHER", "PING"), "***"),
    }
    environ = {"WORKERS": "3", "CRONJOBS_DATABASE_URL": "sqlite:///y.db", "CRONJOBS_SCHEDULES": "off"}
    settings = load(project.folder / "cronjobs.yaml", environ=environ)
    changed = {each.key: tuple(each[1:]) for each in effective(settings, Overrides(None, None, environ))}
    assert changed["run.workers"] == ("3", "variable", "cronjobs.yaml:8, $WORKERS")
    assert changed["database"] == (f"sqlite:///{project.folder}/y.db", "variable", "$CRONJOBS_DATABASE_URL")
    assert changed["$CRONJOBS_SCHEDULES"] == ("off", "variable", "$CRONJOBS_SCHEDULES")
    given = shown(project, "--database-url", "postgresql://u:pw_3@z/x", "--config", "cronjobs.yaml")
    assert given["database"] == ("postgresql://u:***@z/x", "command line", "--database-url")
    assert given["--config"][1:] == ("command line", "--config")


def test_the_table_for_people_and_a_key_of_it(project: Project) -> None:
    answer = project.call("config", "show")
    assert not [secret for secret in SECRETS if secret in answer.out]
    lines = [line.split() for line in answer.out.splitlines()]
    assert ["run.budget", "50s", "cronjobs.yaml:9"] in lines
    assert "schedules.nightly.queue" not in answer.out
    assert 'cronjobs.yaml:17 is invalid: see "cronjobs check"' in answer.out
    assert "run.every" in answer.err  # the problems themselves
    one = project.call("config", "show", "schedules.nightly").out.splitlines()
    assert len(one) == 1 + len(next(each.rows for each in sections() if each.paths == ("schedules.NAME",)))
    nothing = project.call("config", "show", "run.wrkers")
    assert (nothing.code, nothing.out) == (2, "")
    assert "there is no key 'run.wrkers' here" in nothing.err


def test_what_is_shown_is_what_the_settings_hold(tmp_path: Path) -> None:
    """The command reads the tables once more; this holds it to what ticks use."""
    text = "database: sqlite:///x.db\nrun: {budget: 2m, linger: 500ms}\nretention: {dead: 30d}\n"
    text += "schedules: {a: {every: 5m, job: x, catch_up_within: 90m}}\n"
    (tmp_path / "cronjobs.yaml").write_text(text)
    settings: Settings = load(tmp_path / "cronjobs.yaml", environ={})
    found = shown(Project(tmp_path, ""))
    for prefix, values in (
        ("run", settings.run),
        ("retention", settings.retention),
        ("schedules.a", settings.schedules["a"]),
    ):
        keys = {key.removeprefix(f"{prefix}."): value for key, (value, _, _) in found.items() if key.startswith(prefix)}
        differing = {
            name: (value, getattr(values, name))
            for name, value in keys.items()
            if value is not None and as_written(getattr(values, name)) != as_written_again(value)
        }
        assert differing == {}


def as_written_again(value: str) -> str:
    return {"90m": "1h30m", "120s": "2m"}.get(value, value)
