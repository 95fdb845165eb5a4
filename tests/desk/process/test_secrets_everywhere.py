"""No output that shows text from jobs shows a secret, in any of its usual spellings, and wherever the text is cut.

``test_masking`` has each spelling and each cut alone, at every character.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import support.spellings
from support.commands import until
from support.inboxes import Web
from support.inboxes import web as web
from support.project import Project
from support.spellings import ODD, SPELLINGS, seen_in

from cronjobs.masking import remember

LIMIT = 1024  # length up to which an error's message is stored
HANDLERS = r"""
import os, sys
from cronjobs import GiveUp, job
from spellings import SPELLINGS

def said(spelling, secret, before=""):
    return before + SPELLINGS[spelling](secret)

def tell(ctx, spelling, cut):
    secret = os.environ["SHOP_TOKEN"]
    ctx.progress(1, 2, note=said(spelling, secret, "n" * (200 - cut)))
    print("o" * (32736 - cut) + SPELLINGS[spelling](secret) + "p" * 90_000)
    print(said(spelling, secret), file=sys.stderr)
    try:
        raise ValueError(said(spelling, secret))
    except ValueError as error:
        raise GiveUp(said(spelling, secret, "e" * (1024 - cut))) from error

job("t.thread", isolation="thread")(lambda ctx, spelling, cut: tell(ctx, spelling, cut))
job("t.process", isolation="process")(lambda ctx, spelling, cut: tell(ctx, spelling, cut))
job("t.long", timeout="10m")(lambda ctx, spelling, cut: tell(ctx, spelling, cut))
job("t.result")(lambda ctx, spelling, cut: {"said": [said(spelling, os.environ["SHOP_TOKEN"])]})
"""
YAML = """
timezone: UTC
log: {log}
metrics: {{textfile: cronjobs.prom}}
alerts: {{channels: {{hook: {{webhook: {{url: "{url}/hook-%22{hook}"}}}}}}}}
job_types:
  t.command: {{command: [/bin/sh, -c, 'printf "%s" "$SHOP_TOKEN" >&2; exit 3'], retry: {{max_attempts: 1}}}}
schedules:
  nightly: {{cron: "0 0 29 2 *", job: t.command, payload: {{token: "${{SHOP_TOKEN}}"}}}}
"""
HOOK = "k7391-of-the-webhook"
CUTS = (3, 9, 17)
SHOWING: list[tuple[str, ...]] = [
    *(
        ("status",),
        ("history",),
        ("history", "--since", "1h"),
        ("jobs", "list"),
        ("jobs", "list", "--group-by", "error"),
    ),
    *(("explain", "2"), ("explain", "nightly"), ("explain", "t.thread"), ("schedules", "show", "nightly"), ("audit",)),
    *(("books",), ("metrics",), ("check",), ("check", "--live"), ("doctor",), ("sync", "--plan"), ("config", "show")),
    *(("run-due", "--dry-run"), ("report", "--out", "report.html"), ("alerts", "list"), ("next",)),
]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    remember(())


@pytest.mark.needs("contrib.alerts")
@pytest.mark.slow
@pytest.mark.parametrize("log", ["cronjobs.log", "cronjobs.jsonl"])
def test_no_surface_shows_a_secret_in_any_spelling(
    sqlite_migrated: str, tmp_path: Path, log: str, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = Project(tmp_path, f"sqlite:///{sqlite_migrated}")
    project.write(YAML.format(log=log, url=web.url, hook=HOOK), HANDLERS)
    env = {"SHOP_TOKEN": ODD, "XDG_STATE_HOME": str(tmp_path / "state"), "LANG": "C.UTF-8"}
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    shutil.copy(support.spellings.__file__, tmp_path)
    spellings = {name: spell(ODD) for name, spell in SPELLINGS.items()}
    assert project.run("sync", env=env).code == 0
    payloads = [{"spelling": name, "cut": cut} for name in spellings for cut in CUTS]
    with closing(sqlite3.connect(sqlite_migrated)) as connection, connection:
        insert = "INSERT INTO cronjobs_jobs (job_type, payload) VALUES (?, json_object('spelling', ?, 'cut', ?))"
        rows = [("t.thread", each["spelling"], each["cut"]) for each in payloads]
        rows += [("t.process", name, 9) for name in ("plain", "percent", "basic")]
        rows += [("t.long", name, 9) for name in ("plain", "base64")]
        rows += [("t.result", name, 9) for name in spellings]
        connection.executemany(insert, rows)
    assert project.run("trigger", "nightly", env=env).code == 0
    tick = project.run("run-due", "-v", env=env)
    mail = project.run("run-due", env=env)
    said = {"tick": tick.out + tick.err, "mail": mail.out + mail.err, "log": (tmp_path / log).read_text()}
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        dead = "SELECT count(*) FROM cronjobs_jobs WHERE status = 'dead'"
        until(lambda: connection.execute(dead).fetchone()[0] == len(rows) + 1 - len(spellings), 60)  # a long job stays
        shown = "SELECT id FROM cronjobs_jobs WHERE id % 4 = 1 OR job_type IN ('t.long', 't.result')"
        numbers = [str(number) for (number,) in connection.execute(shown)]
    assert f"{len(spellings)} succeeded" in said["tick"]
    exec_ = project.run("exec", "--name", "backup", "--", "/bin/sh", "-c", 'echo "$SHOP_TOKEN"; exit 2', env=env)
    assert exec_.code == 2
    for command in [*SHOWING, *(("jobs", "show", number) for number in numbers)]:
        for form in ((), ("--json",)):
            answer = project.call(*command, *form)
            said[" ".join((*command, *form))] = answer.out + answer.err
    said |= {file: (tmp_path / file).read_text() for file in ("cronjobs.prom", "report.html")}
    said["alerts"] = "".join(body.decode() + str(body) for _, body in web.got)
    assert web.got
    with closing(sqlite3.connect(sqlite_migrated)) as connection:
        said["attempts"] = "\n".join(
            str(part)
            for row in connection.execute("SELECT error, error_type, traceback, output FROM cronjobs_job_runs")
            for part in row
        )
        errors = connection.execute("SELECT last_error, progress FROM cronjobs_jobs")
        said["rows"] = "\n".join(str(part) for row in errors for part in row)
    assert "***" in said["attempts"]
    assert {where: found for where, text in said.items() if (found := seen_in(text, spellings))} == {}
    assert [where for where, text in said.items() if HOOK in text] == []
