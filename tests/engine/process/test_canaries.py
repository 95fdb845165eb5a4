"""A known secret in each place from which secrets may come: no command that shows something shows one of them.

``test_masking`` has what is a secret. Here are secrets that nobody declared (a password in a URL inside an error, a
reason, a definition), and the address of the database itself, when it answers and when it does not.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import insert, update
from support.postgres import OWNER
from support.project import Project

from cronjobs.engine.database import tables
from cronjobs.engine.database.address import parse_url
from cronjobs.engine.database.connection import Database
from cronjobs.masking import remember

CANARY = "c4n4ry"
IN_URL = f"postgresql://ada:{CANARY}-in-a-text@db.example/shop"
YAML = """
timezone: UTC
log: cronjobs.log
metrics: {{textfile: cronjobs.prom}}
env: {{SHOP_TOKEN: {canary}-env-block}}
job_types:
  t.dies: {{command: [/bin/sh, -c, "echo $SHOP_TOKEN; echo {url} >&2; exit 3"], retry: {{max_attempts: 1}}}}
  t.waits: {{command: ["true"]}}
schedules:
  nightly: {{cron: "0 0 29 2 *", job: t.dies, payload: {{token: "${{FILLED}}"}}}}
"""
HANDLERS = f"""
from cronjobs import GiveUp, job

@job("t.tells", isolation="thread")
def tells():
    print("{CANARY}-env-block")
    raise GiveUp("cannot reach {IN_URL}")
"""
SHOWING: list[tuple[str, ...]] = [
    ("status",),
    ("history",),
    ("history", "--since", "1h"),
    ("jobs", "list"),
    ("jobs", "list", "--group-by", "error"),
    *(("jobs", "show", str(number)) for number in range(1, 5)),
    *(("explain", str(number)) for number in range(1, 5)),
    ("explain", "nightly"),
    ("explain", "t.dies"),
    ("explain", "--key", "invoice:1"),
    ("schedules", "list"),
    ("schedules", "show", "nightly"),
    ("audit",),
    ("books",),
    ("metrics",),
    ("check",),
    ("check", "--live"),
    ("doctor",),
    ("prune", "--dry-run"),
    ("sync", "--plan"),
    ("run-due", "--dry-run"),
    ("effects", "list"),
    ("db", "current"),
    ("db", "check"),
    ("next",),
]


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    yield
    remember(())


def said_by(project: Project, *, codes: tuple[int, ...]) -> dict[str, str]:
    """What each command prints, as text and as JSON."""
    found = {}
    for command in SHOWING:
        for form in ((), ("--json",)):
            answer = project.call(*command, *form)
            assert answer.code in codes, (command, answer)
            found[" ".join((*command, *form))] = answer.out + answer.err
    return found


def must_not_sing(project: Project, said: dict[str, str]) -> None:
    """Neither a canary nor the password of the tests' database is in any of the texts."""
    secrets = [CANARY, *filter(None, [parse_url(project.url).url.password])]
    assert {where: text for where, text in said.items() if any(str(secret) in text for secret in secrets)} == {}


@pytest.fixture
def project(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("FILLED", f"{CANARY}-filled-in")
    monkeypatch.setenv("API_KEY", f"{CANARY}-of-the-shell")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    found = Project(tmp_path, database_url)
    found.write(YAML.format(canary=CANARY, url=IN_URL), HANDLERS)
    return found


@pytest.mark.slow
@pytest.mark.connects_as(OWNER)  # who may put into the trail what others would write
def test_no_canary_sings(project: Project, database: Database, tmp_path: Path) -> None:
    now = datetime.now(UTC)
    texts = {"last_error": f"OSError: {IN_URL}", "error_type": "OSError", "enqueued_by": IN_URL}
    for line in ("sync", "trigger nightly", "enqueue t.tells", "enqueue t.dies"):
        assert project.call(*line.split()).code == 0
    key = ("enqueue", "t.waits", "--idempotency-key", "invoice:1", "--in", "1h")
    assert project.call(*key).code == 0
    tick = project.run(
        "run-due", "-v", env={"FILLED": f"{CANARY}-filled-in", "XDG_STATE_HOME": str(tmp_path / "state")}
    )
    assert tick.code == 1, tick
    with database.write() as connection:
        connection.execute(update(tables.jobs).values(texts))
        act: dict[str, Any] = {"at": now, "action": "cancel", "subject": IN_URL, "actor": IN_URL, "host": IN_URL}
        connection.execute(insert(tables.audit).values(act | {"why": IN_URL, "detail": {"url": IN_URL}}))
        tick_row = {"tick": "x", "host": IN_URL, "pid": 1, "version": "0", "started_at": now - timedelta(seconds=5)}
        refused = {"refused": f"cannot reach {IN_URL}"}
        connection.execute(
            insert(tables.ticks).values(tick_row | {"finished_at": now, "did": refused, "ended": IN_URL})
        )
    assert project.call("pause", "nightly", "--why", f"until {IN_URL} is back").code == 0
    said = said_by(project, codes=(0, 1, 2, 3))
    assert sum(map(len, said.values())) > 10_000
    must_not_sing(project, said)
    must_not_sing(project, {"tick": tick.out + tick.err})
    must_not_sing(project, {name: (tmp_path / name).read_text() for name in ("cronjobs.log", "cronjobs.prom")})
    with database.read() as connection:
        runs = connection.execute(tables.job_runs.select()).all()
    assert len(runs) == 3
    must_not_sing(project, {"attempts": str(runs)})


@pytest.mark.slow
@pytest.mark.parametrize(
    "address",
    [f"postgresql://ada:{CANARY}-x@127.0.0.1:1/shop", f"sqlite:////nowhere/{CANARY}.db?password={CANARY}-y"],
    ids=["postgresql", "sqlite"],
)
def test_no_canary_sings_while_the_database_is_away(project: Project, address: str) -> None:
    project.url = address.replace(f"/{CANARY}.db", "/jobs.db")
    project.write(YAML.format(canary=CANARY, url=IN_URL), HANDLERS)
    must_not_sing(project, said_by(project, codes=(0, 1, 2, 3, 4)))


@pytest.mark.needs("desk")
@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)  # SQLite knows no password
def test_the_address_of_the_database_is_masked_wherever_it_is_named(project: Project) -> None:
    assert parse_url(project.url).url.password
    said = project.call("doctor").out
    assert ":***@" in said
    must_not_sing(project, {"doctor": said})
