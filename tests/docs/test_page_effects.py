"""docs/how-to/effects.md is right: its code, its commands, and its excerpts of the recipes."""

from __future__ import annotations

import json
import re
import shlex
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import insert
from support.ledger import Jobs
from support.pages import ROOT, Page
from support.project import Project as Commands

from cronjobs import EffectUnknown
from cronjobs.engine.config.load import load
from cronjobs.engine.database.connection import Database
from cronjobs.engine.database.tables import effects as effects_table
from cronjobs.engine.database.tables import jobs as jobs_table
from cronjobs.engine.jobs import registry
from cronjobs.testing import FakeClock

PAGE = Page("docs/how-to/effects.md")
ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_no_block_of_the_page_is_left_out_and_no_link_is_dead() -> None:
    assert PAGE.counts() == {"python": 11, "console": 1, "yaml": 1}  # four: test_page_effects_transactions.py
    assert PAGE.dead_links() == []


@pytest.mark.parametrize(
    ("says", "file"),
    [
        ('mail["Message-ID"]', "invoice_email.py"),
        ("Webhook-Id", "webhook.py"),
        ("Idempotency-Key", "payment.py"),
        ("partner-order", "partner.py"),
        ("part.replace", "files.py"),
    ],
)
def test_excerpts_are_what_the_recipes_say(says: str, file: str) -> None:
    assert PAGE.block("python", says) in (ROOT / "examples/recipes" / file).read_text()


def test_every_recipe_is_named() -> None:
    files = {path.name for path in (ROOT / "examples/recipes").iterdir() if path.is_file()}
    for text in (PAGE.text, (ROOT / "examples/recipes/README.md").read_text()):
        assert files - {"README.md"} <= set(re.findall(r"\[(\w+\.py)\]", text))


def test_what_it_says_of_answers_is_what_the_recipe_does() -> None:
    source = (ROOT / "examples/recipes/http_post.py").read_text()
    [later] = re.findall(r"^LATER = \{([0-9, ]+)\}", source, re.MULTILINE)
    assert f"{later} and 5xx are retried" in " ".join(PAGE.text.split())


# --- its handlers -----------------------------------------------------------------------------------------------------


class Shop(ModuleType):
    """The app that the page imports from: what it did, and whether it dies after that."""

    def __init__(self) -> None:
        super().__init__("shop")
        self.did: list[Any] = []
        self.dies_in: str | None = None
        self.mail = self.pdf = self.archive = self

    def _do(self, what: str, *facts: Any) -> None:
        self.did.append((what, *facts))
        if self.dies_in == what:
            self.dies_in = None
            raise KeyboardInterrupt

    def send(self, invoice_id: int, *, key: str, timeout: float) -> str:
        assert 0 < timeout <= 20
        self._do("send", invoice_id, key)
        return f"<{key}>"

    def render(self, month: str) -> str:
        self._do("render", month)
        return f"{month}.pdf"

    def upload(self, file: str) -> None:
        self._do("upload", file)


@pytest.fixture
def shop(monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    shop, before = Shop(), dict(registry._registered)
    monkeypatch.setitem(sys.modules, "shop", shop)
    yield shop
    registry._registered.clear()
    registry._registered.update(before)


def handler(says: str, name: str) -> Callable[..., Any]:
    namespace: dict[str, Any] = {}
    exec(compile(PAGE.block("python", says), "docs/how-to/effects.md", "exec"), namespace)
    found: Callable[..., Any] = namespace[name]
    return found


@pytest.fixture
def work(database: Database, clock: FakeClock) -> Jobs:
    return Jobs(database, clock)


@ON_SQLITE
def test_the_email_is_sent_once_and_stops_when_nobody_knows(work: Jobs, shop: Shop) -> None:
    email = handler("invoices.email", "email_invoice")
    job = work.claimed()
    first = email(work.context(job), 7)
    assert first == email(work.context(work.taken_over(job)), 7) == {"message_id": "<invoice-email:7>"}
    shop.dies_in = "send"
    with pytest.raises(KeyboardInterrupt):
        email(work.context(job := work.claimed()), 8)
    with pytest.raises(EffectUnknown):
        email(work.context(work.taken_over(job)), 8)
    assert shop.did == [("send", 7, "invoice-email:7"), ("send", 8, "invoice-email:8")]


@ON_SQLITE
def test_the_report_goes_on_after_the_step_that_is_done(work: Jobs, shop: Shop) -> None:
    report = handler("reports.monthly", "monthly_report")
    shop.dies_in = "upload"
    job = work.claimed()
    with pytest.raises(KeyboardInterrupt):
        report(work.context(job), "2026-03")
    assert report(work.context(work.taken_over(job)), "2026-03") == "2026-03.pdf"
    assert [what for what, *_ in shop.did] == ["render", "upload", "upload"]


# --- its commands and settings ----------------------------------------------------------------------------------------


def test_its_commands_settle_what_is_stopped_and_the_jobs_run_again(tmp_path: Path, database_url: str) -> None:
    project = Commands(tmp_path, database_url)
    project.write(handlers='from cronjobs import job\n\n\n@job("invoices.email")\ndef email(**payload): ...\n')
    now = FakeClock().now()
    for number, state in ((7, "stopped"), (8, "stopped"), (9, "begun")):
        key = f"invoice-email:{number}"
        error = {"error_type": "EffectUnknown", "last_error": str(EffectUnknown(key)), "finished_at": now}
        if state == "begun":
            error |= {"error_type": "GiveUp", "last_error": "the address is wrong"}
        dead = insert(jobs_table).values(id=number, job_type="invoices.email", status="dead", **error)
        project.execute(dead)
        project.execute(insert(effects_table).values(key=key, job_id=number, attempt=1, state=state, begun_at=now))
    [block] = PAGE.blocks("console")
    lines = [shlex.split(line.removeprefix("$ cronjobs ")) for line in block.text.splitlines()]
    answers = [project.call(*words) for words in lines]
    assert [(answer.code, answer.err) for answer in answers] == [(0, "")] * len(lines), answers
    assert all(f"invoice-email:{number}" in answers[0].out for number in (7, 8))
    assert "invoice-email:9" in answers[1].out
    assert ["cronjobs jobs retry 7" in answers[2].out, "cronjobs jobs retry 8" in answers[3].out] == [True, True]
    [effect] = [row for row in project.rows("effects") if row["job_id"] != 9]
    message_id = "<invoice-email.7@shop.example>"
    assert (effect["key"], effect["state"], effect["result"]) == (
        "invoice-email:7",
        "recorded",
        {"message_id": message_id},
    )
    assert [row["status"] for row in project.jobs()] == ["queued", "queued", "dead"]


def test_its_retention_is_the_default(tmp_path: Path) -> None:
    [block] = PAGE.blocks("yaml")
    file = tmp_path / "cronjobs.yaml"
    file.write_text(f"database: {json.dumps(f'sqlite:///{tmp_path}/x.db')}\n{block.text}")
    assert load(file, environ={}).retention.effects == timedelta(days=365)
